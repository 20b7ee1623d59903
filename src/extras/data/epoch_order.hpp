#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace kolo::extras {

/// Changes `state` and returns a number. SplitMix64 (Steele et al., 2014): the same state gives the
/// same numbers on every machine.
constexpr std::uint64_t next_random(std::uint64_t& state) {
  state += 0x9E3779B97F4A7C15;
  std::uint64_t mixed = state;
  mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9;
  mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB;
  return mixed ^ mixed >> 31;
}

/// The order of the samples of every epoch, as indices into the data set. It depends only on seed
/// and epoch, with the same result on every machine: nothing here uses the generators, shuffles or
/// distributions of the standard library, which differ between implementations.
struct EpochOrder {
  std::string name;         ///< identifies what the order depends on besides size, seed and epoch
  std::size_t samples = 0;  ///< of an epoch
  std::function<std::vector<std::size_t>(std::uint64_t seed, std::int64_t epoch)> of;
};

/// Every sample once, by index.
EpochOrder by_index(std::size_t samples);

/// Every sample once, shuffled.
EpochOrder shuffled(std::size_t samples);

/// The problem with weights of samples; empty if there is none.
std::string problem_with_weights(const std::vector<double>& weights);

/// Sample i is drawn with probability weights[i] / (sum of weights) each time. Throws
/// InvalidArgument for negative and infinite weights, or if none is positive.
EpochOrder weighted(const std::vector<double>& weights, std::size_t samples);

/// Every sample once. Each group of `step_samples` consecutive samples has similar lengths, longest
/// first; the last group may be smaller. Not shuffled: by length, longest first.
EpochOrder grouped(const std::vector<std::size_t>& lengths, std::size_t step_samples, bool shuffle);

}  // namespace kolo::extras
