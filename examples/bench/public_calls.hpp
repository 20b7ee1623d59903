#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "bench/rank.hpp"
#include "bench/workload.hpp"
#include "kolo/collectives.hpp"

namespace bench {

inline constexpr int kRoot = 0;  ///< of broadcasts

/// The arguments of Kolo's public calls other than the tensors.
struct Calls {
  Operation operation;
  kolo::DType dtype;
  int ranks;
  std::string name;  ///< of a group; single tensors append a suffix
  std::string compression;
  kolo::Device device{};   ///< of the tensors
  void* stream = nullptr;  ///< the program's, on a GPU

  kolo::TensorView view(std::byte* data, std::size_t count) const;
  kolo::TensorView input(const Tensor& tensor) const;
  kolo::TensorView output(const Tensor& tensor) const;
  kolo::OperationOptions options(const std::string& suffix = "") const;
  kolo::AllreduceOptions reduce_options(const std::string& suffix = "") const;
};

/// Runs all tensors as one group.
void run_group(const Calls& calls, const std::vector<Tensor>& tensors);

/// Runs one named operation per tensor, all in flight together.
void run_each(const Calls& calls, const std::vector<Tensor>& tensors,
              const std::vector<std::string>& suffixes);

/// Name suffixes for `count` tensors.
std::vector<std::string> suffixes_of(std::size_t count);

/// Adds the calls on `tensors` that are wanted: the whole path, or for gradients one operation per
/// tensor, and one group. Their algorithms complete `label`, and precede the name of `calls`.
void add_calls(const Label& label, const Calls& calls, const std::vector<Tensor>& tensors,
               bool is_gradients, const std::function<bool(const std::string&)>& is_wanted,
               std::vector<Case>& cases);

/// Gradients in the buckets that DistributedOptimizer would make of them.
struct BucketLayout {
  Layout buckets;    ///< what is reduced: each bucket as one tensor
  Layout gradients;  ///< inside the buckets, in their order
};

BucketLayout plan_buckets(const Workload& gradients, bool is_on_gpu);

}  // namespace bench
