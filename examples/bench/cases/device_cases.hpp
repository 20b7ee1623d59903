#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bench/cases/case.hpp"
#include "bench/cases/public_calls.hpp"
#include "bench/options.hpp"
#include "bench/ranks/gpu.hpp"
#include "bench/workload/growing_buffer.hpp"

namespace bench {

/// What the processes of a job on GPUs measure.
struct DeviceRole {
  bool has_kolo = true;
  /// The reference name of NCCL's own calls, which says what algorithms NCCL may use; empty: these
  /// calls are not measured.
  std::string nccl{};
};

/// NCCL in Kolo's processes, with the same choice of algorithms as Kolo's communicators.
inline constexpr const char* kNcclBesideKolo = "NCCL";
/// NCCL in separate processes: with rings only, and with its own choice of algorithms.
inline constexpr const char* kNcclRing = "ring";
inline constexpr const char* kNcclAuto = "auto";

/// Kolo's whole path and NCCL's own calls on a GPU, on the same memory and the same stream.
class DeviceCases {
 public:
  /// Connects the GPUs. Collective. If the role has Kolo, the calling thread must have a current
  /// Runtime. `options` and `gpu` must outlive the cases. Throws kolo::InvalidArgument on all ranks
  /// if two of them use the same GPU and KOLO_SHARE_GPU is off.
  DeviceCases(const Options& options, DeviceRole role, int rank, int ranks, Gpu& gpu);
  DeviceCases(const DeviceCases&) = delete;  // cases point into it
  DeviceCases& operator=(const DeviceCases&) = delete;

  /// The cases that can run `workload`; valid until the next call.
  std::vector<Case> make(const Workload& workload);

  /// The memory that holds all tensors.
  const GrowingBuffer& memory() const { return memory_; }

 private:
  void connect_kolo();
  void add_kolo(const Workload& workload, bool in_place, std::vector<Case>& cases);
  void add_buckets(const Workload& workload, std::vector<Case>& cases);
  void add_raw(const Workload& workload, bool in_place, std::vector<Case>& cases);
  Layout layout_of(const Workload& workload, bool in_place) const;
  Calls calls_of(const Workload& workload, const Label& label) const;
  bool is_wanted(const std::string& algorithm) const;

  const Options& options_;
  DeviceRole role_;
  int rank_;
  int ranks_;
  Gpu& gpu_;
  GrowingBuffer memory_;
  std::unique_ptr<RawCollectives> raw_;
};

}  // namespace bench
