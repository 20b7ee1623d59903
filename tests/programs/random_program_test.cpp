#include "programs/random_program.hpp"

#include <memory>
#include <string>

#include <gtest/gtest.h>

#include "programs/run_program.hpp"
#include "support/sanitizers.hpp"

namespace kolo::programs::random_program_test {

RunOptions options_for(std::uint64_t seed) {
  RunOptions options;
  options.replay = "program_gate --seed " + std::to_string(seed) + " --trace";
  return options;
}

TEST(RandomProgramTest, IsTheSameForOneSeed) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    EXPECT_EQ(describe(random_program(seed, 3)), describe(random_program(seed, 3)));
    EXPECT_NE(describe(random_program(seed, 3)), describe(random_program(seed + 1, 3)));
  }
}

TEST(RandomProgramTest, GoesAsTheReferenceSays) {
  constexpr std::uint64_t kSeeds = test::kIsSanitized ? 9 : 24;
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const RunOptions options = options_for(seed);
    EXPECT_EQ(run_in_threads(random_program(seed, random_size(seed)), options), "")
        << "seed " << seed << "; replay: " << options.replay;
  }
}

/// A program of one all-reduce of ten numbers.
Program small_program() {
  Program program;
  program.size = 3;
  program.config.log_level = "error";
  program.sets = {{0, 1, 2}};
  Operation operation;
  operation.name = "n";
  operation.tensors = {{DType::Int32, {10}}};
  operation.submitters = program.sets[0];
  program.operations = {operation};
  program.rounds = {{{0}, std::nullopt}};
  return program;
}

TEST(RandomProgramTest, FindsAWrongValue) {
  Program program = small_program();
  EXPECT_EQ(run_in_threads(program, options_for(0)), "");
  Operation other = program.operations[0];
  other.id = 1;  // other inputs
  program.operations[0].outlier = 2;
  program.operations[0].variant = std::make_shared<const Operation>(other);
  const std::string failures = run_in_threads(program, options_for(0));
  for (const char* const rank : {"rank 0", "rank 1", "rank 2"}) {
    EXPECT_NE(failures.find(rank), std::string::npos) << failures;
  }
  EXPECT_NE(failures.find("element 0 of 10: expected"), std::string::npos) << failures;
}

TEST(RandomProgramTest, FindsAMissingError) {
  Program program = small_program();
  program.operations[0].error = ErrorKind::Mismatch;
  const std::string failures = run_in_threads(program, options_for(0));
  EXPECT_NE(failures.find("expected MismatchError to be thrown, got nothing"), std::string::npos)
      << failures;
}

}  // namespace kolo::programs::random_program_test
