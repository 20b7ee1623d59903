#include "runtime/device_reducer.hpp"

#include "compression/registry.hpp"
#include "ops/pieces.hpp"
#include "runtime/device_plan.hpp"

namespace kolo::runtime {
namespace {

DevicePlan plan_of(const DataPath& path, const Request& request, DType dtype, JoinedRanks joined,
                   bool must_stage) {
  const DType payload = path.choices.compressors.find(request.compression).wire_dtype(dtype);
  const int size = path.communicator->size();
  DevicePlan plan = plan_on_device(
      dtype, payload, request.op, request.prescale, request.postscale,
      request.join_divisor == JoinDivisor::Active ? size - joined.count : size, must_stage);
  if (joined.is_here) plan.before = 1.0;  // what changes nothing must not be scaled
  return plan;
}

}  // namespace

Task DeviceReducer::all_reduce(const Request& request, std::span<const ReductionItem> items,
                               JoinedRanks joined) {
  while (!items.empty()) {
    const std::size_t length =
        path_.config.fusion ? fused_run(items, path_.config.fusion_bytes) : 1;
    co_await all_reduce_run(request, items.first(length), joined);
    items = items.subspan(length);
  }
}

Task DeviceReducer::all_reduce_run(const Request& request, std::span<const ReductionItem> items,
                                   JoinedRanks joined) {
  const DType dtype = items.front().type->dtype;
  const DevicePlan plan = plan_of(path_, request, dtype, joined, items.size() > 1);
  std::size_t count = 0;
  for (const ReductionItem& item : items) count += item.type->count();
  traffic_.add_round(2 * count * size_of(plan.wire));
  if (!plan.is_staged) {
    const TensorMemory& memory = *items.front().memory;
    communicator_.all_reduce(memory.input, memory.output, count, dtype, plan.reduction, stream_);
    co_await communicator_;
    if (!plan.changes(dtype)) co_return;
    const comm::DeviceRun in_place{memory.output, memory.output, count};
    gpu_.convert({&in_place, 1}, {dtype, dtype, plan.after, plan.divisor}, stream_);
    co_return;
  }
  const std::size_t element = size_of(plan.wire);
  std::byte* const staging = stage(count * element);
  std::vector<comm::DeviceRun> in;
  std::vector<comm::DeviceRun> out;
  std::byte* place = staging;
  for (const ReductionItem& item : items) {
    const std::size_t length = item.type->count();
    in.push_back({item.memory->input, place, length});
    out.push_back({place, item.memory->output, length});
    place += length * element;
  }
  bytes_packed_ += count * element;
  gpu_.convert(in, {dtype, plan.wire, plan.before, 1}, stream_);
  communicator_.all_reduce(staging, staging, count, plan.wire, plan.reduction, stream_);
  co_await communicator_;
  gpu_.convert(out, {plan.wire, dtype, plan.after, plan.divisor}, stream_);
}

Task DeviceReducer::reduce_scatter(const Request& request, ReductionItem item, JoinedRanks joined) {
  const TensorType& type = *item.type;
  const TensorMemory& memory = *item.memory;
  const int size = path_.communicator->size();
  const std::size_t rows = static_cast<std::size_t>(type.shape.front());
  const std::size_t row = rows > 0 ? type.count() / rows : 0;
  std::vector<std::size_t> counts;
  for (int rank = 0; rank < size; ++rank) {
    counts.push_back(ops::piece_of(rows, size, rank).length * row);
  }
  const ops::Range own = ops::piece_of(rows, size, path_.communicator->rank());
  const std::size_t kept = own.length * row;
  const DevicePlan plan = plan_of(path_, request, type.dtype, joined, false);
  traffic_.add_round(type.count() * size_of(plan.wire));
  if (!plan.is_staged) {
    communicator_.reduce_scatter(memory.input, memory.output, counts, type.dtype, plan.reduction,
                                 stream_);
    co_await communicator_;
    if (!plan.changes(type.dtype)) co_return;
    const comm::DeviceRun in_place{memory.output, memory.output, kept};
    gpu_.convert({&in_place, 1}, {type.dtype, type.dtype, plan.after, plan.divisor}, stream_);
    co_return;
  }
  const std::size_t element = size_of(plan.wire);
  std::byte* const staging = stage(type.count() * element);
  std::byte* const place = staging + own.begin * row * element;
  bytes_packed_ += type.count() * element;
  const comm::DeviceRun in{memory.input, staging, type.count()};
  const comm::DeviceRun out{place, memory.output, kept};
  gpu_.convert({&in, 1}, {type.dtype, plan.wire, plan.before, 1}, stream_);
  communicator_.reduce_scatter(staging, place, counts, plan.wire, plan.reduction, stream_);
  co_await communicator_;
  gpu_.convert({&out, 1}, {plan.wire, type.dtype, plan.after, plan.divisor}, stream_);
}

/// Memory for the next run; what the one before is using may be among it.
std::byte* DeviceReducer::stage(std::size_t bytes) {
  if (bytes > staging_bytes_) {
    if (staging_ != nullptr) outgrown_.push_back(std::move(staging_));
    staging_ = gpu_.allocate(bytes);
    staging_bytes_ = bytes;
  }
  return staging_.get();
}

}  // namespace kolo::runtime
