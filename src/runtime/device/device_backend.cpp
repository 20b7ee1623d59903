#include "runtime/device/device_backend.hpp"

#include <numeric>
#include <vector>

#include "compression/registry.hpp"
#include "kolo/error.hpp"
#include "ops/kernels/pieces.hpp"
#include "ops/steps/reduction_plan.hpp"

namespace kolo::runtime {
namespace {

constexpr std::string_view kDirect = "direct";

/// Items of one dtype, where complex elements are two real ones each: GPUs only add them up.
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

DevicePlan DeviceBackend::plan_of(const Request& request, DType dtype, JoinedRanks joined,
                                  bool is_fused) const {
  const Compressor& compressor = path_.choices.compressors.find(request.compression);
  DevicePlan plan =
      plan_on_device(request, {.dtype = real_type(dtype),
                               .payload = real_type(compressor.wire_dtype(dtype)),
                               .size = divisor_of(request, joined, path_.communicator->size()),
                               .ranks = path_.communicator->size(),
                               .is_fused = is_fused,
                               .prefers_direct = path_.preferred(request.collective) == kDirect});
  // The identity must not be scaled. In a direct exchange it is zeros, and other ranks combine it.
  if (joined.is_here && !plan.is_direct) plan.before = 1.0;
  return plan;
}

/// The codec by which tensors of `dtype` are sent; null: by none.
const base::CodecFormat* DeviceBackend::format_of(const Request& request, DType dtype) const {
  if (!is_floating(dtype) || path_.communicator->size() == 1) return nullptr;
  const Codec* const codec = path_.choices.compressors.find_codec(request.compression);
  return codec == nullptr ? nullptr : compression::Registry::format_of(*codec);
}

/// Sums are float32, whatever the tensor is.
double DeviceBackend::coded_scale(const Request& request, JoinedRanks joined) const {
  const ops::ReductionPlan plan = ops::plan_reduction(
      DType::Float32, request.op, request.prescale, request.postscale, /*rank_ordered=*/true,
      divisor_of(request, joined, path_.communicator->size()));
  return plan.reduction.prescale * plan.reduction.postscale;
}

Task DeviceBackend::all_reduce(const Request& request, std::span<const ReductionItem> items,
                               JoinedRanks joined) {
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
    const DevicePlan plan = plan_of(request, items.front().type->dtype, joined, length > 1);
    if (plan.is_staged) bytes_packed_ += count_of(run) * size_of(plan.wire);
    if (plan.is_direct) {
      co_await exchange_.all_reduce(plan, run);
    } else {
      co_await all_reduce_run(plan, run);
    }
    items = items.subspan(length);
  }
}

Task DeviceBackend::all_reduce_run(const DevicePlan& plan, std::span<const ReductionItem> items) {
  const DType dtype = items.front().type->dtype;
  const std::size_t count = count_of(items);
  device_.traffic.add_round(2 * count * size_of(plan.wire));
  if (!plan.is_staged) {
    const TensorMemory& memory = *items.front().memory;
    device_.communicator.all_reduce(memory.input, memory.output, count, dtype, plan.reduction,
                                    device_.stream);
    co_await device_.communicator;
    if (!plan.changes(dtype)) co_return;
    const comm::DeviceRun in_place{memory.output, memory.output, count};
    device_.gpu.convert({&in_place, 1}, {dtype, dtype, plan.after, plan.divisor}, device_.stream);
    co_return;
  }
  const auto [staging] = staging_.take<1>({count * size_of(plan.wire)});
  pack(device_, items, {dtype, plan.wire, plan.before}, staging);
  device_.communicator.all_reduce(staging, staging, count, plan.wire, plan.reduction,
                                  device_.stream);
  co_await device_.communicator;
  unpack(device_, staging, {plan.wire, dtype, plan.after, plan.divisor}, items);
}

Task DeviceBackend::reduce_scatter(const Request& request, ReductionItem item,
                                   std::span<const std::size_t> counts, JoinedRanks joined) {
  if (const auto* const format = format_of(request, item.type->dtype)) {
    co_await coded_exchange_.reduce_scatter(*format, item, counts, coded_scale(request, joined));
    co_return;
  }
  const DevicePlan plan = plan_of(request, item.type->dtype, joined, false);
  std::vector<std::size_t> part_counts;
  if (const std::size_t parts = parts_of(item.type->dtype); parts > 1) {
    for (const std::size_t count : counts) part_counts.push_back(count * parts);
    counts = part_counts;
  }
  const RealItems real({&item, 1});
  item = real.get().front();
  if (plan.is_staged) bytes_packed_ += item.type->count() * size_of(plan.wire);
  if (plan.is_direct) {
    co_await exchange_.reduce_scatter(plan, item, counts);
  } else {
    co_await reduce_scatter_rows(plan, item, counts);
  }
}

Task DeviceBackend::reduce_scatter_rows(const DevicePlan& plan, ReductionItem item,
                                        std::span<const std::size_t> counts) {
  const DType dtype = item.type->dtype;
  const std::size_t count = item.type->count();
  const std::size_t element = size_of(plan.wire);
  const ops::Range own =
      ops::ranges_of(counts)[static_cast<std::size_t>(path_.communicator->rank())];
  const TensorMemory& memory = *item.memory;
  device_.traffic.add_round(count * element);
  if (!plan.is_staged) {
    device_.communicator.reduce_scatter(memory.input, memory.output, counts, dtype, plan.reduction,
                                        device_.stream);
    co_await device_.communicator;
    if (!plan.changes(dtype)) co_return;
    const comm::DeviceRun in_place{memory.output, memory.output, own.length};
    device_.gpu.convert({&in_place, 1}, {dtype, dtype, plan.after, plan.divisor}, device_.stream);
    co_return;
  }
  const auto [staging] = staging_.take<1>({count * element});
  std::byte* const place = staging + own.begin * element;
  pack(device_, {&item, 1}, {dtype, plan.wire, plan.before}, staging);
  device_.communicator.reduce_scatter(staging, place, counts, plan.wire, plan.reduction,
                                      device_.stream);
  co_await device_.communicator;
  const comm::DeviceRun out{place, memory.output, own.length};
  device_.gpu.convert({&out, 1}, {plan.wire, dtype, plan.after, plan.divisor}, device_.stream);
}

Task DeviceBackend::move(Collective collective, const CollectiveCall& call, std::size_t bytes) {
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
    case Collective::AllToAll: {
      const std::span<const std::size_t> sent = call.send_counts;
      const auto own = static_cast<std::size_t>(communicator.rank());
      const std::size_t all = std::accumulate(sent.begin(), sent.end(), std::size_t{0});
      device_.traffic.add_sent((all - sent[own]) * size_of(call.dtype));
      communicator.all_to_all(call.input, sent, call.output, call.receive_counts, call.dtype,
                              device_.stream);
      break;
    }
    default: co_return;
  }
  co_await communicator;
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
