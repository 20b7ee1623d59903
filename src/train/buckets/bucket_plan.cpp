#include "train/buckets/bucket_plan.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

#include "kolo/collectives.hpp"

namespace kolo::train {
namespace {

constexpr std::size_t kMaxBytes = std::size_t{25} << 20;
// A launch takes the host 20 to 160 us, in which NVLink moves more than this.
constexpr std::size_t kMinBytesOnGpu = std::size_t{4} << 20;
constexpr std::size_t kBuckets = 16;
constexpr std::size_t kFirstBucketDivisor = 4;

std::size_t aligned(std::size_t bytes, std::size_t alignment = kBucketAlignment) {
  return (bytes + alignment - 1) / alignment * alignment;
}

std::size_t bytes_of(const PlannedParameter& parameter) {
  return aligned(parameter.count * size_of(parameter.dtype));
}

/// Moves each member into one of the shards, the largest first to the one with the fewest bytes in
/// the bucket; of several, to that with the fewest so far, which it adds to. Returns the bytes of
/// the fullest.
std::size_t share_out(Bucket& bucket, const std::vector<PlannedParameter>& parameters,
                      std::vector<std::size_t>& so_far, std::size_t alignment) {
  const auto bytes = [&](const Bucket::Member* member) {
    return bytes_of(parameters[member->parameter]);
  };
  std::vector<Bucket::Member*> members;
  for (Bucket::Member& member : bucket.members) members.push_back(&member);
  std::ranges::stable_sort(members, std::greater(), bytes);
  std::vector<std::size_t> filled(so_far.size());
  std::vector<std::size_t> shards(so_far.size());
  std::iota(shards.begin(), shards.end(), std::size_t{0});
  std::vector<std::size_t> owners;
  for (Bucket::Member* const member : members) {
    const std::size_t owner = *std::ranges::min_element(
        shards, {}, [&](std::size_t shard) { return std::pair(filled[shard], so_far[shard]); });
    owners.push_back(owner);
    member->offset = filled[owner];
    filled[owner] += bytes(member);
    so_far[owner] += bytes(member);
  }
  const std::size_t shard = aligned(std::ranges::max(filled), alignment);
  for (std::size_t i = 0; i < members.size(); ++i) members[i]->offset += owners[i] * shard;
  return shard;
}

/// Whether another parameter starts a new bucket. Padding of whole parameters moves like gradients,
/// so it must be little: an eighth, or what no order avoids.
bool is_full(Bucket bucket, const std::vector<PlannedParameter>& parameters,
             std::size_t bucket_bytes, std::size_t shards) {
  const std::size_t bytes = bucket.size_bytes;
  if (bytes < bucket_bytes) return false;
  if (bytes >= bucket_bytes * shards) return true;
  std::vector<std::size_t> none_so_far(shards);
  return share_out(bucket, parameters, none_so_far, kBucketAlignment) * shards * 7 <= bytes * 8;
}

/// Places the buckets one after another in memory. Each ends with its flags.
void place_buckets(BucketPlan& plan, const std::vector<PlannedParameter>& parameters,
                   std::size_t shards, std::size_t alignment) {
  std::vector<std::size_t> owned(shards);
  for (Bucket& bucket : plan.buckets) {
    if (bucket.is_whole) {
      bucket.size_bytes = shards * share_out(bucket, parameters, owned, alignment);
    }
    bucket.offset = plan.size_bytes;
    for (Bucket::Member& member : bucket.members) member.offset += bucket.offset;
    bucket.size_bytes = aligned(bucket.size_bytes, shards * alignment);
    bucket.flags_offset = bucket.offset + bucket.size_bytes;
    bucket.size_bytes += aligned(bucket.flag_count() * size_of(bucket.dtype), alignment);
    plan.size_bytes += bucket.size_bytes;
  }
}

}  // namespace

std::vector<Bucket::Member> Bucket::members_by_offset() const {
  std::vector<Member> sorted = members;
  std::ranges::sort(sorted, {}, &Member::offset);
  return sorted;
}

BucketPlan plan_buckets(const std::vector<PlannedParameter>& parameters,
                        const std::vector<std::size_t>& order, std::size_t bucket_bytes,
                        std::size_t shards, std::size_t alignment) {
  BucketPlan plan;
  // The unfinished bucket of each group, dtype, compression and kind of shard.
  std::map<std::tuple<int, DType, bool, bool>, std::size_t> open;
  for (const std::size_t index : order) {
    const PlannedParameter& parameter = parameters[index];
    const std::tuple key{parameter.group, parameter.dtype, parameter.is_compressed,
                         parameter.is_whole};
    const auto found = open.find(key);
    const bool is_limited = parameter.group == PlannedParameter::kNoGroup;
    const auto has_room = [&](const Bucket& bucket) {
      if (!is_limited && !parameter.may_split_group) return true;
      if (parameter.is_whole) return !is_full(bucket, parameters, bucket_bytes, shards);
      return bucket.size_bytes + bytes_of(parameter) <= bucket_bytes;
    };
    const bool fits = found != open.end() && has_room(plan.buckets[found->second]);
    if (!fits) {
      open[key] = plan.buckets.size();
      plan.buckets.emplace_back();
      plan.buckets.back().dtype = parameter.dtype;
      plan.buckets.back().is_compressed = parameter.is_compressed;
      plan.buckets.back().is_whole = parameter.is_whole;
    }
    const std::size_t place = open[key];
    Bucket& bucket = plan.buckets[place];
    bucket.members.push_back({index, bucket.size_bytes});
    bucket.size_bytes += bytes_of(parameter);
    const bool is_first = place == 0;
    if (is_first && is_limited && !bucket.is_whole &&
        bucket.size_bytes >= bucket_bytes / kFirstBucketDivisor) {
      open.erase(key);
    }
  }
  if (!plan.buckets.empty()) plan.buckets.front().has_digest = true;
  place_buckets(plan, parameters, shards, alignment);
  return plan;
}

BucketPlan widen(BucketPlan plan, DType least) {
  plan.size_bytes = 0;
  for (Bucket& bucket : plan.buckets) {
    const std::size_t begin = std::exchange(bucket.offset, plan.size_bytes);
    const std::size_t factor = std::max<std::size_t>(size_of(least) / size_of(bucket.dtype), 1);
    if (factor > 1) bucket.dtype = least;
    for (Bucket::Member& member : bucket.members) {
      member.offset = bucket.offset + (member.offset - begin) * factor;
    }
    bucket.flags_offset = bucket.offset + (bucket.flags_offset - begin) * factor;
    bucket.size_bytes *= factor;
    plan.size_bytes += bucket.size_bytes;
  }
  return plan;
}

BucketPlan share_slots(BucketPlan plan, std::size_t slots) {
  std::size_t slot_bytes = 0;
  for (const Bucket& bucket : plan.buckets) slot_bytes = std::max(slot_bytes, bucket.size_bytes);
  for (std::size_t i = 0; i < plan.buckets.size(); ++i) {
    Bucket& bucket = plan.buckets[i];
    const std::size_t offset = i % slots * slot_bytes;
    for (Bucket::Member& member : bucket.members) member.offset += offset - bucket.offset;
    bucket.flags_offset += offset - bucket.offset;
    bucket.offset = offset;
  }
  plan.size_bytes = std::min(slots, plan.buckets.size()) * slot_bytes;
  plan.slots = slots;
  return plan;
}

std::size_t default_bucket_bytes(const std::vector<PlannedParameter>& parameters, bool is_on_gpu) {
  std::size_t total = 0;
  for (const PlannedParameter& parameter : parameters) total += bytes_of(parameter);
  return std::clamp(total / kBuckets, is_on_gpu ? kMinBytesOnGpu : 0, kMaxBytes);
}

void ArrivalOrder::record(std::size_t parameter, bool is_sparse) {
  order_.push_back(parameter);
  if (is_sparse) was_sparse_[parameter] = true;
}

ArrivalOrder::Agreed ArrivalOrder::agree(ProcessSet& set, const std::string& name) const {
  const std::size_t parameters = was_sparse_.size();
  // A row is a parameter and whether it was sparse; joined ranks send none.
  using Row = std::array<std::int64_t, 2>;
  std::vector<Row> own;
  for (const std::size_t i : complete(order_, parameters)) {
    own.push_back({static_cast<std::int64_t>(i), was_sparse_[i]});
  }
  std::vector<Row> all;
  allgather({own.data(), DType::Int64, {static_cast<std::int64_t>(own.size()), 2}, Device{}},
            [&](const std::vector<std::int64_t>& rows) -> void* {
              all.resize(static_cast<std::size_t>(
                  std::accumulate(rows.begin(), rows.end(), std::int64_t{0})));
              return all.data();
            },
            {.name = name, .process_set = &set});
  Agreed agreed{.order = {}, .sparse = std::vector<bool>(parameters)};
  for (const auto& [index, was_sparse] : all) {
    const auto i = static_cast<std::size_t>(index);
    if (agreed.order.size() < parameters) agreed.order.push_back(i);
    if (was_sparse != 0) agreed.sparse[i] = true;
  }
  return agreed;
}

std::vector<std::size_t> ArrivalOrder::complete(std::vector<std::size_t> order,
                                                std::size_t parameters) {
  // Backward reaches the last layers first.
  for (std::size_t i = parameters; i-- > 0;) order.push_back(i);
  std::vector<std::size_t> each_once;
  std::vector<bool> is_in(parameters);
  for (const std::size_t i : order) {
    if (!is_in[i]) each_once.push_back(i);
    is_in[i] = true;
  }
  return each_once;
}

}  // namespace kolo::train
