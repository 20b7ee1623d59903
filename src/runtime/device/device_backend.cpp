#include "runtime/device/device_backend.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "compression/registry.hpp"
#include "kolo/error.hpp"
#include "ops/kernels/pieces.hpp"
#include "ops/steps/reduction_plan.hpp"
#include "runtime/data/numbers.hpp"

namespace kolo::runtime {
namespace {

constexpr std::string_view kDirect = "direct";

/// Items of one dtype, with complex elements as two real ones each: GPUs only sum complex types.
class RealItems {
 public:
  explicit RealItems(std::span<const ReductionItem> items) : items_(items) {
    if (!is_complex(items.front().type->dtype)) return;
    types_.reserve(items.size());
    for (const ReductionItem& item : items) {
      TensorType& type = types_.emplace_back(*item.type);
      type.dtype = real_type(type.dtype);
      type.shape.push_back(2);
      parts_.push_back({&type, item.memory});
    }
    items_ = parts_;
  }
  RealItems(const RealItems&) = delete;  // items refer to the types
  RealItems& operator=(const RealItems&) = delete;

  std::span<const ReductionItem> get() const { return items_; }

 private:
  std::span<const ReductionItem> items_;
  std::vector<TensorType> types_;
  std::vector<ReductionItem> parts_;
};

}  // namespace

DevicePlan DeviceBackend::plan_of(const Request& request, std::span<const ReductionItem> items,
                                  JoinedRanks joined) const {
  const DType dtype = items.front().type->dtype;
  const Compressor& compressor = path_.choices.compressors.find(request.compression);
  DevicePlan plan = plan_on_device(
      request,
      {.dtype = real_type(dtype),
       .payload = real_type(compressor.wire_dtype(dtype)),
       .size = divisor_of(request, joined, path_.communicator->size()),
       .ranks = path_.communicator->size(),
       .needs_staging = items.size() > 1 || joined.count > 0,
       .prefers_direct = path_.choices.algorithms.preferred(request.collective) == kDirect});
  // A joined rank's identity must not be scaled. In a direct exchange it is zeros, and the factor
  // is for the other ranks' inputs, which this rank combines.
  if (joined.is_here && !plan.is_direct) plan.before = 1.0;
  return plan;
}

/// The codec that encodes tensors of `dtype`; null: none.
const base::CodecFormat* DeviceBackend::format_of(const Request& request, DType dtype) const {
  if (!is_floating(dtype) || path_.communicator->size() == 1) return nullptr;
  const Codec* const codec = path_.choices.compressors.find_codec(request.compression);
  return codec == nullptr ? nullptr : compression::Registry::format_of(*codec);
}

/// Sums are float32, whatever the tensor's type.
double DeviceBackend::coded_scale(const Request& request, JoinedRanks joined) const {
  const ops::ReductionPlan plan = ops::plan_reduction(
      DType::Float32, request.op, request.prescale, request.postscale, /*rank_ordered=*/true,
      divisor_of(request, joined, path_.communicator->size()));
  return plan.reduction.prescale * plan.reduction.postscale;
}

Task DeviceBackend::all_reduce(const Request& request, std::span<const ReductionItem> items,
                               JoinedRanks joined) {
  std::vector<InPlace> in_place;
  while (!items.empty()) {
    if (const auto* const format = format_of(request, items.front().type->dtype)) {
      co_await coded_exchange_.all_reduce(*format, items.front(), coded_scale(request, joined));
      items = items.subspan(1);
      continue;
    }
    const std::size_t length =
        path_.config.fusion ? fused_run(items, path_.config.fusion_bytes) : 1;
    const RealItems real(items.first(length));
    const std::span<const ReductionItem> run = real.get();
    const DevicePlan plan = plan_of(request, items.first(length), joined);
    if (plan.is_staged) bytes_packed_ += count_of(run) * size_of(plan.wire);
    if (plan.is_direct) {
      co_await exchange_.all_reduce(plan, run);
    } else if (plan.is_staged) {
      co_await all_reduce_staged(plan, run);
    } else {
      const auto [type, memory] = run.front();
      in_place.push_back({plan, type->dtype, memory->input, memory->output, {}, type->count()});
    }
    items = items.subspan(length);
  }
  co_await reduce_in_place(in_place);
}

/// Staged reductions run one after another, because they share the staging memory.
Task DeviceBackend::all_reduce_staged(const DevicePlan& plan,
                                      std::span<const ReductionItem> items) {
  const DType dtype = items.front().type->dtype;
  const std::size_t count = count_of(items);
  device_.traffic.add_round(2 * count * size_of(plan.wire));
  const auto [staging] = staging_.take<1>({count * size_of(plan.wire)});
  pack(device_, items, {dtype, plan.wire, plan.before}, staging);
  device_.communicator.all_reduce(staging, staging, count, plan.wire, plan.reduction,
                                  device_.stream);
  co_await device_.communicator;
  unpack(device_, staging, {plan.wire, dtype, plan.after, plan.divisor}, items);
}

/// Runs all of them in one group.
Task DeviceBackend::reduce_in_place(std::span<const InPlace> reductions) {
  if (reductions.empty()) co_return;
  comm::DeviceCommunicator& communicator = device_.communicator;
  comm::DeviceGroup group(communicator);
  for (const auto& [plan, dtype, input, output, counts, kept] : reductions) {
    if (counts.empty()) {
      device_.traffic.add_round(2 * kept * size_of(dtype));
      communicator.all_reduce(input, output, kept, dtype, plan.reduction, device_.stream);
    } else {
      device_.traffic.add_round(sum_of(counts) * size_of(dtype));
      communicator.reduce_scatter(input, output, counts, dtype, plan.reduction, device_.stream);
    }
  }
  group.end();
  co_await communicator;
  for (const auto& [plan, dtype, input, output, counts, kept] : reductions) {
    if (!plan.changes(dtype)) continue;
    const comm::DeviceRun run{output, output, kept};
    device_.gpu.convert({&run, 1}, {dtype, dtype, plan.after, plan.divisor}, device_.stream);
  }
}

Task DeviceBackend::reduce_scatter(const Request& request, std::span<const ReductionItem> items,
                                   std::span<const std::vector<std::size_t>> counts,
                                   JoinedRanks joined) {
  std::vector<InPlace> in_place;
  for (std::size_t i = 0; i < items.size(); ++i) {
    const DType dtype = items[i].type->dtype;
    if (const auto* const format = format_of(request, dtype)) {
      co_await coded_exchange_.reduce_scatter(*format, items[i], counts[i],
                                              coded_scale(request, joined));
      continue;
    }
    const DevicePlan plan = plan_of(request, items.subspan(i, 1), joined);
    std::vector<std::size_t> parts = counts[i];
    for (std::size_t& count : parts) count *= parts_of(dtype);
    const RealItems real(items.subspan(i, 1));
    const ReductionItem item = real.get().front();
    if (plan.is_staged) bytes_packed_ += item.type->count() * size_of(plan.wire);
    if (plan.is_direct) {
      co_await exchange_.reduce_scatter(plan, item, parts);
    } else if (plan.is_staged) {
      co_await reduce_scatter_staged(plan, item, parts);
    } else {
      const std::size_t kept = parts[static_cast<std::size_t>(path_.communicator->rank())];
      const auto [type, memory] = item;
      in_place.push_back(
          {plan, type->dtype, memory->input, memory->output, std::move(parts), kept});
    }
  }
  co_await reduce_in_place(in_place);
}

Task DeviceBackend::reduce_scatter_staged(const DevicePlan& plan, ReductionItem item,
                                          std::span<const std::size_t> counts) {
  const DType dtype = item.type->dtype;
  const std::size_t count = item.type->count();
  const std::size_t element = size_of(plan.wire);
  const ops::Range own =
      ops::ranges_of(counts)[static_cast<std::size_t>(path_.communicator->rank())];
  device_.traffic.add_round(count * element);
  const auto [staging] = staging_.take<1>({count * element});
  std::byte* const place = staging + own.begin * element;
  pack(device_, {&item, 1}, {dtype, plan.wire, plan.before}, staging);
  device_.communicator.reduce_scatter(staging, place, counts, plan.wire, plan.reduction,
                                      device_.stream);
  co_await device_.communicator;
  const comm::DeviceRun out{place, item.memory->output, own.length};
  device_.gpu.convert({&out, 1}, {plan.wire, dtype, plan.after, plan.divisor}, device_.stream);
}

Task DeviceBackend::move(Collective collective, std::span<const Move> moves) {
  if (moves.empty()) co_return;
  comm::DeviceGroup group(device_.communicator);
  for (const auto& [call, bytes] : moves) launch_move(collective, call, bytes);
  group.end();
  co_await device_.communicator;
}

void DeviceBackend::launch_move(Collective collective, const CollectiveCall& call,
                                std::size_t bytes) {
  comm::DeviceCommunicator& communicator = device_.communicator;
  switch (collective) {
    case Collective::AllGather:
      device_.traffic.add_round(bytes);
      communicator.all_gather(call.input, call.output, call.counts, call.dtype, device_.stream);
      break;
    case Collective::Broadcast:
      device_.traffic.add_round(bytes);
      communicator.broadcast(call.output, call.count, call.dtype, call.root, device_.stream);
      break;
    default: {
      const std::span<const std::size_t> sent = call.send_counts;
      const auto own = static_cast<std::size_t>(communicator.rank());
      device_.traffic.add_sent((sum_of(sent) - sent[own]) * size_of(call.dtype));
      communicator.all_to_all(call.input, sent, call.output, call.receive_counts, call.dtype,
                              device_.stream);
    }
  }
}

/// The program's allocator orders memory by the program's stream, on which earlier uses of it may
/// still be running.
void DeviceBackend::await_allocation(const Operation& operation) {
  if (device_.gpu.is_capturing(operation.device.stream)) {
    throw InvalidArgument(describe(operation.request) +
                          ": its stream is being captured into a CUDA graph since it was called. "
                          "Wait for it before the capture.");
  }
  const std::shared_ptr<CUevent_st> allocated = events_.take(device_.gpu);
  device_.gpu.record(allocated.get(), operation.device.stream);
  device_.gpu.wait(device_.stream, allocated.get());
}

}  // namespace kolo::runtime
