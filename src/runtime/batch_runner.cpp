#include "runtime/batch_runner.hpp"

#include <algorithm>
#include <cstring>

#include "base/convert.hpp"
#include "kolo/error.hpp"
#include "ops/kernels.hpp"
#include "ops/reduction_plan.hpp"
#include "ops/select.hpp"

namespace kolo::runtime {
namespace {

constexpr std::size_t kPieceElements = std::size_t{32} << 10;
constexpr int kShareMemoryTag = Communicator::kTagCount - 2;  // algorithms use the low ones

}  // namespace

BatchRunner::BatchRunner(comm::World& world, Communicator& communicator, SharedWindow* staging,
                         std::span<const int> world_ranks, Choices choices, const Config& config)
    : world_(world),
      communicator_(communicator),
      staging_(staging),
      world_ranks_(world_ranks),
      choices_(choices),
      config_(config) {}

void BatchRunner::check(const Request& request) const {
  try {
    choices_.compressors.find(request.compression);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(describe(request) + ": " + error.what());
  }
}

Task BatchRunner::run(Operations operations) {
  for (const auto& operation : operations) operation->started = Operation::Clock::now();
  Operation& first = *operations.front();
  if (operations.size() > 1) {
    co_await all_reduce_fused(operations);
    co_return;
  }
  switch (first.request.collective) {
    case Collective::AllReduce:
      co_await all_reduce(first.request, {first.input, first.output,
                                          first.request.size_bytes() / size_of(first.request.dtype),
                                          first.peer_buffers});
      break;
    case Collective::AllGather: co_await all_gather(first); break;
    case Collective::Broadcast: co_await broadcast(first); break;
    case Collective::ShareMemory: co_await share_memory(first); break;
  }
}

Task BatchRunner::all_reduce_fused(const Operations& operations) {
  std::size_t size_bytes = 0;
  for (const auto& operation : operations) size_bytes += operation->request.size_bytes();
  if (fused_.size() < size_bytes) fused_.resize(size_bytes);
  std::byte* place = fused_.data();
  for (const auto& operation : operations) {
    const std::size_t bytes = operation->request.size_bytes();
    if (bytes > 0) std::memcpy(place, operation->input, bytes);
    place += bytes;
  }
  bytes_packed_ += size_bytes;
  const Request& request = operations.front()->request;
  co_await all_reduce(request,
                      {fused_.data(), fused_.data(), size_bytes / size_of(request.dtype), {}});
  place = fused_.data();
  for (const auto& operation : operations) {
    const std::size_t bytes = operation->request.size_bytes();
    if (bytes > 0) std::memcpy(operation->output, place, bytes);
    place += bytes;
  }
}

Task BatchRunner::all_reduce(const Request& request, Reducible tensor) {
  const Compressor& compressor = choices_.compressors.find(request.compression);
  const DType payload = compressor.wire_dtype(request.dtype);
  // What is converted on its way runs on a copy, which no peer can reach.
  const bool is_converted = ops::wire_dtype(payload, request.op) != request.dtype;
  const Algorithm& algorithm = choose(Collective::AllReduce, tensor.count * size_of(payload),
                                      !tensor.peer_buffers.empty() && !is_converted);
  const ops::ReductionPlan plan =
      ops::plan_reduction(payload, request.op, request.prescale, request.postscale,
                          algorithm.rank_ordered, communicator_.size());

  CollectiveCall call = make_call();
  call.count = tensor.count;
  call.dtype = plan.wire;
  call.reduction = plan.reduction;
  call.input = tensor.input;
  call.output = tensor.output;
  call.peer_buffers = tensor.peer_buffers;
  // Compressed, or integers widened for an exact average; never both.
  const Passage passage{request.dtype, plan.wire, payload == plan.wire ? &compressor : nullptr};
  if (is_converted) {
    const std::size_t wire_bytes = tensor.count * size_of(plan.wire);
    if (wire_.size() < wire_bytes) wire_.resize(wire_bytes);
    co_await to_wire(passage, tensor.input, tensor.count);
    call.input = wire_.data();
    call.output = wire_.data();
    call.peer_buffers = {};
  }
  co_await algorithm.run(call);
  if (plan.divisor != 1) {
    ops::divide({reinterpret_cast<std::int64_t*>(call.output), tensor.count}, plan.divisor);
  }
  if (is_converted) co_await from_wire(passage, tensor.output, tensor.count);
}

// In pieces that stay in cache, so that other lanes get their turn.

Task BatchRunner::to_wire(Passage passage, const std::byte* tensor, std::size_t count) {
  for (std::size_t done = 0; done < count; done += kPieceElements) {
    const std::size_t length = std::min(kPieceElements, count - done);
    const std::byte* const from = tensor + done * size_of(passage.dtype);
    std::byte* const to = wire_.data() + done * size_of(passage.wire);
    if (passage.compressor != nullptr) {
      passage.compressor->compress(passage.dtype, from, length, to);
    } else {
      base::convert(passage.dtype, from, passage.wire, to, length);
    }
    co_await next_turn();
  }
  bytes_packed_ += count * size_of(passage.wire);
}

Task BatchRunner::from_wire(Passage passage, std::byte* tensor, std::size_t count) {
  for (std::size_t done = 0; done < count; done += kPieceElements) {
    const std::size_t length = std::min(kPieceElements, count - done);
    const std::byte* const from = wire_.data() + done * size_of(passage.wire);
    std::byte* const to = tensor + done * size_of(passage.dtype);
    if (passage.compressor != nullptr) {
      passage.compressor->decompress(passage.dtype, from, length, to);
    } else {
      base::convert(passage.wire, from, passage.dtype, to, length);
    }
    co_await next_turn();
  }
}

Task BatchRunner::broadcast(Operation& operation) {
  CollectiveCall call = make_call();
  call.dtype = operation.request.dtype;
  call.output = operation.output;
  call.count = operation.request.size_bytes() / size_of(call.dtype);
  const auto root = std::find(world_ranks_.begin(), world_ranks_.end(), operation.request.root);
  call.root = static_cast<int>(root - world_ranks_.begin());
  co_await choose(Collective::Broadcast, operation.request.size_bytes(), false).run(call);
}

Task BatchRunner::all_gather(Operation& operation) {
  std::vector<std::size_t> counts;
  co_await gather_counts(static_cast<std::size_t>(operation.row_count), counts);
  operation.output =
      operation.allocate_output(std::vector<std::int64_t>(counts.begin(), counts.end()));

  const std::size_t row_elements =
      operation.request.size_bytes() / size_of(operation.request.dtype);
  std::size_t total = 0;
  for (std::size_t& count : counts) {
    count *= row_elements;
    total += count;
  }
  CollectiveCall call = make_call();
  call.dtype = operation.request.dtype;
  call.input = operation.input;
  call.output = operation.output;
  call.gather_counts = counts;
  co_await choose(Collective::AllGather, total * size_of(call.dtype), false).run(call);
}

Task BatchRunner::share_memory(Operation& operation) {
  if (staging_ == nullptr) co_return;
  co_await world_.make_window(communicator_, kShareMemoryTag, operation.request.size_bytes(),
                              operation.shared_window);
}

/// Every rank's number, in the order of ranks.
Task BatchRunner::gather_counts(std::size_t own, std::vector<std::size_t>& all) {
  static_assert(sizeof(std::size_t) == size_of(DType::Int64));
  const std::size_t size = static_cast<std::size_t>(communicator_.size());
  all.assign(size, 0);
  const std::vector<std::size_t> one_each(size, 1);
  CollectiveCall call = make_call();
  call.dtype = DType::Int64;
  call.input = reinterpret_cast<const std::byte*>(&own);
  call.output = reinterpret_cast<std::byte*>(all.data());
  call.gather_counts = one_each;
  co_await choose(Collective::AllGather, size * sizeof(std::size_t), false).run(call);
}

CollectiveCall BatchRunner::make_call() const {
  CollectiveCall call;
  call.communicator = &communicator_;
  call.window = staging_;
  call.segment_bytes = config_.segment_bytes;
  return call;
}

const Algorithm& BatchRunner::choose(Collective collective, std::size_t bytes,
                                     bool has_peer_buffers) const {
  const ops::Situation situation{collective,           bytes,
                                 communicator_.size(), staging_ != nullptr,
                                 has_peer_buffers,     communicator_.native() != nullptr};
  const bool is_all_reduce = collective == Collective::AllReduce;
  return ops::select(choices_.algorithms, situation,
                     is_all_reduce ? config_.allreduce : std::string{});
}

std::uint64_t BatchRunner::bytes_sent() const {
  return communicator_.bytes_sent() + (staging_ != nullptr ? staging_->bytes_moved() : 0);
}

}  // namespace kolo::runtime
