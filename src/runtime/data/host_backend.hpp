#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kolo/compressor.hpp"
#include "kolo/task.hpp"
#include "ops/kernels/pieces.hpp"
#include "ops/steps/reduction_plan.hpp"
#include "runtime/data/backend.hpp"
#include "runtime/data/operation.hpp"
#include "runtime/data/set_context.hpp"
#include "runtime/protocol/request.hpp"

namespace kolo::runtime {

/// Runs collectives on host memory with the algorithms of ops/. Reductions are packed if they are
/// fused, converted if they are compressed or averaged in a wider type, and otherwise run in place.
class HostBackend final : public Backend {
 public:
  explicit HostBackend(const SetContext& set) : set_(set) {}

  Task make_room(std::span<const Reductions>) override { co_return; }  // vectors grow
  Task reduce(std::span<const Reductions> reductions) override;
  Task move(Collective collective, std::span<const Move> moves) override;
  bool may_allocate(const Operation&) override { return true; }
  void await_allocation(const Operation&) override {}

  std::uint64_t bytes_packed() const { return bytes_packed_; }

 private:
  /// A buffer as an algorithm sees it, and the part of the result that this rank keeps.
  struct Buffer {
    DType dtype;
    const std::byte* input;
    std::byte* output;
    std::size_t count;
    std::span<std::byte* const> peer_buffers{};
    std::span<const std::size_t> counts{};  // reduce-scatter
    ops::Range kept{};                      // of `count`, in `output`
    float* residual = nullptr;              // of a codec, for all of `count`
  };

  /// From a tensor to `wire_` and back, if the two differ.
  struct Conversion {
    DType dtype;
    DType wire;
    const Compressor* compressor;  // null: plain conversion
  };

  CollectiveCall make_call(const Request& request, const Buffer& buffer,
                           const ops::ReductionPlan& plan, const Compressor* compressor) const;
  Task reduce(const Reductions& alike);
  Task reduce(const Request& request, Buffer buffer, JoinedRanks joined);
  Task reduce_by_choice(const Request& request, Buffer buffer, JoinedRanks joined,
                        const Compressor& compressor);
  Task reduce_coded(const Request& request, const Buffer& buffer, JoinedRanks joined,
                    const Codec& codec);
  /// Whether the request's compression changes tensors of that type.
  bool compresses(const Request& request, DType dtype) const;
  Task reduce_between_nodes(const Request& request, Buffer buffer, JoinedRanks joined);
  Task reduce_packed(const Request& request, std::span<const ReductionItem> items,
                     JoinedRanks joined);
  Task to_wire(Conversion conversion, Reduction scale, const std::byte* tensor, std::size_t count);
  Task from_wire(Conversion conversion, const std::byte* wire, std::byte* tensor,
                 std::size_t count);

  const SetContext& set_;
  std::vector<std::byte> packed_;  // of the running batch; kept for reuse
  std::vector<std::byte> wire_;
  std::uint64_t bytes_packed_ = 0;
};

}  // namespace kolo::runtime
