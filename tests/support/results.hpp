#pragma once

namespace kolo::test {

constexpr int kSkipped = 77;  ///< SKIP_RETURN_CODE of CTest

/// Runs the tests that GoogleTest's filter selects, on this rank. If the environment has
/// KOLO_TEST_RESULTS, writes how many they are, and how each begins and ends, to the file of that
/// name and the rank, for tests/summary.py. Returns the exit status: 1 also if no test is selected,
/// kSkipped if an Environment has skipped all.
int run_selected_tests(int rank = 0, int ranks = 1);

}  // namespace kolo::test
