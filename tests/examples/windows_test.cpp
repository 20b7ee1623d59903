#include "gpt/windows.hpp"

#include <set>

#include <gtest/gtest.h>

namespace windows_test {

using Starts = std::vector<std::size_t>;

TEST(WindowSampler, RanksTogether_SeeWhatOneRankSees) {
  for (const int ranks : {2, 3, 4}) {
    gpt::WindowSampler alone(1000, 65, 5);
    std::vector<gpt::WindowSampler> samplers(static_cast<std::size_t>(ranks),
                                             gpt::WindowSampler(1000, 65, 5));
    for (int step = 0; step < 3; ++step) {
      Starts together;
      for (int rank = 0; rank < ranks; ++rank) {
        const Starts mine = samplers[static_cast<std::size_t>(rank)].next(rank, ranks, 4);
        together.insert(together.end(), mine.begin(), mine.end());
      }
      EXPECT_EQ(together, alone.next(0, 1, 4 * ranks)) << ranks << " ranks, step " << step;
    }
  }
}

TEST(WindowSampler, Starts_CoverAllThatFitAndNoMore) {
  gpt::WindowSampler sampler(10, 8, 1);
  const Starts starts = sampler.next(0, 1, 200);
  EXPECT_EQ(std::set<std::size_t>(starts.begin(), starts.end()), (std::set<std::size_t>{0, 1, 2}));
}

TEST(WindowSampler, SeedAndStep_ChangeTheBatch) {
  gpt::WindowSampler one(1 << 20, 65, 1);
  gpt::WindowSampler two(1 << 20, 65, 2);
  const Starts first = one.next(0, 1, 8);
  EXPECT_NE(first, two.next(0, 1, 8));
  EXPECT_NE(first, one.next(0, 1, 8));
}

TEST(SpreadWindows, ShortText_IsCoveredWithoutOverlap) {
  EXPECT_EQ(gpt::spread_windows(31, 10, 100), (Starts{0, 10, 20}));
  EXPECT_EQ(gpt::spread_windows(10, 10, 100), (Starts{0}));
}

TEST(SpreadWindows, LongText_IsSampledEvenly) {
  EXPECT_EQ(gpt::spread_windows(1000, 10, 4), (Starts{0, 250, 500, 750}));
}

}  // namespace windows_test
