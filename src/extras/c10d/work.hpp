#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Event.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "extras/c10d/tensors.hpp"
#include "kolo/extras/c10d_backend.hpp"
#include "kolo/handle.hpp"
#include "kolo/torch/program_stream.hpp"

namespace kolo::c10d_backend {

constexpr std::chrono::hours kForEver{24 * 365};  // clocks count nanoseconds

class FutureThreads;

/// Operations of Kolo as one work of c10d.
class OperationWork final : public c10d::Work {
 public:
  struct Parts {
    c10d::OpType type = c10d::OpType::UNKNOWN;
    const char* title = nullptr;  ///< for LibTorch's profiler
    std::uint64_t sequence = 0;
    std::vector<Handle> handles{};
    std::vector<c10::intrusive_ptr<OperationWork>> works{};  ///< that this one consists of
    std::vector<at::Tensor> inputs{};                        ///< for the profiler
    std::vector<at::Tensor> outputs{};
    /// Runs once all of these have ended without an error, on the thread that notices; then what is
    /// to copy is copied.
    std::function<void()> finish{};
    Copies copies{};
    at::Device device{at::kCPU};  ///< of the tensors
    ProgramStream program{};      ///< of the operations: that was current at the call
    ProgramStream messages{};     ///< of CUDA tensors: results come after the work on this one
    /// On a GPU: what they use, let go once the work on `program` is ordered after theirs, since a
    /// host that runs ahead of its GPU would otherwise hold the memory of many operations.
    std::shared_ptr<std::vector<at::Tensor>> memory{};
    std::shared_ptr<int> sender{};  ///< of a receive: its rank in the group, once it has ended
    extras::Interpreter interpreter{};
  };

  /// @param futures the backend's; weak, since its threads may destroy the last work
  OperationWork(int rank, Parts parts, std::weak_ptr<FutureThreads> futures);

  bool isCompleted() override;
  int sourceRank() const override { return parts_.sender ? *parts_.sender : -1; }
  std::vector<at::Tensor> result() override { return parts_.outputs; }
  void synchronize() override { wait(); }
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  std::uint64_t getSequencenumber() const override { return parts_.sequence; }
  at::Device device() const { return parts_.device; }
  /// At the end of a backward() on the CPU: waits for the operations whose futures LibTorch has
  /// asked for in it. DDP does so next, but by the futures, which leaves the operations to other
  /// threads, and is not seen by metrics.
  static void wait_for_futures_of_backward();

 private:
  friend class FutureThreads;
  using Clock = std::chrono::steady_clock;

  bool is_point_to_point() const;
  bool has_ended();
  bool settle(Clock::time_point until, const ProgramStream& stream);
  void make_results(const ProgramStream& stream);
  void release_memory();
  bool wait_until(Clock::time_point until, const ProgramStream& stream);
  bool wait_and_check(Clock::time_point until, const ProgramStream& stream);
  void complete(c10::ivalue::Future& future);
  void notify_of_each(std::atomic<int>& left, const std::function<void()>& notice);

  Parts parts_;
  const std::weak_ptr<FutureThreads> futures_;
  std::timed_mutex use_;  // one thread at a time may use a handle
  std::exception_ptr error_;
  ProgramStream stream_;             // on which the results are, once the work has ended
  std::optional<c10::Event> event_;  // on that stream, since the first question whether it is done
  std::mutex future_lock_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

/// Completes futures of works. Its threads start with the first: two, as Gloo has, since a callback
/// of one future may wait for another. They make no progress themselves, since they share a core
/// with the program, which may compute.
class FutureThreads {
 public:
  static std::shared_ptr<FutureThreads> make();
  FutureThreads(const FutureThreads&) = delete;  // its threads refer to it
  FutureThreads& operator=(const FutureThreads&) = delete;
  /// Waits for the works that it expects.
  ~FutureThreads();

  void expect_one();
  /// The operations of a work that it expects have ended. Any thread, inside a step of the engine.
  void add(c10::intrusive_ptr<OperationWork> work);
  /// Whether the calling thread is one of these, and so a callback of a future.
  bool is_in_callback();

 private:
  FutureThreads() = default;
  void loop();

  std::mutex lock_;
  std::condition_variable changed_;
  std::deque<c10::intrusive_ptr<OperationWork>> works_;
  int expected_ = 0;
  bool is_stopping_ = false;
  std::array<std::thread, 2> threads_;
};

}  // namespace kolo::c10d_backend
