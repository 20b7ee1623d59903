#include "programs/random_program.hpp"

#include "programs/program_builder.hpp"

namespace kolo::programs {
namespace {

constexpr int kMinOperations = 44;
constexpr std::uint64_t kSizes = 3;

}  // namespace

Program random_program(std::uint64_t seed, int size) {
  ProgramBuilder builder(seed, size);
  while (builder.operation_count() < kMinOperations) {
    switch (builder.random().between(0, 11)) {
      case 0: builder.add_set(); break;
      case 1: builder.remove_set(); break;
      case 2: builder.add_buffer(); break;
      case 3: builder.add_join(); break;
      case 4: builder.add_expiry(); break;
      case 5: builder.add_disagreements(); break;
      default: builder.add_loop(); break;
    }
  }
  builder.add_end();
  return builder.take();
}

int random_size(std::uint64_t seed) { return 2 + static_cast<int>(seed % kSizes); }

}  // namespace kolo::programs
