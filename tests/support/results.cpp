#include "support/results.hpp"

#include <cstdio>
#include <cstdlib>
#include <string>

#include <gtest/gtest.h>

namespace kolo::test {
namespace {

/// The first line of the first reason.
std::string skip_reason(const testing::TestResult& result) {
  for (int i = 0; i < result.total_part_count(); ++i) {
    const testing::TestPartResult& part = result.GetTestPartResult(i);
    const std::string text = part.message();
    if (part.skipped()) return text.substr(0, text.find('\n'));
  }
  return "";
}

class ResultWriter final : public testing::EmptyTestEventListener {
 public:
  ResultWriter(const std::string& path, int ranks)
      : file_(std::fopen(path.c_str(), "w")), ranks_(ranks) {
    if (file_ != nullptr) return;
    std::perror(path.c_str());
    std::exit(1);
  }
  ResultWriter(const ResultWriter&) = delete;  // owns the file
  ResultWriter& operator=(const ResultWriter&) = delete;
  ~ResultWriter() override { std::fclose(file_); }

  void OnTestProgramStart(const testing::UnitTest& tests) override {
    write("ranks", std::to_string(ranks_));
    write("cases", std::to_string(tests.test_to_run_count()));
  }
  void OnTestStart(const testing::TestInfo& test) override {
    write("begin", std::string(test.test_suite_name()) + "." + test.name());
  }
  void OnTestEnd(const testing::TestInfo& test) override {
    const testing::TestResult& result = *test.result();
    if (result.Failed()) {
      write("failed");
    } else if (result.Skipped()) {
      write("skipped", skip_reason(result));
    } else {
      write("passed");
    }
  }
  void OnTestProgramEnd(const testing::UnitTest& tests) override {
    const testing::TestResult& environments = tests.ad_hoc_test_result();
    if (environments.Skipped()) write("skipped", skip_reason(environments));
  }

 private:
  /// At once: the program may crash, and a process that it forks must not write it again.
  void write(const std::string& what, const std::string& text = "") {
    std::fputs((what + " " + text + "\n").c_str(), file_);
    std::fflush(file_);
  }

  std::FILE* file_;
  int ranks_;
};

}  // namespace

int run_selected_tests(int rank, int ranks) {
  testing::UnitTest& tests = *testing::UnitTest::GetInstance();
  if (const char* const path = std::getenv("KOLO_TEST_RESULTS"); path != nullptr) {
    tests.listeners().Append(  // GoogleTest owns it
        new ResultWriter(std::string(path) + "." + std::to_string(rank), ranks));
  }
  const int status = RUN_ALL_TESTS();
  if (tests.test_to_run_count() == 0) {
    std::fputs("no test was selected\n", stderr);
    return 1;
  }
  return status == 0 && tests.ad_hoc_test_result().Skipped() ? kSkipped : status;
}

}  // namespace kolo::test
