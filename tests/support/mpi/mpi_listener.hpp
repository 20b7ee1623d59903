#pragma once

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "support/mpi/mpi_ranks.hpp"

namespace kolo::test {

/// Makes GoogleTest report for all ranks. Every failure and skip is written to stderr immediately,
/// with its rank and place, so that a hang leaves evidence. When a test ends, rank 0 repeats the
/// other ranks' failures at their places, and all ranks reach the same verdict.
///
/// Must handle the end of a test before the default printer: append it after the printer, as end
/// events are delivered in reverse.
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
  void replay_failures(int rank, const std::string& encoded);

  MpiRanks& ranks_;
  std::vector<Failure> failures_;
  bool has_skipped_ = false;
  bool is_reporting_ = false;  // a failure raised now has already been written
};

}  // namespace kolo::test
