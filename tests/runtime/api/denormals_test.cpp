// Denormal numbers, on threads that flush them to zero.
#include <cstddef>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "kolo/collectives.hpp"
#include "runtime/runtimes.hpp"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace kolo::test::denormals_test {

/// As torch::globalContext().setFlushDenormal(true), on this thread.
bool flush_denormals() {
#if defined(__x86_64__)
  _mm_setcsr(_mm_getcsr() | 0x8040);
  return true;
#else
  return false;
#endif
}

// The thread that waits and Kolo's own thread, started before, both sum.
TEST(DenormalsTest, AreSummedWhateverTheCallersMode) {
  for (const Setting& setting : three_ranks()) {
    run_runtimes(setting, [](Runtime& runtime) {
      if (!flush_denormals()) GTEST_SKIP() << "no way to flush denormals is known here";
      for (const std::size_t count : {std::size_t{3}, std::size_t{100000}}) {
        // A denormal number is a multiple of the smallest one: its bits as an integer.
        std::vector<std::uint32_t> bits(count);
        const auto rank = static_cast<std::uint32_t>(runtime.rank());
        for (std::size_t i = 0; i < count; ++i) {
          bits[i] = (rank + 1) * (static_cast<std::uint32_t>(i % 1000) + 1);
        }
        const TensorView view{bits.data(), DType::Float32, {static_cast<std::int64_t>(count)}, {}};
        allreduce(view, view, {.op = ReduceOp::Sum});
        for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(bits[i], 6 * (i % 1000 + 1)) << i;
      }
#if defined(__x86_64__)
      EXPECT_EQ(_mm_getcsr() & 0x8040, 0x8040U) << "the caller's mode is the caller's";
#endif
    });
  }
}

}  // namespace kolo::test::denormals_test
