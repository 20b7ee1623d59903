// main of the tests that run under mpirun: all ranks run all tests in step and end with the same
// verdict. --longest-test=<seconds> precedes GoogleTest's options.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>
#include <mpi.h>

#include "support/mpi/groups.hpp"
#include "support/mpi/mpi_listener.hpp"
#include "support/mpi/mpi_ranks.hpp"

namespace {

/// Below CTest's time limit by default, which would end the job without saying where it hung.
std::chrono::seconds longest_test(int argc, char** argv) {
  constexpr std::string_view kOption = "--longest-test=";
  const std::string_view first = argc > 1 ? argv[1] : "";
  if (!first.starts_with(kOption)) return std::chrono::seconds(90);
  return std::chrono::seconds(std::atoi(first.substr(kOption.size()).data()));
}

int run_all_tests(std::chrono::seconds longest_test) {
  kolo::test::MpiRanks ranks(longest_test);
  const kolo::test::ProgramTraffic traffic;
  const kolo::test::Turn turn;
  auto& listeners = testing::UnitTest::GetInstance()->listeners();
  if (ranks.rank() != 0) delete listeners.Release(listeners.default_result_printer());
  listeners.Append(new kolo::test::MpiListener(ranks));  // GoogleTest owns it
  const std::vector<int> failed = ranks.gather(RUN_ALL_TESTS(), "end of all tests");
  return *std::max_element(failed.begin(), failed.end());
}

}  // namespace

int main(int argc, char** argv) {
  int provided = MPI_THREAD_SINGLE;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  testing::InitGoogleTest(&argc, argv);
  const int failed = run_all_tests(longest_test(argc, argv));
  MPI_Finalize();
  return failed;
}
