#pragma once

#include <cstddef>
#include <cstdint>
#include <ctime>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "bench/workload.hpp"

namespace bench {

/// The properties of a GPU on which measured times depend.
struct GpuDescription {
  std::string name{};    ///< empty: no GPU is measured
  std::string driver{};  ///< its version, and the newest CUDA that it knows
  std::string cuda{};    ///< the runtime's version
  std::string nccl{};
  std::string nccl_algo{};  ///< the algorithms that all of this process's communicators may use
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(GpuDescription, name, driver, cuda, nccl, nccl_algo)

/// The properties of MPI on which measured times depend.
struct MpiDescription {
  std::string library{};  ///< its name and version
  /// How a message is copied directly from one process's memory to another's inside a node: "cma"
  /// (if the kernel and the container allow it), "knem", "xpmem" …; "none": it is copied twice;
  /// "unknown": MPI does not say.
  std::string single_copy{};
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(MpiDescription, library, single_copy)

/// Describes the MPI that this process has initialized.
MpiDescription describe_mpi();

/// The reference that runs one call on all tensors of a group as if they were one tensor.
inline constexpr const char* kFlat = "flat";

/// Identifies a case; the same on all ranks.
struct Label {
  std::string algorithm;
  std::string placement;  ///< "staged": private memory; "window": shared; "private": MPI's
  bool in_place = true;
  std::string compression = "none";
  std::string reference{};  ///< the baseline that it belongs to; empty: none
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Label, algorithm, placement, in_place, compression, reference)

/// One way to run a workload.
struct Case {
  Label label;
  std::vector<Tensor> tensors;
  std::function<void()> run;
};

/// The times of consecutive calls of one case, over all ranks.
struct Block {
  std::vector<double> calls_us;  ///< each on its slowest rank; or only the block's mean
  double mean_us = 0;            ///< per call, on the slowest rank
  double cpu_s = 0;              ///< of all threads of all ranks, in the whole block
  double host_us = 0;            ///< per call, until it returns, on the slowest rank
};

/// CPU seconds of all threads of this process.
inline double process_cpu_s() {
  std::timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

/// Times the calls of a case on one rank and checks their results; one kind for CPU memory and one
/// for GPUs. All ranks make the same calls.
class Timer {
 public:
  virtual ~Timer() = default;

  /// A block as measured on this rank alone.
  virtual Block run(const Workload& workload, const Case& bench_case, int iterations) = 0;

  /// The number of wrong elements on this rank after a call on known inputs.
  virtual std::uint64_t count_wrong(const Workload& workload, const Case& bench_case) = 0;

  /// This rank's GPU, if the tensors are on it.
  virtual GpuDescription gpu() const { return {}; }
};

/// Times tensors in CPU memory, each call on its own: a call has finished its work when it returns.
/// MPI must be initialized.
class HostTimer final : public Timer {
 public:
  HostTimer();

  /// Every rank rewrites its whole input before each call, as programs do. Untouched data would
  /// still be in the cache of the rank that wrote it.
  Block run(const Workload& workload, const Case& bench_case, int iterations) override;
  std::uint64_t count_wrong(const Workload& workload, const Case& bench_case) override;

 private:
  int rank_ = 0;
  int ranks_ = 1;
};

/// One rank of a Job. MPI must be initialized. All ranks make the same calls.
class Worker {
 public:
  using MakeCases = std::function<std::vector<Case>(const Workload&)>;

  Worker(MakeCases make_cases, std::unique_ptr<Timer> timer);

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  GpuDescription gpu() const { return timer_->gpu(); }

  std::vector<Label> prepare(const Workload& workload);

  /// A block as measured on this rank alone.
  Block run(std::size_t case_index, int iterations);

  std::uint64_t count_wrong(std::size_t case_index);

 private:
  MakeCases make_cases_;
  std::unique_ptr<Timer> timer_;
  int rank_ = 0;
  int ranks_ = 1;
  Workload workload_;
  std::vector<Case> cases_;
};

/// The messages between the controller and the ranks.
///
///   rank: {"rank": r, "ranks": n, "pid": p, "gpu": {…}, "mpi": {…}}, once it is ready
///   {"do": "prepare", "workload": …}                      → {"labels": […]}
///   {"do": "run", "case": c, "iterations": k}             → {"calls_us": […], …}
///   {"do": "check", "case": c}                            → {"wrong": w}
///   {"do": "end"}                                         → the rank ends
///
/// In place of any answer: {"error": text, "is_usage": whether the command line caused it}, and the
/// rank ends.
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Workload, operation, dtype, counts)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Block, calls_us, mean_us, cpu_s, host_us)

/// The path of the socket on which this rank receives commands; empty without a controller.
std::string controller_socket();

/// Runs a rank under a controller: initializes MPI with `thread_level`, makes the worker, and
/// executes commands. It sleeps between commands, and reports errors to the controller. Returns the
/// process's exit status.
int serve(int thread_level, const std::function<Worker()>& make);

}  // namespace bench
