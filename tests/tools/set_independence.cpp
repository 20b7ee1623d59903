// Measures how long all-reduces of one process set take while a rank sleeps for 2 s inside an
// operation of another set of the same ranks:
//
//   mpirun -np 2 set_independence
//
// Runs twice: the background thread drives the sleeping operation, or a caller that waits for it.
// Exit code 1 if an all-reduce takes 50 ms longer than the longest one without a sleeping rank.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <thread>
#include <vector>

#include "kolo/collectives.hpp"
#include "kolo/runtime.hpp"

namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::duration<double, std::milli>;

constexpr auto kSleep = std::chrono::seconds(2);
constexpr Milliseconds kAllowed{50};

Milliseconds time_of_allreduce() {
  std::vector<float> values(1000, 1.0F + static_cast<float>(kolo::rank()));
  const kolo::TensorView view{values.data(), kolo::DType::Float32, {1000}, {}};
  const auto start = Clock::now();
  kolo::allreduce(view, view, {.op = kolo::ReduceOp::Sum, .name = "free"});
  return Clock::now() - start;
}

/// Whether the condition holds on any rank: all ranks must run the same number of iterations.
bool is_true_on_any_rank(bool mine) {
  std::int32_t value = mine ? 1 : 0;
  const kolo::TensorView view{&value, kolo::DType::Int32, {1}, {}};
  kolo::allreduce(view, view, {.op = kolo::ReduceOp::Max, .name = "goes on"});
  return value != 0;
}

struct Times {
  int count = 0;
  Milliseconds longest{0};
};

Times times_while(const std::function<bool()>& should_continue) {
  Times times;
  do {
    times.longest = std::max(times.longest, time_of_allreduce());
    ++times.count;
  } while (is_true_on_any_rank(should_continue()));
  return times;
}

Times times_beside_a_sleeper(kolo::ProcessSet& other, bool is_driven_by_a_caller) {
  std::atomic<bool> sleeps{false};
  std::vector<float> output;
  const auto allocate = [&](const std::vector<std::int64_t>& rows) -> void* {
    if (kolo::rank() == 0) {
      sleeps = true;
      std::this_thread::sleep_for(kSleep);
      sleeps = false;
    }
    output.resize(static_cast<std::size_t>(rows.front()) * rows.size());
    return output.data();
  };
  std::vector<float> input(4);
  kolo::Handle handle = kolo::allgather_async({input.data(), kolo::DType::Float32, {4}, {}},
                                              allocate, {.name = "held", .process_set = &other});
  std::thread caller;
  if (is_driven_by_a_caller) caller = std::thread([&] { handle.wait(); });
  while (kolo::rank() == 0 && !sleeps) std::this_thread::yield();
  const Times times = times_while([&] { return sleeps.load(); });
  if (caller.joinable()) {
    caller.join();
  } else {
    handle.wait();
  }
  return times;
}

}  // namespace

int main() {
  kolo::Runtime runtime;
  kolo::ProcessSet& other = runtime.add_process_set(runtime.world().ranks());
  const auto end = Clock::now() + kSleep;
  const Times alone = times_while([&] { return Clock::now() < end; });
  bool is_independent = true;
  const auto report = [&](const char* what, const Times& times) {
    std::printf("rank %d: %s: %d all-reduces, the longest took %.2f ms\n", kolo::rank(), what,
                times.count, times.longest.count());
    is_independent = is_independent && times.longest < alone.longest + kAllowed;
  };
  report("nobody sleeps", alone);
  report("beside one that sleeps", times_beside_a_sleeper(other, false));
  report("beside one that sleeps, driven by a caller", times_beside_a_sleeper(other, true));
  return is_independent ? 0 : 1;
}
