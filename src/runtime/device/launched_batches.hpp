#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "comm/gpu/gpu.hpp"
#include "runtime/data/operation.hpp"

namespace kolo::runtime {

/// Batches that were launched on a GPU, each kept until the GPU has finished it.
///
/// A separate thread queries the GPU. A query may block inside CUDA for as long as another thread
/// of the program waits for the GPU, and must not block a thread that other ranks need.
class LaunchedBatches {
 public:
  /// `began`, `done`: timers around the batch.
  struct Batch {
    std::shared_ptr<CUevent_st> began;
    std::shared_ptr<CUevent_st> done;
    std::shared_ptr<void> mark;  // for profilers
    Operation::Clock::time_point give_up_at;
    Operations operations;
    std::vector<std::shared_ptr<void>> owners;  // of other memory
  };

  LaunchedBatches() = default;
  LaunchedBatches(const LaunchedBatches&) = delete;  // its thread refers to it
  LaunchedBatches& operator=(const LaunchedBatches&) = delete;
  ~LaunchedBatches() { end(); }

  /// All batches are on one GPU and one stream, added in the order of their launch.
  void add(comm::Gpu& gpu, Batch batch);
  /// Whether the GPU has finished all batches. Throws the error of a failed query.
  bool empty();
  /// Describes the first batch if it has not ended at its `give_up_at`; otherwise empty.
  std::string overdue(Operation::Clock::time_point now);
  /// Time that finished batches took on the GPU.
  double seconds();
  /// Ends the thread without waiting for batches.
  void end();
  /// Stops querying, without waiting for a query in progress: no more batches are released. The
  /// object must then live as long as the process.
  void abandon();

 private:
  void stop();
  void release_ended(comm::Gpu& gpu);

  std::mutex lock_;
  std::condition_variable changed_;
  std::deque<Batch> batches_;
  double seconds_ = 0.0;
  std::exception_ptr error_;
  bool is_stopping_ = false;
  std::thread thread_;  // from the first call of add() on
};

}  // namespace kolo::runtime
