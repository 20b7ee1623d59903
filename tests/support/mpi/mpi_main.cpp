// main of the tests that run under mpirun: all ranks run all tests in step and end with the same
// verdict. --longest-test=<seconds> precedes GoogleTest's options. KOLO_TEST_VARIANT selects the
// tests of a variant. A run without any test fails.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>
#include <mpi.h>

#include "support/mpi/groups.hpp"
#include "support/mpi/mpi_ranks.hpp"
#include "support/mpi/variants.hpp"

namespace {

/// Below CTest's time limit by default, which would end the job without saying where it hung.
std::chrono::seconds longest_test(int argc, char** argv) {
  constexpr std::string_view kOption = "--longest-test=";
  const std::string_view first = argc > 1 ? argv[1] : "";
  if (!first.starts_with(kOption)) return std::chrono::seconds(240);
  return std::chrono::seconds(std::atoi(first.substr(kOption.size()).data()));
}

constexpr int kSkipped = 77;  // SKIP_RETURN_CODE of CTest

/// This rank's exit status.
int run_selected_tests() {
  const int status = RUN_ALL_TESTS();
  const testing::UnitTest& tests = *testing::UnitTest::GetInstance();
  if (tests.test_to_run_count() == 0) {
    std::puts("[  FAILED  ] no test was selected");
    return 1;
  }
  return status == 0 && tests.ad_hoc_test_result().Skipped() ? kSkipped : status;
}

int run_all_tests(std::chrono::seconds longest_test) {
  kolo::test::MpiRanks ranks(longest_test);
  const kolo::test::ProgramTraffic traffic;
  const kolo::test::Turn turn;
  auto& listeners = testing::UnitTest::GetInstance()->listeners();
  if (ranks.rank() != 0) delete listeners.Release(listeners.default_result_printer());
  listeners.Append(new kolo::test::MpiListener(ranks));  // GoogleTest owns it
  const std::vector<int> endings = ranks.gather(run_selected_tests(), "end of all tests");
  const auto failed = std::ranges::find_if(endings, [](int status) { return status % kSkipped; });
  return failed != endings.end() ? *failed : endings.front();
}

}  // namespace

int main(int argc, char** argv) {
  int provided = MPI_THREAD_SINGLE;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  testing::InitGoogleTest(&argc, argv);
  if (!kolo::test::variant().empty()) {
    GTEST_FLAG_SET(filter, kolo::test::filter_of_variant());
  }
  const int failed = run_all_tests(longest_test(argc, argv));
  MPI_Finalize();
  return failed;
}
