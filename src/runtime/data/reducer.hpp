#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kolo/compressor.hpp"
#include "kolo/task.hpp"
#include "ops/kernels/pieces.hpp"
#include "runtime/data/data_path.hpp"
#include "runtime/data/reduction_items.hpp"

namespace kolo::runtime {

/// Runs the reductions of a lane, all-reduce and reduce-scatter: packs what runs fused, converts
/// what is compressed or averaged in a wider type, and leaves everything else where it is.
class Reducer {
 public:
  explicit Reducer(const DataPath& path) : path_(path) {}

  /// All-reduces items that were asked for as `request` asks, one after another; small ones of one
  /// type that follow one another share a run.
  Task all_reduce(const Request& request, std::span<const ReductionItem> items, JoinedRanks joined);

  /// The same for a reduce-scatter of dimension 0.
  Task reduce_scatter(const Request& request, ReductionItem item, JoinedRanks joined);

  std::uint64_t bytes_packed() const { return bytes_packed_; }

 private:
  /// A buffer as an algorithm sees it, and which part of the result this rank keeps.
  struct Buffer {
    DType dtype;
    const std::byte* input;
    std::byte* output;
    std::size_t count;
    std::span<std::byte* const> peer_buffers{};
    std::span<const std::size_t> counts{};  // reduce-scatter
    ops::Range kept{};                      // of `count`, in `output`
  };

  /// Between a tensor and `wire_`, where the two differ.
  struct Passage {
    DType dtype;
    DType wire;
    const Compressor* compressor;  // null: plain conversion
  };

  Task reduce(Collective collective, const Request& request, Buffer buffer, JoinedRanks joined);
  Task all_reduce_packed(const Request& request, std::span<const ReductionItem> items,
                         JoinedRanks joined);
  Task to_wire(Passage passage, Reduction scale, const std::byte* tensor, std::size_t count);
  Task from_wire(Passage passage, const std::byte* wire, std::byte* tensor, std::size_t count);

  const DataPath& path_;
  std::vector<std::byte> packed_;  // of the running batch; kept, so that steady programs reuse it
  std::vector<std::byte> wire_;
  std::uint64_t bytes_packed_ = 0;
};

}  // namespace kolo::runtime
