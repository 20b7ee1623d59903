// Operations leak no memory, however many there are.
//
// Counts the bytes that `new` has allocated and `delete` has not freed, in the whole process.
#include <atomic>
#include <barrier>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <malloc.h>
#include <new>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kolo/collectives.hpp"
#include "runtime/runtimes.hpp"

namespace {

std::atomic<std::int64_t> live_bytes{0};

void* count(void* memory) {
  if (memory == nullptr) throw std::bad_alloc();
  live_bytes += static_cast<std::int64_t>(malloc_usable_size(memory));
  return memory;
}

void release(void* memory) {
  if (memory == nullptr) return;
  live_bytes -= static_cast<std::int64_t>(malloc_usable_size(memory));
  std::free(memory);
}

}  // namespace

void* operator new(std::size_t size) { return count(std::malloc(size)); }
void* operator new[](std::size_t size) { return count(std::malloc(size)); }
void operator delete(void* memory) noexcept { release(memory); }
void operator delete[](void* memory) noexcept { release(memory); }
void operator delete(void* memory, std::size_t) noexcept { release(memory); }
void operator delete[](void* memory, std::size_t) noexcept { release(memory); }

namespace kolo::test {
namespace {

// More than the table of requests, which is small here, and the history can hold.
constexpr int kOperations = 2'400;
// A few bytes per operation: buffers that grow by doubling may do so once.
constexpr std::int64_t kAllowedBytes = 16'000;

class MemoryTest : public testing::TestWithParam<Setting> {
 protected:
  /// By how many bytes memory grows from the first `kOperations` operations to the second.
  template <class Operation>
  std::int64_t growth_over(Operation operation) {
    std::barrier both_arrived(2);
    std::int64_t before = 0;
    std::int64_t after = 0;
    const auto run_many = [&](int rank, int first, std::int64_t& bytes) {
      for (int i = first; i < first + kOperations; ++i) operation(i);
      both_arrived.arrive_and_wait();
      if (rank == 0) bytes = live_bytes;
      both_arrived.arrive_and_wait();
    };
    Setting setting = GetParam();
    setting.config.tuning.table_capacity = 64;
    run_runtimes(setting, [&](Runtime& runtime) {
      run_many(runtime.rank(), 0, before);
      run_many(runtime.rank(), kOperations, after);
    });
    return after - before;
  }
};

INSTANTIATE_TEST_SUITE_P(, MemoryTest,
                         testing::Values(Setting{.name = "Shared"},
                                         Setting{.name = "Messages", .network = {.nodes = 2}}),
                         [](const auto& setting) { return setting.param.name; });

/// Cycles through three kinds of operations.
void run_operation(int i, const std::string& name) {
  float value = 1.0F;
  const TensorView view{&value, DType::Float32, {1}, {}};
  float gathered[2];
  switch (i % 3) {
    case 0: barrier({.name = name}); break;
    case 1: allreduce(view, view, {.name = name}); break;
    default:
      allgather(view, [&](const std::vector<std::int64_t>&) -> void* { return gathered; },
                {.name = name});
  }
}

TEST_P(MemoryTest, UnnamedOperationsLeaveNothingBehind) {
  EXPECT_LT(growth_over([](int i) { run_operation(i, {}); }), kAllowedBytes);
}

TEST_P(MemoryTest, NamesThatComeOnceLeaveNothingBehind) {
  const auto operation = [](int i) { run_operation(i, "step " + std::to_string(i)); };
  EXPECT_LT(growth_over(operation), kAllowedBytes);
}

}  // namespace
}  // namespace kolo::test
