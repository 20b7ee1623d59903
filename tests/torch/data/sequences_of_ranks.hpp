#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "extras/data/epoch_order.hpp"
#include "extras/data/sample_sequence.hpp"

namespace kolo::test::sample_sequence_test {

using extras::SampleSequence;
using Samples = std::vector<std::size_t>;

inline constexpr std::uint64_t kSeed = 5;

inline Samples order(std::size_t samples, std::int64_t epoch) {
  return extras::shuffled(samples).of(kSeed, epoch);
}

/// The sequences of all ranks of a job.
class Ranks {
 public:
  Ranks(std::size_t samples, int ranks, bool drop_last = false) {
    for (int rank = 0; rank < ranks; ++rank) {
      all_.emplace_back(extras::shuffled(samples), kSeed, drop_last, rank, ranks);
    }
  }
  Ranks(std::size_t samples, int ranks, const std::string& state) : Ranks(samples, ranks) {
    for (SampleSequence& sequence : all_) sequence.set_state(state);
  }

  void begin() {
    for (SampleSequence& sequence : all_) sequence.begin();
  }

  /// The next batch of all ranks together, with its padding; nothing at the end of an epoch.
  std::optional<Samples> step(std::size_t batch) {
    std::vector<Samples> parts;
    for (SampleSequence& sequence : all_) {
      const auto part = sequence.next(batch);
      if (!part) return std::nullopt;
      parts.push_back(*part);
      last_ = sequence.consume();
      EXPECT_EQ(last_.samples, part->size());
    }
    Samples together;
    for (std::size_t i = 0; i < parts.front().size(); ++i) {
      for (const Samples& part : parts) together.push_back(part.at(i));
    }
    return together;
  }
  /// The rest of the epoch, with its padding.
  Samples rest(std::size_t batch) {
    Samples samples;
    while (const auto together = step(batch)) {
      samples.insert(samples.end(), together->begin(), together->end());
    }
    return samples;
  }
  std::size_t padding() const { return last_.padding; }  // of the last step

  std::string state() const {
    for (const SampleSequence& sequence : all_) EXPECT_EQ(sequence.state(), all_.front().state());
    return all_.front().state();
  }
  std::int64_t epoch() const { return all_.front().epoch(); }

 private:
  std::deque<SampleSequence> all_;  // which do not move
  SampleSequence::Batch last_;
};

}  // namespace kolo::test::sample_sequence_test
