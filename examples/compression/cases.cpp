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

/// In an all-reduce a rank sends (n-1)/n of the tensor to reduce it, and as much to gather the sum.
double allreduce_bytes(double bytes, int ranks) { return 2 * bytes * (ranks - 1) / ranks; }

double count_of(const Shapes& gradients) {
  double count = 0;
  for (const auto& shape : gradients) count += count_of(shape);
  return count;
}

/// A case that sends `bytes_of_element` bytes for each element.
Case dense(std::string name, kolo::Compression compression, double bytes_of_element,
           bool error_feedback = false) {
  return {.name = std::move(name),
          .optimizer = {.compression = std::move(compression),
                        .error_feedback = error_feedback,
                        .shard = kolo::Shard::None},
          .bytes = [=](const Shapes& gradients, int ranks) {
            return allreduce_bytes(count_of(gradients) * bytes_of_element, ranks);
          }};
}

constexpr double kBytesPerPlacedValue = kFloat + 2;  // the value and its place

/// A case that sends `bytes_of_element` bytes for each element of a fraction. Ranks send different
/// elements, and the sum contains all of these, with their places.
Case sparse(std::string name, kolo::Compression compression, double bytes_of_element,
            double fraction, bool error_feedback) {
  Case one = dense(std::move(name), std::move(compression), bytes_of_element, error_feedback);
  one.bytes = [=](const Shapes& gradients, int ranks) {
    const double both = bytes_of_element + ranks * kBytesPerPlacedValue;
    return allreduce_bytes(count_of(gradients) * fraction * both / 2, ranks);
  };
  return one;
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
  return allreduce_bytes(sent * kFloat, ranks);
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
  using kolo::Compression;
  constexpr double kInt8 = 1 + kFloat / 256;              // a unit for each 256 elements
  constexpr double kOneBit = 1.0 / 8 + 2 * kFloat / 256;  // two means
  std::vector<Case> cases{dense("none", Compression::none(), kFloat),
                          dense("fp16", Compression::fp16(), 2),
                          dense("bf16", Compression::bf16(), 2)};
  for (const bool feedback : {false, true}) {
    const std::string suffix = feedback ? "+ef" : "";
    const double fraction = settings.fraction;
    cases.push_back(dense("int8" + suffix, Compression::int8(), kInt8, feedback));
    cases.push_back(power_sgd("power_sgd" + suffix, settings, feedback));
    cases.push_back(dense("one_bit" + suffix, Compression::one_bit(), kOneBit, feedback));
    cases.push_back(sparse("top_k" + suffix, Compression::top_k(fraction), kBytesPerPlacedValue,
                           fraction, feedback));
    cases.push_back(
        sparse("random_k" + suffix, Compression::random_k(fraction), kFloat, fraction, feedback));
  }
  return cases;
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
