#include "runtime/device/device_backend.hpp"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "comm/gpu/gpu.hpp"
#include "compression/registry.hpp"
#include "kolo/error.hpp"
#include "ops/kernels/pieces.hpp"
#include "ops/steps/reduction_plan.hpp"
#include "runtime/data/data_path.hpp"

namespace kolo::runtime {
namespace {

bool is_direct(ReduceOp op, const DeviceSituation& situation) {
  const bool is_sum = op == ReduceOp::Sum || op == ReduceOp::Average;
  return op == ReduceOp::Adasum ||
         (situation.prefers_direct && is_sum && is_floating(situation.payload));
}

}  // namespace

DevicePlan plan_on_device(const Request& request, const DeviceSituation& situation) {
  DevicePlan on_device;
  on_device.is_direct = is_direct(request.op, situation);
  const ops::ReductionPlan plan =
      ops::plan_reduction(situation.payload, request.op, request.prescale, request.postscale,
                          /*rank_ordered=*/on_device.is_direct, situation.size);
  on_device.wire = plan.wire == DType::Int16 ? DType::Int32 : plan.wire;
  on_device.before = plan.reduction.prescale;
  on_device.after = plan.reduction.postscale;
  on_device.divisor = plan.divisor;
  on_device.reduction.op = plan.reduction.op;
  on_device.is_staged = situation.needs_staging || on_device.wire != situation.dtype;
  if (on_device.is_staged || on_device.is_direct) return on_device;
  if (plan.reduction.op == ReduceOp::Sum && is_floating(on_device.wire)) {
    const double factor =
        std::exchange(on_device.before, 1.0) * std::exchange(on_device.after, 1.0);
    const bool may_overflow = on_device.wire == DType::Float16 || request.prescale != 1.0;
    if (situation.ranks == 1 || (situation.only_adds && !may_overflow)) {
      on_device.after = factor;
    } else {
      (situation.only_adds ? on_device.before : on_device.reduction.factor) = factor;
    }
  }
  on_device.is_staged = on_device.before != 1.0;
  return on_device;
}

namespace {

/// Bytes of each piece's payloads.
std::vector<std::size_t> bytes_of(const comm::DeviceCodec& codec,
                                  std::span<const ops::Range> pieces) {
  std::vector<std::size_t> bytes;
  for (const ops::Range& piece : pieces) bytes.push_back(codec.run_bytes(piece.length));
  return bytes;
}

template <std::size_t kPlaces>
std::array<std::byte*, kPlaces> places_of(const DevicePath& path,
                                          const std::array<std::size_t, kPlaces>& sizes) {
  std::array<std::byte*, kPlaces> places{};
  path.staging.take(sizes, places);
  return places;
}

float* floats(std::byte* memory) { return reinterpret_cast<float*>(memory); }

}  // namespace

Task CodedExchange::all_reduce(base::CodecFormat format, ReductionItem item, double scale) {
  const DType dtype = item.type->dtype;
  const std::vector<ops::Range> pieces =
      ops::pieces_of(item.type->count(), path_.communicator.size(), format.block());
  const ops::Range own = pieces[rank()];
  const std::size_t longest = ops::longest_of(pieces);
  const comm::DeviceCodec input{format};
  const comm::DeviceCodec result{format, path_.communicator.size()};
  const std::vector<std::size_t> result_bytes = bytes_of(result, pieces);
  const std::array sizes{sum_of(bytes_of(input, pieces)), (size() - 1) * input.run_bytes(longest),
                         longest * sizeof(float), sum_of(result_bytes)};
  if (!path_.staging.has_room(sizes)) co_await path_.staging.make_room(sizes);
  const auto [sent, received, sum, gathered] = places_of(path_, sizes);
  const Staging staging{sent, received, floats(sum)};
  co_await contribute(format, item, pieces, staging);
  combine(format, item, own, staging, nullptr);

  std::vector<comm::CodedRun> decoded;
  std::byte* own_result = nullptr;
  std::byte* next = gathered;
  for (std::size_t piece = 0; piece < pieces.size(); next += result_bytes[piece++]) {
    if (piece == rank()) own_result = next;
    decoded.push_back({.from = next,
                       .to = item.memory->output + pieces[piece].begin * size_of(dtype),
                       .count = pieces[piece].length});
  }
  float* const residual = item.memory->residual;
  const comm::CodedRun encoded{.from = sum,
                               .to = own_result,
                               .count = own.length,
                               .residual = residual == nullptr ? nullptr : residual + own.begin};
  path_.gpu.encode(result, {&encoded, 1}, DType::Float32, path_.stream);
  path_.traffic.add_round(sum_of(result_bytes));
  path_.communicator.all_gather(own_result, gathered, result_bytes, DType::UInt8, path_.stream);
  co_await path_.communicator;
  path_.gpu.decode(result, decoded, dtype, scale, path_.stream);
}

Task CodedExchange::reduce_scatter(base::CodecFormat format, ReductionItem item,
                                   std::span<const std::size_t> counts, double scale) {
  const std::vector<ops::Range> pieces = ops::ranges_of(counts);
  const ops::Range own = pieces[rank()];
  const std::size_t longest = ops::longest_of(pieces);
  const comm::DeviceCodec input{format};
  const std::array sizes{sum_of(bytes_of(input, pieces)), (size() - 1) * input.run_bytes(longest),
                         longest * sizeof(float)};
  if (!path_.staging.has_room(sizes)) co_await path_.staging.make_room(sizes);
  const auto [sent, received, sum] = places_of(path_, sizes);
  const Staging staging{sent, received, floats(sum)};
  co_await contribute(format, item, pieces, staging);
  float* const residual = item.memory->residual;
  combine(format, item, own, staging, residual == nullptr ? nullptr : residual + own.begin);
  const comm::DeviceRun scaled{sum, item.memory->output, own.length};
  path_.gpu.convert({&scaled, 1}, {DType::Float32, item.type->dtype, scale}, path_.stream);
}

/// Step 1. A rank does not send its own piece.
Task CodedExchange::contribute(base::CodecFormat format, ReductionItem item,
                               std::span<const ops::Range> pieces, Staging staging) {
  const comm::DeviceCodec codec{format};
  std::vector<std::size_t> sent = bytes_of(codec, pieces);
  std::vector<std::size_t> received(size(), sent[rank()]);
  sent[rank()] = received[rank()] = 0;
  std::vector<comm::CodedRun> runs;
  std::byte* next = staging.sent;
  for (std::size_t peer = 0; peer < size(); next += sent[peer++]) {
    if (peer == rank()) continue;
    const ops::Range piece = pieces[peer];
    runs.push_back({.from = item.memory->input + piece.begin * size_of(item.type->dtype),
                    .to = next,
                    .count = piece.length,
                    .residual = item.memory->residual == nullptr
                                    ? nullptr
                                    : item.memory->residual + piece.begin});
  }
  path_.gpu.encode(codec, runs, item.type->dtype, path_.stream);
  path_.traffic.add_sent(sum_of(sent));
  path_.communicator.all_to_all(staging.sent, sent, staging.received, received, DType::UInt8,
                                path_.stream);
  co_await path_.communicator;
}

/// Step 2.
void CodedExchange::combine(base::CodecFormat format, ReductionItem item, ops::Range own,
                            Staging staging, float* residual) {
  path_.gpu.add_coded(format,
                      {.payloads = staging.received,
                       .ranks = path_.communicator.size(),
                       .own = path_.communicator.rank(),
                       .elements = item.memory->input + own.begin * size_of(item.type->dtype),
                       .dtype = item.type->dtype,
                       .count = own.length,
                       .residual = residual},
                      staging.sum, path_.stream);
}

namespace {

// Keeps the pieces of aligned memory aligned.
constexpr std::size_t kPieceBytes = 256;

std::vector<std::size_t> lengths_of(const std::vector<ops::Range>& pieces) {
  std::vector<std::size_t> lengths;
  for (const ops::Range& piece : pieces) lengths.push_back(piece.length);
  return lengths;
}

/// Calls `work(i, range)` for each item i that has elements in `own`, a range of all items'
/// elements one after another.
template <class Work>
void for_each_part(std::span<const ReductionItem> items, ops::Range own, Work work) {
  std::size_t item_begin = 0;
  for (std::size_t i = 0; i < items.size(); ++i) {
    const std::size_t item_end = item_begin + items[i].type->count();
    const std::size_t begin = std::max(item_begin, own.begin);
    const std::size_t end = std::min(item_end, own.begin + own.length);
    if (begin < end) work(i, ops::Range{begin, end - begin});
    item_begin = item_end;
  }
}

double* numbers(std::byte* memory) { return reinterpret_cast<double*>(memory); }

}  // namespace

Task DeviceExchange::all_reduce(const DevicePlan& plan, std::span<const ReductionItem> items) {
  const DType dtype = items.front().type->dtype;
  const bool is_adasum = plan.reduction.op == ReduceOp::Adasum;
  const std::size_t element = size_of(plan.wire);
  const std::size_t count = count_of(items);
  const std::vector<ops::Range> pieces =
      ops::pieces_of(count, path_.communicator.size(), kPieceBytes / element);
  const std::vector<std::size_t> counts = lengths_of(pieces);
  const ops::Range own = pieces[rank()];
  const std::size_t matrix = is_adasum ? size() * size() * sizeof(double) : 0;
  const std::size_t parts = comm::dot_product_parts(path_.communicator.size());
  const std::array sizes{ops::longest_of(pieces) * size() * element,
                         plan.is_staged ? count * element : 0, items.size() * matrix,
                         items.size() * matrix / size(), parts * matrix};
  if (!path_.staging.has_room(sizes)) co_await path_.staging.make_room(sizes);
  const auto [received, packed, matrices, weights, partial] = places_of(path_, sizes);

  const std::byte* input = items.front().memory->input;
  std::byte* output = items.front().memory->output;
  if (plan.is_staged) {
    pack(path_, items, {dtype, plan.wire}, packed);
    input = output = packed;
  }
  co_await contribute(input, counts, plan.wire, received);
  std::byte* const result = output + own.begin * element;
  const Piece piece{received, result, own};
  if (is_adasum) {
    co_await combine_adasum(plan, items, piece, {matrices, weights, partial});
  } else {
    add_up(plan, piece, own, nullptr);
  }
  path_.traffic.add_round(count * element);
  path_.communicator.all_gather(result, output, counts, plan.wire, path_.stream);
  co_await path_.communicator;
  if (plan.is_staged) unpack(path_, packed, {plan.wire, dtype}, items);
}

Task DeviceExchange::reduce_scatter(const DevicePlan& plan, ReductionItem item,
                                    std::span<const std::size_t> counts) {
  const auto [type, memory] = item;
  const std::size_t element = size_of(plan.wire);
  const ops::Range own = ops::ranges_of(counts)[rank()];
  const std::size_t longest = std::ranges::max(counts);
  const std::array sizes{longest * size() * element, plan.is_staged ? type->count() * element : 0,
                         plan.is_staged ? longest * element : 0};
  if (!path_.staging.has_room(sizes)) co_await path_.staging.make_room(sizes);
  const auto [received, packed, scattered] = places_of(path_, sizes);
  const std::byte* input = memory->input;
  std::byte* result = memory->output;
  if (plan.is_staged) {
    pack(path_, {&item, 1}, {type->dtype, plan.wire}, packed);
    input = packed;
    result = scattered;
  }
  co_await contribute(input, counts, plan.wire, received);
  add_up(plan, {received, result, own}, own, nullptr);
  if (!plan.is_staged) co_return;
  const comm::DeviceRun out{scattered, memory->output, own.length};
  path_.gpu.convert({&out, 1}, {plan.wire, type->dtype}, path_.stream);
}

/// Step 1.
Task DeviceExchange::contribute(const std::byte* from, std::span<const std::size_t> counts,
                                DType wire, std::byte* received) {
  path_.traffic.add_round(sum_of(counts) * size_of(wire));
  const std::vector<std::size_t> lengths(size(), counts[rank()]);
  path_.communicator.all_to_all(from, counts, received, lengths, wire, path_.stream);
  co_await path_.communicator;
}

/// Step 2 of Adasum.
Task DeviceExchange::combine_adasum(const DevicePlan& plan, std::span<const ReductionItem> items,
                                    Piece piece, Products products) {
  const std::size_t matrix = size() * size();
  const std::size_t elements = items.size() * matrix;
  double* const matrices = numbers(products.matrices);
  double* const weights = numbers(products.weights);
  path_.gpu.fill(products.matrices, elements, DType::Float64, comm::Scalar{}, path_.stream);
  for_each_part(items, piece.own, [&](std::size_t i, ops::Range range) {
    path_.gpu.multiply_all(vectors_of(plan, piece, range), matrices + i * matrix,
                           numbers(products.partial), path_.stream);
  });
  path_.traffic.add_round(2 * elements * sizeof(double));
  path_.communicator.all_reduce(matrices, matrices, elements, DType::Float64, {}, path_.stream);
  co_await path_.communicator;
  path_.gpu.weigh_adasum(matrices, static_cast<int>(items.size()), path_.communicator.size(),
                         weights, path_.stream);
  for_each_part(items, piece.own, [&](std::size_t i, ops::Range range) {
    add_up(plan, piece, range, weights + i * size());
  });
}

comm::DeviceVectors DeviceExchange::vectors_of(const DevicePlan& plan, Piece piece,
                                               ops::Range range) const {
  return {piece.received + (range.begin - piece.own.begin) * size_of(plan.wire), plan.wire,
          range.length, piece.own.length, path_.communicator.size()};
}

void DeviceExchange::add_up(const DevicePlan& plan, Piece piece, ops::Range range,
                            const double* weights) {
  const std::size_t offset = (range.begin - piece.own.begin) * size_of(plan.wire);
  path_.gpu.add_up(vectors_of(plan, piece, range), {plan.before, weights, plan.after},
                   piece.result + offset, path_.stream);
}

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
       .only_adds = path_.config.nccl_algo == "auto",
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
  std::vector<Reduction> reductions;
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
    } else {
      reductions.push_back(make_reduction(plan, run, {}));
    }
    items = items.subspan(length);
  }
  co_await reduce(reductions);
}

Task DeviceBackend::reduce_scatter(const Request& request, std::span<const ReductionItem> items,
                                   std::span<const std::vector<std::size_t>> counts,
                                   JoinedRanks joined) {
  std::vector<Reduction> reductions;
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
    if (plan.is_staged) bytes_packed_ += count_of(real.get()) * size_of(plan.wire);
    if (plan.is_direct) {
      const ReductionItem item = real.get().front();
      co_await exchange_.reduce_scatter(plan, item, parts);
    } else {
      reductions.push_back(make_reduction(plan, real.get(), std::move(parts)));
    }
  }
  co_await reduce(reductions);
}

DeviceBackend::Reduction DeviceBackend::make_reduction(const DevicePlan& plan,
                                                       std::span<const ReductionItem> items,
                                                       std::vector<std::size_t> counts) const {
  Reduction reduction{.plan = plan, .dtype = items.front().type->dtype, .count = count_of(items)};
  reduction.kept =
      counts.empty() ? ops::Range{0, reduction.count}
                     : ops::ranges_of(counts)[static_cast<std::size_t>(path_.communicator->rank())];
  reduction.counts = std::move(counts);
  for (const auto& [type, memory] : items) {
    reduction.tensors.push_back({memory->input, memory->output, type->count()});
  }
  return reduction;
}

/// In one group, unless they need more than kMostStaged bytes of staging memory.
Task DeviceBackend::reduce(const std::vector<Reduction>& reductions) {
  std::size_t end = 0;
  for (std::size_t begin = 0; begin < reductions.size(); begin = end) {
    std::size_t staged = reductions[end++].staged_bytes();
    for (; end < reductions.size(); ++end) {
      const std::size_t more = reductions[end].staged_bytes();
      if (more > 0 && staged + more > kMostStaged) break;
      staged += more;
    }
    co_await reduce_group(std::span(reductions).subspan(begin, end - begin));
  }
}

namespace {

/// Conversions to be launched, those of one kind at once.
class Conversions {
 public:
  void add(const comm::DeviceConversion& conversion, const comm::DeviceRun& run) {
    const auto found = std::ranges::find(kinds_, conversion, &Kind::first);
    if (found != kinds_.end()) return found->second.push_back(run);
    kinds_.push_back({conversion, {run}});
  }
  void launch(const DevicePath& path) const {
    for (const auto& [conversion, runs] : kinds_) path.gpu.convert(runs, conversion, path.stream);
  }

 private:
  using Kind = std::pair<comm::DeviceConversion, std::vector<comm::DeviceRun>>;
  std::vector<Kind> kinds_;
};

}  // namespace

/// Packs everything that is staged, reduces it and the rest in one group, and unpacks.
Task DeviceBackend::reduce_group(std::span<const Reduction> group) {
  std::vector<std::size_t> sizes;
  for (const Reduction& reduction : group) sizes.push_back(reduction.staged_bytes());
  if (!staging_.has_room(sizes)) co_await staging_.make_room(sizes);
  std::vector<std::byte*> places(group.size());
  staging_.take(sizes, places);

  Conversions before, after;
  for (std::size_t i = 0; i < group.size(); ++i) {
    const auto& [plan, dtype, count, kept, counts, tensors] = group[i];
    const comm::DeviceConversion to_dtype{plan.wire, dtype, plan.after, plan.divisor};
    std::byte* place = places[i];
    if (!plan.is_staged) {
      std::byte* const output = tensors.front().to;
      if (plan.changes(dtype)) after.add(to_dtype, {output, output, kept.length});
      continue;
    }
    const std::size_t element = size_of(plan.wire);
    for (const comm::DeviceRun& tensor : tensors) {
      before.add({dtype, plan.wire, plan.before}, {tensor.from, place, tensor.count});
      after.add(to_dtype, counts.empty() ? comm::DeviceRun{place, tensor.to, tensor.count}
                                         : comm::DeviceRun{place + kept.begin * element, tensor.to,
                                                           kept.length});
      place += tensor.count * element;
    }
  }
  before.launch(device_);
  comm::DeviceGroup launches(device_.communicator);
  for (std::size_t i = 0; i < group.size(); ++i) launch(group[i], places[i]);
  launches.end();
  co_await device_.communicator;
  after.launch(device_);
}

void DeviceBackend::launch(const Reduction& reduction, std::byte* place) {
  const auto& [plan, dtype, count, kept, counts, tensors] = reduction;
  const std::size_t element = size_of(plan.wire);
  const std::byte* const input = plan.is_staged ? place : tensors.front().from;
  std::byte* const output = plan.is_staged ? place + kept.begin * element : tensors.front().to;
  if (counts.empty()) {
    device_.traffic.add_round(2 * count * element);
    device_.communicator.all_reduce(input, output, count, plan.wire, plan.reduction,
                                    device_.stream);
  } else {
    device_.traffic.add_round(count * element);
    device_.communicator.reduce_scatter(input, output, counts, plan.wire, plan.reduction,
                                        device_.stream);
  }
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

bool DeviceBackend::may_allocate(const Operation& operation) {
  return !device_.gpu.is_capturing(operation.device.stream);
}

/// The program's allocator orders memory by the program's stream, on which earlier uses of it may
/// still be running.
void DeviceBackend::await_allocation(const Operation& operation) {
  const std::shared_ptr<CUevent_st> allocated = events_.take(device_.gpu);
  device_.gpu.record(allocated.get(), operation.device.stream);
  device_.gpu.wait(device_.stream, allocated.get());
}

}  // namespace kolo::runtime
