#include "runtime/data/host_backend.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <span>

#include "base/convert.hpp"
#include "ops/algorithms.hpp"
#include "ops/kernels/kernels.hpp"

namespace kolo::runtime {
namespace {

constexpr std::size_t kPieceElements = std::size_t{32} << 10;

void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

/// Whether scaling changes the identity, which joined ranks contribute.
bool has_fragile_identity(ReduceOp op) {
  return op == ReduceOp::Min || op == ReduceOp::Max || op == ReduceOp::Product ||
         op == ReduceOp::BitAnd;
}

}  // namespace

Task HostBackend::reduce(std::span<const Reductions> reductions) {
  for (const Reductions& alike : reductions) co_await reduce(alike);
}

Task HostBackend::reduce(const Reductions& alike) {
  const Request& request = *alike.request;
  const bool has_codec = set_.choices.compressors.find_codec(request.compression) != nullptr;
  const bool can_pack = set_.config.fusion && request.op != ReduceOp::Adasum && !has_codec &&
                        request.collective == Collective::AllReduce;
  const auto rank = static_cast<std::size_t>(set_.communicator->rank());
  std::size_t length = 1;
  for (std::size_t i = 0; i < alike.items.size(); i += length) {
    const std::span<const ReductionItem> items = std::span(alike.items).subspan(i);
    if (can_pack) length = fused_run(items, set_.config.fusion_bytes);
    if (length > 1) {
      co_await reduce_packed(request, items.first(length), alike.joined);
      continue;
    }
    const auto [type, memory] = items.front();
    Buffer buffer{.dtype = type->dtype,
                  .input = memory->input,
                  .output = memory->output,
                  .count = type->count(),
                  .peer_buffers = memory->peer_buffers,
                  .kept = {0, type->count()},
                  .residual = memory->residual};
    if (!alike.counts.empty()) {
      buffer.counts = alike.counts[i];
      buffer.kept = ops::ranges_of(buffer.counts)[rank];
    }
    co_await reduce(request, buffer, alike.joined);
  }
}

Task HostBackend::reduce_packed(const Request& request, std::span<const ReductionItem> items,
                                JoinedRanks joined) {
  std::size_t count = 0;
  for (const ReductionItem& item : items) count += item.type->count();
  const DType dtype = items[0].type->dtype;
  const std::size_t size_bytes = count * size_of(dtype);
  if (packed_.size() < size_bytes) packed_.resize(size_bytes);
  std::byte* place = packed_.data();
  for (const ReductionItem& item : items) {
    copy_bytes(place, item.memory->input, item.type->size_bytes());
    place += item.type->size_bytes();
  }
  bytes_packed_ += size_bytes;
  const Buffer buffer{.dtype = dtype,
                      .input = packed_.data(),
                      .output = packed_.data(),
                      .count = count,
                      .kept = {0, count}};
  co_await reduce(request, buffer, joined);
  place = packed_.data();
  for (const ReductionItem& item : items) {
    copy_bytes(item.memory->output, place, item.type->size_bytes());
    place += item.type->size_bytes();
  }
}

Task HostBackend::move(Collective collective, std::span<const Move> moves) {
  for (const auto& [call, bytes] : moves) {
    const bool has_peer_buffers = !call.peer_buffers.empty();
    co_await set_.choose(collective, bytes, ReduceOp::Sum, has_peer_buffers, call.shares_output)
        .run(call);
  }
}

CollectiveCall HostBackend::make_call(const Request& request, const Buffer& buffer,
                                      const ops::ReductionPlan& plan,
                                      const Compressor* compressor) const {
  CollectiveCall call = set_.make_call();
  call.input = buffer.input;
  call.output = buffer.output;
  call.count = buffer.count;
  call.counts = buffer.counts;
  call.dtype = compressor != nullptr ? buffer.dtype : plan.wire;
  call.compressor = compressor;
  call.reduction = plan.reduction;
  if (request.op == ReduceOp::Custom) {
    call.reduction.custom = &set_.choices.find_reduction(request.custom);
  }
  return call;
}

Task HostBackend::reduce(const Request& request, Buffer buffer, JoinedRanks joined) {
  const compression::Registry& compressors = set_.choices.compressors;
  const Codec* const codec = compressors.find_codec(request.compression);
  if (request.compression_scope == CompressionScope::BetweenNodes) {
    if (set_.nodes && compresses(request, buffer.dtype)) {
      return reduce_between_nodes(request, buffer, joined);
    }
    return reduce_by_choice(request, buffer, joined, compressors.find("none"));
  }
  if (codec != nullptr && is_floating(buffer.dtype) && set_.communicator->size() > 1) {
    return reduce_coded(request, buffer, joined, *codec);
  }
  return reduce_by_choice(request, buffer, joined, compressors.find(request.compression));
}

/// Runs the chosen algorithm.
Task HostBackend::reduce_by_choice(const Request& request, Buffer buffer, JoinedRanks joined,
                                   const Compressor& compressor) {
  const DType payload = compressor.wire_dtype(buffer.dtype);
  const bool is_compressed = payload != buffer.dtype;
  const bool is_widened = ops::wire_dtype(payload, request.op) != payload;
  const bool is_prescaled =
      joined.count > 0 && request.prescale != 1.0 && has_fragile_identity(request.op);
  // Peers can access neither payloads nor the memory of a joined rank.
  const bool has_peer_buffers = !buffer.peer_buffers.empty() && !is_compressed && !is_widened &&
                                !is_prescaled && joined.count == 0;
  const Algorithm& algorithm = set_.choose(request.collective, buffer.count * size_of(payload),
                                           request.op, has_peer_buffers);
  const bool compresses_in_transit = is_compressed && algorithm.compresses && !is_prescaled;
  // Converted tensors are reduced in a copy.
  const bool is_copied = is_widened || is_prescaled || (is_compressed && !compresses_in_transit);
  const ops::ReductionPlan plan = ops::plan_reduction(
      payload, request.op, is_prescaled ? 1.0 : request.prescale, request.postscale,
      algorithm.rank_ordered, divisor_of(request, joined, set_.communicator->size()));

  CollectiveCall call =
      make_call(request, buffer, plan, compresses_in_transit ? &compressor : nullptr);
  if (has_peer_buffers) call.peer_buffers = buffer.peer_buffers;
  // Either compression, or integers widened for an exact average; never both.
  const Conversion conversion{buffer.dtype, plan.wire,
                              payload == plan.wire ? &compressor : nullptr};
  if (is_copied) {
    const Reduction factor{request.op, is_prescaled && !joined.is_here ? request.prescale : 1.0};
    co_await to_wire(conversion, factor, buffer.input, buffer.count);
    call.input = wire_.data();
    call.output = wire_.data() + buffer.kept.begin * size_of(plan.wire);
  }
  co_await algorithm.run(call);
  if (plan.divisor != 1) {
    ops::divide({reinterpret_cast<std::int64_t*>(call.output), buffer.kept.length}, plan.divisor);
  }
  if (is_copied) co_await from_wire(conversion, call.output, buffer.output, buffer.kept.length);
}

Task HostBackend::reduce_coded(const Request& request, const Buffer& buffer, JoinedRanks joined,
                               const Codec& codec) {
  const int divisor = divisor_of(request, joined, set_.communicator->size());
  // Sums are float32, whatever the tensor's type.
  const ops::ReductionPlan plan = ops::plan_reduction(DType::Float32, request.op, request.prescale,
                                                      request.postscale, true, divisor);
  CollectiveCall call = make_call(request, buffer, plan, nullptr);
  call.dtype = buffer.dtype;
  call.codec = &codec;
  call.residual = buffer.residual;
  return request.collective == Collective::AllReduce ? ops::allreduce_coded(call)
                                                     : ops::reduce_scatter_coded(call);
}

bool HostBackend::compresses(const Request& request, DType dtype) const {
  const compression::Registry& compressors = set_.choices.compressors;
  if (compressors.find_codec(request.compression) != nullptr) return is_floating(dtype);
  return compressors.find(request.compression).wire_dtype(dtype) != dtype;
}

/// Reduces a float32 copy of 16-bit floats.
Task HostBackend::reduce_between_nodes(const Request& request, Buffer buffer, JoinedRanks joined) {
  const compression::Registry& compressors = set_.choices.compressors;
  const Codec* const codec = compressors.find_codec(request.compression);
  const Compressor* const compressor =
      codec == nullptr ? &compressors.find(request.compression) : nullptr;
  const DType reduced = buffer.dtype == DType::Float64 ? DType::Float64 : DType::Float32;
  ops::ReductionPlan plan =
      ops::plan_reduction(compressor != nullptr ? compressor->wire_dtype(reduced) : DType::Float32,
                          request.op, request.prescale, request.postscale, codec != nullptr,
                          divisor_of(request, joined, set_.communicator->size()));
  plan.wire = reduced;
  CollectiveCall call = make_call(request, buffer, plan, nullptr);
  call.compressor = compressor;
  call.codec = codec;
  call.residual = buffer.residual;
  const Conversion conversion{buffer.dtype, reduced, nullptr};
  if (buffer.dtype != reduced) {
    co_await to_wire(conversion, {}, buffer.input, buffer.count);
    call.input = call.output = wire_.data();
  }
  co_await ops::allreduce_between_nodes(call);
  if (buffer.dtype != reduced) {
    co_await from_wire(conversion, call.output, buffer.output, buffer.count);
  }
}

// In pieces that stay in cache, with a yield after each to keep progress steps short.

Task HostBackend::to_wire(Conversion conversion, Reduction scale, const std::byte* tensor,
                          std::size_t count) {
  const std::size_t wire_bytes = count * size_of(conversion.wire);
  if (wire_.size() < wire_bytes) wire_.resize(wire_bytes);
  for (std::size_t done = 0; done < count; done += kPieceElements) {
    const std::size_t length = std::min(kPieceElements, count - done);
    const std::byte* const from = tensor + done * size_of(conversion.dtype);
    std::byte* const to = wire_.data() + done * size_of(conversion.wire);
    if (conversion.dtype == conversion.wire) {
      copy_bytes(to, from, length * size_of(conversion.dtype));
    } else if (conversion.compressor != nullptr) {
      conversion.compressor->compress(conversion.dtype, from, length, to);
    } else {
      base::convert(conversion.dtype, from, conversion.wire, to, length);
    }
    if (scale.prescale != 1.0) {
      const std::array<const std::byte*, 1> inputs{to};
      const std::array<std::byte*, 1> outputs{to};
      ops::combine(conversion.wire, scale, inputs, outputs, length);
    }
    co_await yield();
  }
  bytes_packed_ += wire_bytes;
}

Task HostBackend::from_wire(Conversion conversion, const std::byte* wire, std::byte* tensor,
                            std::size_t count) {
  for (std::size_t done = 0; done < count; done += kPieceElements) {
    const std::size_t length = std::min(kPieceElements, count - done);
    const std::byte* const from = wire + done * size_of(conversion.wire);
    std::byte* const to = tensor + done * size_of(conversion.dtype);
    if (conversion.dtype == conversion.wire) {
      copy_bytes(to, from, length * size_of(conversion.dtype));
    } else if (conversion.compressor != nullptr) {
      conversion.compressor->decompress(conversion.dtype, from, length, to);
    } else {
      base::convert(conversion.wire, from, conversion.dtype, to, length);
    }
    co_await yield();
  }
}

}  // namespace kolo::runtime
