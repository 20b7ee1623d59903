#pragma once

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "support/mpi/mpi_ranks.hpp"

namespace kolo::test {

/// Makes GoogleTest speak for all ranks. Every failure and skip is written to stderr at once, with
/// its rank and place, so that a hang leaves evidence. When a test ends, rank 0 raises the other
/// ranks' failures again where they happened, and the verdict becomes the same everywhere.
///
/// Goes before the default printer's end of a test: appended after it, since ends come in reverse.
class MpiListener final : public testing::EmptyTestEventListener {
 public:
  explicit MpiListener(MpiRanks& ranks) : ranks_(ranks) {}

  void OnTestStart(const testing::TestInfo& test) override;
  void OnTestPartResult(const testing::TestPartResult& result) override;
  void OnTestEnd(const testing::TestInfo& test) override;

 private:
  struct Failure {
    std::string file;
    int line = 0;
    std::string text;
  };

  std::string encode_failures() const;
  void raise_again(int rank, const std::string& encoded);

  MpiRanks& ranks_;
  std::vector<Failure> failures_;
  bool has_skipped_ = false;
  bool is_reporting_ = false;  // what is raised now has been written already
};

}  // namespace kolo::test
