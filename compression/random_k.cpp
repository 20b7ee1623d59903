// Sends elements at random places of each block: one in each of k runs of equal length.
//
// Payload of k elements: 8 bytes for the seed of the places, then 4 for each value. A sum of n has
// the n k elements of largest magnitude, as with top_k. The seed is a hash of the block's values:
// no state has to say which step it is, a resumed run draws what the uninterrupted one draws, and
// other values give other places. Error: elements that are not sent count as zero, so error
// feedback has to make up for it. A block with a NaN or an infinity sends NaN only. State: none.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>

#include "base/random.hpp"
#include "compression/codecs.hpp"
#include "compression/sparse_payload.hpp"

namespace kolo::compression {
namespace {

std::uint64_t hash_of(std::span<const float> values) {
  std::uint64_t hash = values.size();
  for (const float value : values) {
    hash ^= std::bit_cast<std::uint32_t>(value);
    hash = next_random(hash);
  }
  return hash;
}

/// Calls `visit(place)` for `kept` of `count` places, ascending.
template <class Visit>
void for_each_place(std::uint64_t seed, std::size_t count, std::size_t kept, const Visit& visit) {
  for (std::size_t i = 0; i < kept; ++i) {
    const std::size_t begin = i * count / kept;
    const std::size_t length = (i + 1) * count / kept - begin;
    visit(begin + static_cast<std::size_t>(next_random(seed) % length));
  }
}

class RandomK final : public Codec {
 public:
  RandomK(std::string name, double fraction) : name_(std::move(name)), fraction_(fraction) {}

  std::string_view name() const override { return name_; }
  std::size_t block() const override { return kSparseBlock; }
  double error_bound() const override { return 1.0; }

  std::size_t payload_bytes(std::size_t count, int terms) const override {
    const std::size_t kept = kept_elements(count, fraction_, terms);
    return terms > 1 ? sparse_payload_bytes(count, kept)
                     : sizeof(std::uint64_t) + kept * sizeof(float);
  }

  void encode(std::span<const float> values, int terms, std::byte* payload) const override {
    const std::size_t kept = kept_elements(values.size(), fraction_, terms);
    if (terms > 1) return write_largest(values, kept, payload);
    const std::uint64_t seed = hash_of(values);
    std::memcpy(payload, &seed, sizeof seed);
    const bool is_finite = std::ranges::all_of(values, [](float x) { return std::isfinite(x); });
    constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
    std::byte* to = payload + sizeof seed;
    for_each_place(seed, values.size(), kept, [&](std::size_t place) {
      std::memcpy(to, is_finite ? &values[place] : &kNaN, sizeof(float));
      to += sizeof(float);
    });
  }

  void add_decoded(const std::byte* payload, int terms, std::span<float> values) const override {
    const std::size_t kept = kept_elements(values.size(), fraction_, terms);
    if (terms > 1) return add_sparse(payload, kept, values);
    std::uint64_t seed = 0;
    std::memcpy(&seed, payload, sizeof seed);
    const std::byte* from = payload + sizeof seed;
    for_each_place(seed, values.size(), kept, [&](std::size_t place) {
      float value = 0;
      std::memcpy(&value, from, sizeof value);
      values[place] += value;
      from += sizeof value;
    });
  }

 private:
  std::string name_;
  double fraction_;
};

}  // namespace

std::unique_ptr<const Codec> random_k(std::string name, double fraction) {
  return std::make_unique<RandomK>(std::move(name), fraction);
}

}  // namespace kolo::compression
