#include "compression/cases.hpp"

#include <algorithm>
#include <functional>
#include <numeric>

#include "kolo/compression.hpp"
#include "kolo/shard.hpp"

namespace compression {
namespace {

constexpr double kFloat = 4;  // bytes

double count_of(const std::vector<std::int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), 1.0, std::multiplies<>());
}

/// An all-reduce sends each rank's share of the tensor, and then its share of the sum.
double twice_a_share(double bytes, int ranks) { return 2 * bytes * (ranks - 1) / ranks; }

/// So many bytes for each element.
Case dense(std::string name, kolo::Compression compression, double bytes_of_element) {
  return {.name = std::move(name),
          .optimizer = {.compression = std::move(compression), .shard = kolo::Shard::None},
          .bytes = [=](const Shapes& gradients, int ranks) {
            double count = 0;
            for (const auto& shape : gradients) count += count_of(shape);
            return twice_a_share(count * bytes_of_element, ranks);
          }};
}

double bytes_of_power_sgd(const kolo::PowerSgdOptions& options, const Shapes& gradients,
                          int ranks) {
  double sent = 0;
  for (const auto& shape : gradients) {
    const double count = count_of(shape);
    const auto rows = static_cast<double>(shape.front());
    const double factors = (rows + count / rows) * options.rank;
    const bool is_compressed = shape.size() > 1 && count >= options.min_compression_rate * factors;
    sent += is_compressed ? factors : count;
  }
  return twice_a_share(sent * kFloat, ranks);
}

Case power_sgd(std::string name, const Settings& settings, bool error_feedback) {
  const kolo::PowerSgdOptions options{
      .rank = settings.rank, .start_step = settings.start_step, .error_feedback = error_feedback};
  return {.name = std::move(name),
          .optimizer = {.shard = kolo::Shard::None},
          .power_sgd = options,
          .bytes = [=](const Shapes& gradients, int ranks) {
            return bytes_of_power_sgd(options, gradients, ranks);
          }};
}

}  // namespace

std::vector<Case> all_cases(const Settings& settings) {
  return {dense("none", kolo::Compression::none(), kFloat),
          dense("fp16", kolo::Compression::fp16(), 2), dense("bf16", kolo::Compression::bf16(), 2),
          power_sgd("power_sgd", settings, /*error_feedback=*/false),
          power_sgd("power_sgd+ef", settings, /*error_feedback=*/true)};
}

std::vector<std::string> names_of_cases() {
  std::vector<std::string> names;
  for (const Case& one : all_cases({})) names.push_back(one.name);
  return names;
}

std::vector<Case> chosen_cases(const Settings& settings, const std::vector<std::string>& names) {
  std::vector<Case> cases = all_cases(settings);
  if (names.empty()) return cases;
  std::erase_if(cases, [&](const Case& one) {
    return one.name != "none" && std::ranges::find(names, one.name) == names.end();
  });
  return cases;
}

}  // namespace compression
