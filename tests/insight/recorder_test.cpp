// The ring of events that any thread writes.
#include "insight/recorder.hpp"

#include <atomic>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace kolo::insight {
namespace {

Event event_of(std::uint64_t number) {
  Event event{.kind = Event::Kind::Ended};
  event.use = event.turn = event.bytes = number;
  event.time = event.begin = event.waited = Event::Time{static_cast<std::int64_t>(number)};
  return event;
}

/// A text that belongs to that event alone, of a length that varies.
std::string text_of(std::uint64_t number) {
  return std::to_string(number) + std::string(number % 50, static_cast<char>('a' + number % 26));
}

void expect_whole(const Recorder::Entry& entry) {
  const std::uint64_t number = entry.event.use;
  EXPECT_EQ(entry.event.turn, number);
  EXPECT_EQ(entry.event.bytes, number);
  EXPECT_EQ(entry.event.waited.count(), static_cast<std::int64_t>(number));
  EXPECT_EQ(entry.text, text_of(number));
}

TEST(RecorderTest, KeepsTheNewestEvents) {
  Recorder recorder({});
  constexpr std::uint64_t kCount = Recorder::kCapacity + 7;
  for (std::uint64_t i = 0; i < kCount; ++i) recorder.add(event_of(i), text_of(i));
  EXPECT_EQ(recorder.count(), kCount);
  EXPECT_FALSE(recorder.read(6));
  for (std::uint64_t i = 7; i < kCount; ++i) {
    const auto entry = recorder.read(i);
    ASSERT_TRUE(entry) << i;
    EXPECT_EQ(entry->event.use, i);
    expect_whole(*entry);
  }
  EXPECT_FALSE(recorder.read(kCount));
}

TEST(RecorderTest, ReadersSeeWholeEventsWhileThreadsWrite) {
  Recorder recorder({});
  constexpr std::uint64_t kWriters = 3;
  constexpr std::uint64_t kEach = 3 * Recorder::kCapacity;
  std::atomic<bool> is_over{false};
  std::vector<std::thread> writers;
  for (std::uint64_t writer = 0; writer < kWriters; ++writer) {
    writers.emplace_back([&, writer] {
      for (std::uint64_t i = 0; i < kEach; ++i) {
        const std::uint64_t number = i * kWriters + writer;
        recorder.add(event_of(number), text_of(number));
      }
    });
  }
  std::uint64_t seen = 0;
  std::thread reader([&] {
    std::uint64_t next = 0;
    while (!is_over || next < recorder.count()) {
      const std::uint64_t end = recorder.count();
      if (end - next > Recorder::kCapacity) next = end - Recorder::kCapacity;
      for (; next < end; ++next) {
        if (const auto entry = recorder.read(next)) {
          expect_whole(*entry);
          ++seen;
        }
      }
    }
  });
  for (std::thread& writer : writers) writer.join();
  is_over = true;
  reader.join();
  EXPECT_EQ(recorder.count(), kWriters * kEach);
  EXPECT_GT(seen, 0U);
}

TEST(RecorderTest, LongTextsLoseTheirBeginningAtALetter) {
  Recorder recorder({});
  // "ä" has two bytes: the cut falls into the first one that would not fit.
  std::string text = "model.";
  for (int i = 0; i < 50; ++i) text += "ä";
  text += "x";
  recorder.add({}, text);
  const auto entry = recorder.read(0);
  ASSERT_TRUE(entry);
  EXPECT_EQ(entry->text, text.substr(text.size() - 79));
}

TEST(RecorderTest, PhasesAreEventsAndStepsAreCounted) {
  Recorder recorder({});
  EXPECT_EQ(recorder.activity().phase, Phase::None);
  recorder.enter(Phase::Backward);
  recorder.enter(Phase::Backward);
  recorder.enter(Phase::Step);
  recorder.add_blocked(Event::Time{70});
  recorder.enter(Phase::Forward);
  recorder.enter(Phase::Backward);
  recorder.add_blocked(Event::Time{5});
  recorder.enter(Phase::Step);
  recorder.enter(Phase::Forward);
  EXPECT_EQ(recorder.activity().phase, Phase::Forward);
  EXPECT_EQ(recorder.activity().step, 3U);

  struct Expected {
    std::string name;
    std::uint32_t step;
    std::int64_t exposed;
  };
  const std::vector<Expected> expected{
      {"backward", 1, 0}, {"step", 1, 70}, {"forward", 2, 0}, {"backward", 2, 0}, {"step", 2, 5}};
  ASSERT_EQ(recorder.count(), expected.size());
  Event::Time end{};
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const auto entry = recorder.read(i);
    ASSERT_TRUE(entry);
    EXPECT_EQ(entry->text, expected[i].name);
    EXPECT_EQ(entry->event.step, expected[i].step);
    EXPECT_EQ(entry->event.waited.count(), expected[i].exposed);
    EXPECT_GE(entry->event.begin, end);
    EXPECT_LE(entry->event.begin, entry->event.time);
    end = entry->event.time;
  }
}

TEST(RecorderTest, KeepsTheFirstProblemsAndTheLast) {
  Recorder recorder({});
  for (int i = 0; i < 100; ++i) {
    recorder.add({{ErrorKind::Timeout, "problem " + std::to_string(i)}, i, {}});
  }
  const auto problems = recorder.problems();
  ASSERT_FALSE(problems.empty());
  EXPECT_LT(problems.size(), 100U);
  for (std::size_t i = 0; i + 1 < problems.size(); ++i) {
    EXPECT_EQ(problems[i].failure.text, "problem " + std::to_string(i));
    EXPECT_EQ(problems[i].lost_rank, static_cast<int>(i));
  }
  EXPECT_EQ(problems.back().lost_rank, 99);
}

}  // namespace
}  // namespace kolo::insight
