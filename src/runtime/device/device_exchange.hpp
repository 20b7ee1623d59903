#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "kolo/task.hpp"
#include "ops/kernels/pieces.hpp"
#include "runtime/data/reduction_items.hpp"
#include "runtime/device/device_path.hpp"
#include "runtime/device/device_plan.hpp"

namespace kolo::runtime {

/// Reductions on GPUs by direct exchange, as ops/allreduce_direct.cpp does them on the CPU:
///
///   1 contribute  every rank sends piece p of its elements to rank p, for all p
///   2 combine     rank p sums piece p of all ranks, in rank order, in float32 or float64
///   3 gather      rank p sends the result to all ranks
///
/// One rank combines all inputs of an element, so a sum has the same bits in every run and on any
/// number of nodes, and the same as in rank order on the CPU. A rank sends 2 (n-1)/n times the
/// elements, as in a ring. Staging memory holds the elements once, or twice if they are packed.
///
/// Adasum of a tensor is a weighted sum (see ops::AdasumWeights). Between 1 and 2 each rank
/// computes the dot products of the pieces that it has received, and those of all ranks are summed.
class DeviceExchange {
 public:
  /// `path` outlives it.
  explicit DeviceExchange(const DevicePath& path) : path_(path) {}

  /// `plan` must be direct. The communicator is ready before and after the call.
  Task all_reduce(const DevicePlan& plan, std::span<const ReductionItem> items);
  /// Each rank keeps `counts[rank]` elements.
  Task reduce_scatter(const DevicePlan& plan, ReductionItem item,
                      std::span<const std::size_t> counts);

 private:
  /// The piece that this rank combines: the inputs of all ranks, and the result.
  struct Piece {
    std::byte* received;
    std::byte* result;
    ops::Range own;  // of all elements
  };
  /// Adasum's memory: matrices of dot products, weights, and partial matrices.
  struct Products {
    std::byte* matrices;
    std::byte* weights;
    std::byte* partial;
  };

  std::size_t rank() const { return static_cast<std::size_t>(path_.communicator.rank()); }
  std::size_t size() const { return static_cast<std::size_t>(path_.communicator.size()); }
  Task contribute(const std::byte* from, std::span<const std::size_t> counts, DType wire,
                  std::byte* received);
  Task combine_adasum(const DevicePlan& plan, std::span<const ReductionItem> items, Piece piece,
                      Products products);
  comm::DeviceVectors vectors_of(const DevicePlan& plan, Piece piece, ops::Range range) const;
  void add_up(const DevicePlan& plan, Piece piece, ops::Range range, const double* weights);

  const DevicePath& path_;
};

}  // namespace kolo::runtime
