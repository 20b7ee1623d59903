// A custom codec with error feedback: gradient descent whose gradients are sent with two bits per
// element, as -u, 0 or u.
//
//   mpirun -np 2 10_own_codec
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "kolo/codec.hpp"
#include "kolo/collectives.hpp"
#include "kolo/runtime.hpp"

namespace {

/// u is the largest magnitude of a block; elements below half of it become 0.
class Ternary final : public kolo::Codec {
 public:
  std::string_view name() const override { return "ternary"; }
  std::size_t block() const override { return 64; }
  double error_bound() const override { return 0.5; }
  std::size_t payload_bytes(std::size_t count, int) const override {
    return sizeof(float) + (count + 3) / 4;
  }

  void encode(std::span<const float> values, int, std::byte* payload) const override {
    float unit = 0;
    for (const float value : values) {
      if (!(std::fabs(value) <= unit)) unit = std::fabs(value);  // keeps a NaN
    }
    std::memset(payload, 0, payload_bytes(values.size(), 1));
    std::memcpy(payload, &unit, sizeof unit);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const bool is_zero = 2 * std::fabs(values[i]) < unit;
      const unsigned code = is_zero ? 1u : (values[i] < 0 ? 0u : 2u);
      payload[sizeof unit + i / 4] |= static_cast<std::byte>(code << (2 * (i % 4)));
    }
  }

  void add_decoded(const std::byte* payload, int, std::span<float> values) const override {
    float unit = 0;
    std::memcpy(&unit, payload, sizeof unit);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto codes = std::to_integer<unsigned>(payload[sizeof unit + i / 4]);
      values[i] += unit * (static_cast<float>(codes >> (2 * (i % 4)) & 3) - 1);
    }
  }
};

/// The final distance from the optimum, which is the mean of all ranks' targets.
double distance_after_descent(const kolo::Runtime& runtime, const kolo::Compression& compression,
                              bool has_feedback) {
  constexpr std::size_t kCount = 1000;
  std::vector<float> point(kCount, 0.0f);
  std::vector<float> gradient(kCount);
  std::vector<float> residual(kCount, 0.0f);
  const kolo::TensorView view{gradient.data(), kolo::DType::Float32, {kCount}};
  const auto target = [](int rank, std::size_t i) {
    return std::exp(-static_cast<float>(i % 64) / 8) * static_cast<float>(rank % 2 == 0 ? 1 : 3);
  };
  for (int step = 0; step < 200; ++step) {
    for (std::size_t i = 0; i < kCount; ++i) gradient[i] = point[i] - target(runtime.rank(), i);
    kolo::allreduce(
        view, view,
        {.compression = compression, .residual = has_feedback ? residual.data() : nullptr});
    for (std::size_t i = 0; i < kCount; ++i) point[i] -= 0.1f * gradient[i];
  }
  double sum = 0;
  for (std::size_t i = 0; i < kCount; ++i) {
    double best = 0;
    for (int rank = 0; rank < runtime.size(); ++rank) best += target(rank, i);
    best /= runtime.size();
    sum += (point[i] - best) * (point[i] - best);
  }
  return std::sqrt(sum / kCount);
}

}  // namespace

int main() {
  const Ternary ternary;
  kolo::InitOptions options;
  options.codecs = {&ternary};
  const kolo::Runtime runtime(std::move(options));

  const auto by_name = kolo::Compression::named("ternary");
  const double none = distance_after_descent(runtime, kolo::Compression::none(), false);
  const double with = distance_after_descent(runtime, by_name, runtime.size() > 1);
  const double without = distance_after_descent(runtime, by_name, false);
  if (runtime.rank() == 0) {
    std::printf("distance without compression %.4f, with feedback %.4f, without %.4f\n", none, with,
                without);
  }
}
