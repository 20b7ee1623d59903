// main of the tests that run under mpirun: all ranks run all tests in step and end with the same
// status. --longest-test=<seconds> precedes GoogleTest's options. KOLO_TEST_VARIANT selects the
// tests of a variant.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>
#include <mpi.h>

#include "support/mpi/groups.hpp"
#include "support/mpi/mpi_ranks.hpp"
#include "support/mpi/variants.hpp"
#include "support/results.hpp"

namespace kolo::test {
namespace {

/// Writes every failure to stderr immediately, with its rank and place, so that a hang leaves
/// evidence, and lets the ranks meet at the end of each test.
class MpiListener final : public testing::EmptyTestEventListener {
 public:
  explicit MpiListener(MpiRanks& ranks) : ranks_(ranks) {}

  void OnTestStart(const testing::TestInfo& test) override {
    test_ = std::string(test.test_suite_name()) + "." + test.name();
    ranks_.watchdog().begin(test_);
  }
  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (!result.failed()) return;
    const char* const file = result.file_name() == nullptr ? "unknown file" : result.file_name();
    const std::string text = ranks_.prefix() + file + ":" + std::to_string(result.line_number()) +
                             ": " + result.message() + "\n";
    std::fputs(text.c_str(), stderr);
  }
  void OnTestEnd(const testing::TestInfo&) override {
    ranks_.gather(0, "end of " + test_);
    ranks_.watchdog().end();
  }

 private:
  MpiRanks& ranks_;
  std::string test_;
};

/// Below CTest's time limit by default, which would end the job without saying where it hung.
std::chrono::seconds longest_test(int argc, char** argv) {
  constexpr std::string_view kOption = "--longest-test=";
  const std::string_view first = argc > 1 ? argv[1] : "";
  if (!first.starts_with(kOption)) return std::chrono::seconds(240);
  return std::chrono::seconds(std::atoi(first.substr(kOption.size()).data()));
}

int run_all_tests(std::chrono::seconds longest_test) {
  int rank = 0;
  int size = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MpiRanks ranks(longest_test);
  const ProgramTraffic traffic;
  const Turn turn;
  auto& listeners = testing::UnitTest::GetInstance()->listeners();
  if (ranks.rank() != 0) delete listeners.Release(listeners.default_result_printer());
  listeners.Append(new MpiListener(ranks));  // GoogleTest owns it
  const int status = run_selected_tests(rank, size);
  const std::vector<int> endings = ranks.gather(status, "end of all tests");
  const auto failed = std::ranges::find_if(endings, [](int ending) { return ending % kSkipped; });
  return failed != endings.end() ? *failed : status;
}

}  // namespace
}  // namespace kolo::test

int main(int argc, char** argv) {
  int provided = MPI_THREAD_SINGLE;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  testing::InitGoogleTest(&argc, argv);
  if (!kolo::test::variant().empty()) {
    GTEST_FLAG_SET(filter, kolo::test::filter_of_variant());
  }
  const int status = kolo::test::run_all_tests(kolo::test::longest_test(argc, argv));
  MPI_Finalize();
  return status;
}
