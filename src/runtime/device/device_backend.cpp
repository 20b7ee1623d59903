#include "runtime/device/device_backend.hpp"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>
#include <vector>

#include "comm/gpu/gpu.hpp"
#include "ops/kernels/pieces.hpp"
#include "ops/steps/reduction_plan.hpp"
#include "runtime/data/set_context.hpp"

namespace kolo::runtime {
DevicePlan plan_on_device(const Request& request, const DeviceSituation& situation) {
  DevicePlan on_device;
  const bool is_sum = request.op == ReduceOp::Sum || request.op == ReduceOp::Average;
  on_device.is_direct = situation.prefers_direct && is_sum && is_floating(situation.payload);
  const ops::ReductionPlan plan =
      ops::plan_reduction(situation.payload, request.op, request.prescale, request.postscale,
                          /*rank_ordered=*/on_device.is_direct, situation.size);
  on_device.wire = plan.wire == DType::Int16 ? DType::Int32 : plan.wire;
  on_device.before = plan.reduction.prescale;
  on_device.after = plan.reduction.postscale;
  on_device.divisor = plan.divisor;
  on_device.op = plan.reduction.op;
  on_device.is_staged = situation.needs_staging || on_device.wire != situation.dtype;
  if (on_device.is_staged || on_device.is_direct) return on_device;
  const bool scatters = request.collective == Collective::ReduceScatter;
  if (plan.reduction.op == ReduceOp::Sum && is_floating(on_device.wire)) {
    const double factor =
        std::exchange(on_device.before, 1.0) * std::exchange(on_device.after, 1.0);
    const bool may_overflow = on_device.wire == DType::Float16 || request.prescale != 1.0;
    (scatters && !may_overflow ? on_device.after : on_device.before) = factor;
  }
  on_device.is_staged = scatters && on_device.before != 1.0;
  return on_device;
}

/// One tensor, or several that are reduced as one. Complex elements are two real ones each: GPUs
/// only sum complex types.
struct FusedTensors {
  DevicePlan plan;
  DType dtype;
  std::vector<comm::DeviceRun> tensors{};  // from the inputs to the outputs
  std::size_t count = 0;                   // elements of all
  std::vector<std::size_t> counts{};       // reduce-scatter: that each rank keeps
  ops::Range kept{};                       // by this rank

  std::size_t staged_bytes() const { return plan.is_staged ? count * size_of(plan.wire) : 0; }

  /// The inputs into a staging buffer, one after another.
  std::vector<comm::DeviceRun> packed_to(std::byte* buffer) const {
    std::vector<comm::DeviceRun> runs;
    for (const comm::DeviceRun& tensor : tensors) {
      runs.push_back({tensor.from, buffer, tensor.count});
      buffer += tensor.count * size_of(plan.wire);
    }
    return runs;
  }
  /// What this rank keeps of a staging buffer.
  std::vector<comm::DeviceRun> unpacked_from(const std::byte* buffer) const {
    buffer += kept.begin * size_of(plan.wire);
    if (!counts.empty()) return {{buffer, tensors.front().to, kept.length}};
    std::vector<comm::DeviceRun> runs;
    for (const comm::DeviceRun& tensor : tensors) {
      runs.push_back({buffer, tensor.to, tensor.count});
      buffer += tensor.count * size_of(plan.wire);
    }
    return runs;
  }
};

namespace {

// Keeps the pieces of aligned memory aligned.
constexpr std::size_t kPieceBytes = 256;

/// Sums on GPUs by direct exchange, as ops/allreduce_direct.cpp does them on the CPU:
///
///   1 contribute  every rank sends piece p of its elements to rank p, for all p
///   2 combine     rank p sums piece p of all ranks, in rank order, in float32 or float64
///   3 gather      rank p sends the result to all ranks (all-reduce)
///
/// One rank combines all inputs of an element, so a sum has the same bits in every run and on any
/// number of nodes, and the same as in rank order on the CPU. A rank sends 2 (n-1)/n times the
/// elements, as in a ring. Staging memory holds n times the longest piece, and all elements if they
/// are packed.
class DirectExchange {
 public:
  /// Both outlive it.
  DirectExchange(const DeviceContext& device, const FusedTensors& reduced)
      : device_(device), fused_(reduced) {}

  /// Of the places in staging memory: received, packed.
  std::array<std::size_t, 2> places() const {
    return {ops::longest_of(pieces_) * size_ * element_, fused_.staged_bytes()};
  }
  Task run();

 private:
  /// Whether each rank keeps its piece alone.
  bool scatters() const { return !fused_.counts.empty(); }

  const DeviceContext& device_;
  const FusedTensors& fused_;
  const DevicePlan& plan_ = fused_.plan;
  const std::size_t element_ = size_of(plan_.wire);
  const std::size_t size_ = static_cast<std::size_t>(device_.communicator.size());
  const std::vector<ops::Range> pieces_ =
      scatters()
          ? ops::ranges_of(fused_.counts)
          : ops::pieces_of(fused_.count, device_.communicator.size(), kPieceBytes / element_);
};

Task DirectExchange::run() {
  const auto [received, packed] = device_.staging.take(places());
  const std::byte* input = fused_.tensors.front().from;
  std::byte* output = fused_.tensors.front().to;
  if (plan_.is_staged) {
    device_.gpu.convert(fused_.packed_to(packed), {fused_.dtype, plan_.wire}, device_.stream);
    input = output = packed;
  }
  const ops::Range own = pieces_[static_cast<std::size_t>(device_.communicator.rank())];
  std::byte* const result = scatters() && !plan_.is_staged ? output : output + own.begin * element_;
  std::vector<std::size_t> counts;
  for (const ops::Range& piece : pieces_) counts.push_back(piece.length);
  device_.traffic.add_round(fused_.count * element_);
  device_.mark_launch();
  device_.communicator.all_to_all(input, counts, received,
                                  std::vector<std::size_t>(size_, own.length), plan_.wire,
                                  device_.stream);
  co_await device_.communicator;
  device_.gpu.add_up({received, plan_.wire, own.length, own.length, device_.communicator.size()},
                     {plan_.before, plan_.after}, result, device_.stream);
  if (!scatters()) {
    device_.traffic.add_round(fused_.count * element_);
    device_.mark_launch();
    device_.communicator.all_gather(result, output, counts, plan_.wire, device_.stream);
    co_await device_.communicator;
  }
  if (!plan_.is_staged) co_return;
  device_.gpu.convert(fused_.unpacked_from(packed), {plan_.wire, fused_.dtype}, device_.stream);
}

std::vector<std::size_t> staged_bytes_of(std::span<const FusedTensors> group) {
  std::vector<std::size_t> bytes;
  for (const FusedTensors& fused : group) bytes.push_back(fused.staged_bytes());
  return bytes;
}

}  // namespace

DevicePlan DeviceBackend::plan_of(const Reductions& reductions, DType dtype, bool is_packed) const {
  const auto& [request, joined, items, counts] = reductions;
  const int divisor = divisor_of(*request, joined, set_.communicator->size());
  const Compressor& compressor = set_.choices.compressors.find(request->compression);
  DevicePlan plan = plan_on_device(
      *request,
      {.dtype = real_type(dtype),
       .payload = real_type(compressor.wire_dtype(dtype)),
       .size = divisor,
       .needs_staging = is_packed || joined.count > 0,
       .prefers_direct = set_.choices.algorithms.preferred(request->collective) == "direct"});
  // A joined rank's identity must not be scaled. In a direct exchange it is zeros, and the factor
  // is for the other ranks' inputs, which this rank combines.
  if (joined.is_here && !plan.is_direct) plan.before = 1.0;
  return plan;
}

/// Item `first`, with those after it that are fused with it.
FusedTensors DeviceBackend::fuse(const Reductions& reductions, std::size_t first) const {
  std::span<const ReductionItem> items = std::span(reductions.items).subspan(first);
  const DType dtype = items.front().type->dtype;
  const bool can_pack = set_.config.fusion && reductions.counts.empty();
  items = items.first(can_pack ? fused_run(items, set_.config.fusion_bytes) : 1);
  FusedTensors fused{.plan = plan_of(reductions, dtype, items.size() > 1),
                     .dtype = real_type(dtype)};
  for (const auto& [type, memory] : items) {
    const std::size_t count = type->count() * parts_of(dtype);
    fused.tensors.push_back({memory->input, memory->output, count});
    fused.count += count;
  }
  fused.kept = {0, fused.count};
  if (reductions.counts.empty()) return fused;
  fused.counts = reductions.counts[first];
  for (std::size_t& count : fused.counts) count *= parts_of(dtype);
  fused.kept = ops::ranges_of(fused.counts)[static_cast<std::size_t>(set_.communicator->rank())];
  return fused;
}

/// What goes through the communicator is in one group, unless that needs more than kMostStaged
/// bytes of staging memory.
std::vector<DeviceBackend::Stage> DeviceBackend::stages_of(
    std::span<const Reductions> reductions) const {
  std::vector<Stage> stages;
  Stage group;
  std::size_t staged = 0;
  for (const Reductions& alike : reductions) {
    for (std::size_t first = 0; first < alike.items.size();) {
      FusedTensors fused = fuse(alike, first);
      first += fused.tensors.size();
      if (fused.plan.is_direct) {
        stages.emplace_back().push_back(std::move(fused));
        continue;
      }
      const std::size_t more = fused.staged_bytes();
      if (staged > 0 && more > 0 && staged + more > kMostStaged) {
        stages.push_back(std::exchange(group, {}));
        staged = 0;
      }
      staged += more;
      group.push_back(std::move(fused));
    }
  }
  if (!group.empty()) stages.push_back(std::move(group));
  return stages;
}

std::size_t DeviceBackend::room_for(const Stage& stage) const {
  const FusedTensors& first = stage.front();
  if (first.plan.is_direct) return DeviceStaging::room_for(DirectExchange(device_, first).places());
  return DeviceStaging::room_for(staged_bytes_of(stage));
}

Task DeviceBackend::make_room(std::span<const Reductions> reductions) {
  std::size_t needed = 0;
  for (const Stage& stage : stages_of(reductions)) needed = std::max(needed, room_for(stage));
  if (needed > staging_.room()) co_await staging_.grow(needed);
}

Task DeviceBackend::reduce(std::span<const Reductions> reductions) {
  const std::vector<Stage> stages = stages_of(reductions);
  for (const Stage& stage : stages) {
    const FusedTensors& first = stage.front();
    for (const FusedTensors& fused : stage) device_.traffic.add_packed(fused.staged_bytes());
    if (first.plan.is_direct) {
      DirectExchange exchange(device_, first);
      co_await exchange.run();
    } else {
      co_await reduce_group(stage);
    }
  }
}

namespace {

/// Conversions to be launched, those of one kind at once.
class Conversions {
 public:
  void add(const comm::DeviceConversion& conversion, std::span<const comm::DeviceRun> runs) {
    auto found = std::ranges::find(kinds_, conversion, &Kind::first);
    if (found == kinds_.end()) found = kinds_.insert(found, {conversion, {}});
    found->second.insert(found->second.end(), runs.begin(), runs.end());
  }
  void launch(const DeviceContext& device) const {
    for (const auto& [conversion, runs] : kinds_) {
      device.gpu.convert(runs, conversion, device.stream);
    }
  }

 private:
  using Kind = std::pair<comm::DeviceConversion, std::vector<comm::DeviceRun>>;
  std::vector<Kind> kinds_;
};

}  // namespace

/// Packs everything that is staged, reduces it and the rest in one group, and unpacks.
Task DeviceBackend::reduce_group(const Stage& group) {
  const std::vector<std::byte*> places = staging_.take(staged_bytes_of(group));
  Conversions before, after;
  for (std::size_t i = 0; i < group.size(); ++i) {
    const auto& [plan, dtype, tensors, count, counts, kept] = group[i];
    const comm::DeviceConversion to_dtype{plan.wire, dtype, plan.after, plan.divisor};
    if (plan.is_staged) {
      before.add({dtype, plan.wire, plan.before}, group[i].packed_to(places[i]));
      after.add(to_dtype, group[i].unpacked_from(places[i]));
      continue;
    }
    std::byte* const output = tensors.front().to;
    if (plan.before != 1.0) before.add({dtype, dtype, plan.before}, tensors);
    if (plan.changes(dtype)) {
      after.add(to_dtype, std::array{comm::DeviceRun{output, output, kept.length}});
    }
  }
  before.launch(device_);
  device_.mark_launch();
  comm::DeviceGroup launches(device_.communicator);
  for (std::size_t i = 0; i < group.size(); ++i) launch(group[i], places[i]);
  launches.end();
  co_await device_.communicator;
  after.launch(device_);
}

void DeviceBackend::launch(const FusedTensors& fused, std::byte* place) {
  const DevicePlan& plan = fused.plan;
  const std::size_t element = size_of(plan.wire);
  std::byte* const output =
      plan.is_staged ? place + fused.kept.begin * element : fused.tensors.front().to;
  const std::byte* input = plan.is_staged ? place : fused.tensors.front().from;
  if (!plan.is_staged && plan.before != 1.0) input = output;
  if (fused.counts.empty()) {
    device_.traffic.add_round(2 * fused.count * element);
    device_.communicator.all_reduce(input, output, fused.count, plan.wire, plan.op, device_.stream);
  } else {
    device_.traffic.add_round(fused.count * element);
    device_.communicator.reduce_scatter(input, output, fused.counts, plan.wire, plan.op,
                                        device_.stream);
  }
}

Task DeviceBackend::move(Collective collective, std::span<const Move> moves) {
  device_.mark_launch();
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
      const std::size_t all = std::accumulate(sent.begin(), sent.end(), std::size_t{0});
      device_.traffic.add_sent((all - sent[own]) * size_of(call.dtype));
      communicator.all_to_all(call.input, sent, call.output, call.receive_counts, call.dtype,
                              device_.stream);
    }
  }
}

bool DeviceBackend::may_allocate(const Operation& operation) {
  return !device_.gpu.is_capturing(operation.device.stream);
}

/// The program's allocator orders memory by the program's stream, on which earlier uses of it may
/// still be running.
void DeviceBackend::await_allocation(const Operation& operation) {
  const auto allocated = events_.take([&] { return device_.gpu.make_event(); });
  device_.gpu.record(allocated.get(), operation.device.stream);
  device_.gpu.wait(device_.stream, allocated.get());
}

}  // namespace kolo::runtime
