#include "kolo/extras/progress_bar.hpp"

#include <algorithm>
#include <sstream>

#include <gtest/gtest.h>

namespace kolo::test::progress_bar_test {

TEST(ProgressBar, PlainOutput_IsALineNowAndThenAndAtTheEnd) {
  std::ostringstream stream;
  ProgressBar bar(stream, /*on_terminal=*/false, /*steps=*/100, /*units_per_step=*/50, "tokens");
  for (int done = 1; done <= 100; ++done) bar.update(done, 2.0, 0.25 * done);
  EXPECT_EQ(stream.str(),
            "step 1/100  loss 2.000  200 tokens/s  0:25 left\n"
            "step 41/100  loss 2.000  200 tokens/s  0:15 left\n"
            "step 81/100  loss 2.000  200 tokens/s  0:05 left\n"
            "step 100/100  loss 2.000  200 tokens/s  0:00 left\n");
}

TEST(ProgressBar, Terminal_StaysOnOneLineWithAGrowingBar) {
  std::ostringstream stream;
  ProgressBar bar(stream, /*on_terminal=*/true, /*steps=*/4, /*units_per_step=*/100, "tokens");
  for (int done = 1; done <= 4; ++done) bar.update(done, 1.5, 30.0 * done);
  const std::string text = stream.str();
  EXPECT_EQ(std::ranges::count(text, '\r'), 4);
  EXPECT_EQ(std::ranges::count(text, '\n'), 1);
  EXPECT_NE(text.find("\r[######..................] step 1/4  loss 1.500  3 tokens/s  1:30 left"),
            std::string::npos);
  EXPECT_NE(text.find("\r[########################] step 4/4"), std::string::npos);
}

TEST(ProgressBar, Terminal_IsNotFloodedByFastSteps) {
  std::ostringstream stream;
  ProgressBar bar(stream, /*on_terminal=*/true, /*steps=*/1000, /*units_per_step=*/1, "tokens");
  for (int done = 1; done <= 1000; ++done) bar.update(done, 1.0, 0.001 * done);
  const std::string text = stream.str();
  const auto frames = std::ranges::count(text, '\r');
  EXPECT_GE(frames, 10);
  EXPECT_LE(frames, 12);
}

TEST(ProgressBar, Loss_IsSmoothed) {
  std::ostringstream stream;
  ProgressBar bar(stream, /*on_terminal=*/false, /*steps=*/2, /*units_per_step=*/1, "tokens");
  bar.update(1, 2.0, 1);
  bar.update(2, 1.0, 2);
  EXPECT_NE(stream.str().find("step 2/2  loss 1.950"), std::string::npos);
}

TEST(ProgressBar, Clear_LeavesAnEmptyLineAndTheNextStepDrawsAgain) {
  std::ostringstream stream;
  ProgressBar bar(stream, /*on_terminal=*/true, /*steps=*/1000, /*units_per_step=*/1, "images");
  bar.clear();
  EXPECT_EQ(stream.str(), "");
  bar.update(1, 1.0, 0.001);
  EXPECT_FALSE(bar.is_due(2, 0.002));
  bar.clear();
  EXPECT_TRUE(stream.str().ends_with("\r\x1b[K"));
  EXPECT_TRUE(bar.is_due(2, 0.002));
  bar.update(2, 1.0, 0.002);
  EXPECT_TRUE(stream.str().ends_with("step 2/1000  loss 1.000  1000 images/s  0:01 left\x1b[K"));
}

}  // namespace kolo::test::progress_bar_test
