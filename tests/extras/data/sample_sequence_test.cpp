#include "extras/data/sample_sequence.hpp"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/random.hpp"
#include "extras/data/epoch_order.hpp"
#include "kolo/error.hpp"
#include "runtime/runtimes.hpp"

namespace kolo::test::sample_sequence_test {

using extras::SampleSequence;
using Samples = std::vector<std::size_t>;

constexpr std::uint64_t kSeed = 5;

Samples order(std::size_t samples, std::int64_t epoch) {
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

Samples from(const Samples& samples, std::size_t begin) {
  return {samples.begin() + static_cast<std::ptrdiff_t>(begin), samples.end()};
}

/// Pads `samples` by repeating them from the beginning, until all ranks have equally many.
Samples padded(Samples samples, int ranks) {
  const std::size_t count = samples.size();
  for (std::size_t i = 0; samples.size() % static_cast<std::size_t>(ranks) != 0; ++i) {
    samples.push_back(samples[i % count]);
  }
  return samples;
}

TEST(SampleSequenceTest, Ranks_SeeTheWholeDataSetAndItsPadding) {
  for (std::size_t samples = 0; samples <= 50; ++samples) {
    for (int ranks = 1; ranks <= 7; ++ranks) {
      Ranks all(samples, ranks);
      for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
        all.begin();
        const Samples expected = padded(order(samples, epoch), ranks);
        EXPECT_EQ(all.rest(3), expected) << samples << " samples, " << ranks << " ranks";
        EXPECT_EQ(all.padding(), expected.size() - samples);
      }
    }
  }
}

TEST(SampleSequenceTest, DropLast_LeavesOutWhatNotAllRanksGet) {
  for (std::size_t samples = 0; samples <= 50; ++samples) {
    for (int ranks = 1; ranks <= 7; ++ranks) {
      Ranks all(samples, ranks, /*drop_last=*/true);
      for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
        all.begin();
        Samples expected = order(samples, epoch);
        expected.resize(samples - samples % static_cast<std::size_t>(ranks));
        EXPECT_EQ(all.rest(3), expected) << samples << " samples, " << ranks << " ranks";
        EXPECT_EQ(all.padding(), 0U);
      }
    }
  }
}

TEST(SampleSequenceTest, Resumed_SeesWhatIsLeftAtAnyNumberOfRanks) {
  constexpr std::size_t kSamples = 23;
  for (int before = 1; before <= 5; ++before) {
    for (std::size_t steps = 0; steps * static_cast<std::size_t>(before) < kSamples; ++steps) {
      for (int after = 1; after <= 5; ++after) {
        Ranks killed(kSamples, before);
        for (std::size_t step = 0; step < steps; ++step) killed.step(1);
        Ranks resumed(kSamples, after, killed.state());
        const std::size_t consumed = steps * static_cast<std::size_t>(before);
        const Samples rest = from(order(kSamples, 0), consumed);
        Samples expected = rest;
        for (std::size_t i = 0; expected.size() % static_cast<std::size_t>(after) != 0; ++i) {
          expected.push_back(order(kSamples, 0)[i]);
        }
        resumed.begin();
        EXPECT_EQ(resumed.rest(2), expected)
            << consumed << " consumed by " << before << " ranks, then " << after;
        EXPECT_EQ(resumed.padding(), expected.size() - rest.size());
        resumed.begin();
        EXPECT_EQ(resumed.rest(2), padded(order(kSamples, 1), after));
      }
    }
  }
}

TEST(SampleSequenceTest, KilledAndResumedAgainAndAgain_ConsumesEveryEpochOnce) {
  constexpr std::size_t kSamples = 37;
  constexpr std::int64_t kEpochs = 3;
  for (std::uint64_t run = 0; run < 200; ++run) {
    std::uint64_t random = run;
    std::vector<Samples> seen(kEpochs);
    std::string state;
    while (true) {
      const int ranks = 1 + static_cast<int>(next_random(random) % 6);
      const std::size_t batch = 1 + next_random(random) % 4;
      Ranks all = state.empty() ? Ranks(kSamples, ranks) : Ranks(kSamples, ranks, state);
      for (std::uint64_t steps = next_random(random) % 8; steps > 0; --steps) {
        const std::int64_t epoch = all.epoch();
        if (epoch == kEpochs) break;
        auto together = all.step(batch);
        if (!together) {
          all.begin();
          together = all.step(batch);
        }
        ASSERT_TRUE(together);
        together->resize(together->size() - all.padding());
        Samples& samples = seen[static_cast<std::size_t>(epoch)];
        samples.insert(samples.end(), together->begin(), together->end());
      }
      state = all.state();
      if (all.epoch() == kEpochs) break;
    }
    for (std::int64_t epoch = 0; epoch < kEpochs; ++epoch) {
      EXPECT_EQ(seen[static_cast<std::size_t>(epoch)], order(kSamples, epoch)) << run;
    }
  }
}

SampleSequence alone(std::size_t samples) {
  return {extras::shuffled(samples), kSeed, /*drop_last=*/false, 0, 1};
}

TEST(SampleSequenceTest, BatchesAskedForAhead_AreNotConsumed) {
  SampleSequence sequence = alone(10);
  sequence.begin();
  for (int i = 0; i < 3; ++i) sequence.next(3);
  EXPECT_FALSE(sequence.last_batch());
  sequence.consume();
  EXPECT_EQ(sequence.consumed(), 3U);
  EXPECT_EQ(sequence.next(3)->size(), 1U);
  EXPECT_FALSE(sequence.next(3));
  SampleSequence resumed = alone(10);
  resumed.set_state(sequence.state());
  resumed.begin();
  EXPECT_EQ(resumed.next(10), from(order(10, 0), 3));
}

TEST(SampleSequenceTest, LastBatch_EndsTheEpoch) {
  SampleSequence sequence = alone(4);
  sequence.begin();
  sequence.next(3);
  sequence.next(3);
  sequence.consume();
  EXPECT_EQ(sequence.epoch(), 0);
  sequence.consume();
  EXPECT_EQ(sequence.epoch(), 1);
  EXPECT_EQ(sequence.consumed(), 0U);
  EXPECT_EQ(sequence.last_batch()->samples, 1U);
  EXPECT_FALSE(sequence.next(3));  // the next epoch must begin first
  sequence.begin();
  EXPECT_EQ(sequence.epoch(), 1);
  EXPECT_FALSE(sequence.last_batch());
  EXPECT_EQ(sequence.next(4), order(4, 1));
}

TEST(SampleSequenceTest, IterationThatIsLeftEarly_IsFollowedByTheNextEpoch) {
  SampleSequence sequence = alone(6);
  sequence.begin();
  sequence.next(2);
  sequence.next(2);
  sequence.consume();
  sequence.begin();
  EXPECT_EQ(sequence.epoch(), 1);
  EXPECT_EQ(sequence.next(6), order(6, 1));
}

TEST(SampleSequenceTest, EndEpoch_EndsWhatHasBegunAndNothingElse) {
  SampleSequence sequence = alone(6);
  sequence.end_epoch();
  EXPECT_EQ(sequence.epoch(), 0);
  sequence.next(4);
  sequence.consume();
  sequence.next(4);
  sequence.end_epoch();
  EXPECT_EQ(sequence.epoch(), 1);
  EXPECT_THROW(sequence.consume(), InvalidArgument);
  sequence.end_epoch();
  EXPECT_EQ(sequence.epoch(), 1);
  sequence.begin();
  sequence.next(6);
  sequence.consume();
  sequence.end_epoch();
  EXPECT_EQ(sequence.epoch(), 2);
}

TEST(SampleSequenceTest, ConsumeWithoutABatch_IsRefused) {
  SampleSequence sequence = alone(6);
  const auto text = [&] { return text_thrown_by<InvalidArgument>([&] { sequence.consume(); }); };
  expect_contains(text(), "Call it once for each batch");
  sequence.next(2);
  sequence.consume();
  expect_contains(text(), "DistributedSampler::consume");
  EXPECT_EQ(sequence.consumed(), 2U);
}

TEST(SampleSequenceTest, DropLastAtMoreRanks_GoesOnWithTheNextEpoch) {
  SampleSequence two(extras::shuffled(7), kSeed, true, 1, 2);
  two.next(2);
  two.consume();
  SampleSequence four(extras::shuffled(7), kSeed, true, 3, 4);
  four.set_state(two.state());  // three samples are left
  EXPECT_EQ(four.epoch(), 1);
  EXPECT_EQ(four.next(9), (Samples{order(7, 1)[3]}));
}

TEST(SampleSequenceTest, State_IsText) {
  SampleSequence sequence(extras::shuffled(9), 18446744073709551615U, false, 0, 2);
  sequence.next(3);
  sequence.consume();
  EXPECT_EQ(sequence.state(),
            R"({"order":"shuffled","samples":9,"seed":18446744073709551615,"epoch":0,)"
            R"("consumed":6})");
}

TEST(SampleSequenceTest, StatesOfOthers_AreRefused) {
  const auto refused = [](const SampleSequence& saved) {
    SampleSequence sequence = alone(9);
    sequence.next(2);
    sequence.consume();
    const std::string before = sequence.state();
    const std::string text =
        text_thrown_by<InvalidArgument>([&] { sequence.set_state(saved.state()); });
    EXPECT_EQ(sequence.state(), before);
    EXPECT_EQ(*sequence.next(2), (Samples{order(9, 0)[2], order(9, 0)[3]}));
    return text;
  };
  expect_contains(refused(alone(8)), "the number of samples is 8 in the state, and 9 in this");
  expect_contains(refused({extras::shuffled(9), 6, false, 0, 1}),
                  "the seed is 6 in the state, and 5 in this sampler. Make the sampler as in");
  expect_contains(refused({extras::by_index(9), kSeed, false, 0, 1}),
                  "the order is by index in the state, and shuffled in this sampler");
}

TEST(SampleSequenceTest, DamagedStates_AreRefused) {
  const std::string good = alone(9).state();
  const auto replaced = [&](const std::string& part, const std::string& by) {
    std::string text = good;
    return text.replace(text.find(part), part.size(), by);
  };
  constexpr std::size_t kDepth = 300'000;  // to print such a value overflows the stack
  SampleSequence sequence = alone(9);
  for (const std::string& text :
       {std::string(), std::string("3"), std::string("[]"), std::string("null"),
        good.substr(0, good.size() - 1), replaced(":9", ":-9"), replaced(":9", ":\"9\""),
        replaced("\"seed\"", "\"sead\""), replaced("\"seed\"", "\"epoch\""),
        replaced("\"epoch\":0", "\"epoch\":0.5"),
        replaced("\"epoch\":0", "\"epoch\":9223372036854775807"),
        replaced("\"epoch\":0", "\"epoch\":18446744073709551615"),
        replaced("\"consumed\":0", "\"consumed\":10"), replaced("shuffled", "\xff"),
        replaced(":9", ":" + std::string(kDepth, '[') + std::string(kDepth, ']'))}) {
    expect_contains(text_thrown_by<InvalidArgument>([&] { sequence.set_state(text); }),
                    "DistributedSampler::set_state: the state is damaged: ");
    EXPECT_EQ(sequence.state(), good);
  }
}

}  // namespace kolo::test::sample_sequence_test
