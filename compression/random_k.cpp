// Sends randomly chosen elements of each block: one in each of k runs of equal length.
//
// Payload of k elements: 8 bytes for the seed of the indices, then 4 per value. The payload of a
// sum of n has the n k elements of largest magnitude, as with top_k. The seed is a hash of the
// block's values, a sum that GPUs may compute in any order. No step counter is needed, a resumed
// run draws the same indices as an uninterrupted one, and other values give other indices. Error:
// elements that are not sent count as zero, so error feedback is needed. A block with a NaN or an
// infinity sends only NaN. State: none.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>

#include "compression/codecs.hpp"
#include "compression/sparse_payload.hpp"

namespace kolo::compression {
namespace {

std::uint64_t hash_of(std::span<const float> values) {
  std::uint64_t hash = 0;
  for (std::size_t i = 0; i < values.size(); ++i) hash += base::random_k_hash(values[i], i);
  return base::random_k_seed(hash, values.size());
}

/// Calls `visit(place)` for `kept` of `count` places, ascending.
template <class Visit>
void for_each_place(std::uint64_t seed, std::size_t count, std::size_t kept, const Visit& visit) {
  for (std::size_t i = 0; i < kept; ++i) visit(base::random_k_place(seed, i, count, kept));
}

class RandomK final : public BuiltInCodec {
 public:
  RandomK(std::string name, double fraction)
      : BuiltInCodec({.kind = base::CodecKind::RandomK, .fraction = fraction}),
        name_(std::move(name)) {}

  std::string_view name() const override { return name_; }
  double error_bound() const override { return 1.0; }

  void encode(std::span<const float> values, int terms, std::byte* payload) const override {
    const std::size_t kept = format().kept(values.size(), terms);
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
    const std::size_t kept = format().kept(values.size(), terms);
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
};

}  // namespace

std::unique_ptr<const Codec> random_k(std::string name, double fraction) {
  return std::make_unique<RandomK>(std::move(name), fraction);
}

}  // namespace kolo::compression
