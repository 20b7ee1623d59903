#include "runtime/data/dispatch.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <string>

#include "kolo/error.hpp"
#include "ops/kernels/pieces.hpp"
#include "runtime/data/absent_ranks.hpp"
#include "runtime/data/memory_overlap.hpp"
#include "runtime/data/set_context.hpp"

namespace kolo::runtime {
namespace {

/// A running operation.
struct Dispatched {
  const SetContext& set;
  Backend& backend;
  Operation& operation;
  const Bits& absent;

  const TensorType& type(std::size_t index) const { return operation.request.tensors[index]; }
  TensorMemory& memory(std::size_t index) const { return operation.tensors[index]; }

  /// What is wrong with the memory concerns this rank alone, and the others have passed the point
  /// where they could agree on an error: it ends the set, as an exception of the function does.
  void allocate_output(std::size_t index, const std::vector<std::size_t>& rows) const {
    TensorMemory& memory = this->memory(index);
    const std::vector<std::int64_t> counts(rows.begin(), rows.end());
    memory.output = static_cast<std::byte*>(memory.allocate_output(counts));
    const std::size_t total = std::accumulate(rows.begin(), rows.end(), std::size_t{0});
    if (memory.output == nullptr && total * type(index).size_bytes() > 0) {
      throw InvalidArgument(describe(operation.request) + ": AllocateRows returned null for " +
                            std::to_string(total) + " rows. Return memory for them, or throw.");
    }
    if (!backend.may_allocate(operation))
      throw InvalidArgument(captured_on(set.communicator->rank()));
    backend.await_allocation(operation);
  }

  std::string captured_on(int rank) const {
    return describe(operation.request) + " on process set " + set.name + ": its stream on " +
           set.rank_text(rank) +
           " is being captured into a CUDA graph since it was called. Wait for it before the "
           "capture.";
  }

  /// See allocate_output().
  void check_overlap(std::span<const TensorRows> rows) const {
    const bool is_gather = operation.request.collective == Collective::AllGather;
    std::vector<UsedMemory> used;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const std::size_t row = type(i).size_bytes();
      const std::vector<ops::Range> places = ops::ranges_of(rows[i].received);
      const std::size_t own = places[static_cast<std::size_t>(set.communicator->rank())].begin;
      const std::size_t total = places.back().begin + places.back().length;
      const TensorMemory& memory = this->memory(i);
      used.push_back({.input = {memory.input, static_cast<std::size_t>(memory.row_count) * row},
                      .output = {memory.output, total * row},
                      .in_place = is_gather ? memory.output + own * row : nullptr});
    }
    const std::string problem = overlap_in(operation.request.collective, used);
    if (!problem.empty()) throw InvalidArgument(describe(operation.request) + ": " + problem);
  }

  /// A call on tensor `index`. A joined rank has no memory in the shared buffer, so ranks access
  /// each other's buffers only if all have submitted the operation.
  CollectiveCall make_call(std::size_t index) const {
    CollectiveCall call = set.make_call();
    call.dtype = type(index).dtype;
    call.input = memory(index).input;
    call.output = memory(index).output;
    if (absent.none()) call.peer_buffers = memory(index).peer_buffers;
    return call;
  }
};

// --- make_room ---

/// What a rank that may not allocate now tells the others in place of a number of rows.
constexpr std::size_t kCannotAllocate = static_cast<std::size_t>(-1);

void refuse_captures(const Dispatched& run, std::span<const std::size_t> rows) {
  const auto found = std::ranges::find(rows, kCannotAllocate);
  if (found == rows.end()) return;
  const auto rank = static_cast<int>(found - rows.begin());
  throw AgreedFailure{{ErrorKind::InvalidArgument, run.captured_on(rank)}};
}

Task make_room_to_gather(const Dispatched& run, std::size_t index, TensorRows& rows) {
  TensorMemory& memory = run.memory(index);
  const std::vector<std::int64_t>& agreed_rows = run.operation.request.rows;
  rows.received.assign(agreed_rows.begin(), agreed_rows.end());
  if (!agreed_rows.empty()) co_return;
  const std::vector<std::size_t> own{run.backend.may_allocate(run.operation)
                                         ? static_cast<std::size_t>(memory.row_count)
                                         : kCannotAllocate};
  co_await gather_numbers(run.set, own, rows.received);
  refuse_captures(run, rows.received);
  run.allocate_output(index, rows.received);
}

Task make_room_to_exchange(const Dispatched& run, std::size_t index, TensorRows& rows) {
  TensorMemory& memory = run.memory(index);
  rows.sent.assign(memory.send_splits.begin(), memory.send_splits.end());
  if (!run.backend.may_allocate(run.operation)) std::ranges::fill(rows.sent, kCannotAllocate);
  co_await exchange_numbers(run.set, rows.sent, rows.received);
  refuse_captures(run, rows.received);
  if (!run.absent.none()) {
    co_await refuse_rows_for_absent(run.set, run.operation.request, rows.received, run.absent);
  }
  run.allocate_output(index, rows.received);
}

bool is_reduction(const Operation& operation) {
  const Collective collective = operation.request.collective;
  return collective == Collective::AllReduce || collective == Collective::ReduceScatter;
}

/// Elements of a tensor that each rank keeps in a reduce-scatter.
std::vector<std::size_t> kept_counts(const TensorType& type, int ranks) {
  const auto rows = static_cast<std::size_t>(type.shape.front());
  const std::size_t row = rows > 0 ? type.count() / rows : 0;
  std::vector<std::size_t> counts;
  for (int rank = 0; rank < ranks; ++rank) {
    counts.push_back(ops::piece_of(rows, ranks, rank).length * row);
  }
  return counts;
}

/// Adjacent operations with the same contributing ranks are reduced alike.
std::vector<Reductions> reductions_of(const SetContext& set, const Operations& batch,
                                      const std::vector<Bits>& absent) {
  std::vector<Reductions> reductions;
  for (std::size_t which = 0; which < batch.size(); ++which) {
    const Request& request = batch[which]->request;
    if (which == 0 || absent[which] != absent[which - 1]) {
      reductions.push_back({&request, joined_of(set, absent[which])});
    }
    Reductions& alike = reductions.back();
    for (std::size_t i = 0; i < request.tensors.size(); ++i) {
      const TensorType& type = request.tensors[i];
      alike.items.push_back({&type, &batch[which]->tensors[i]});
      if (request.collective == Collective::AllReduce) continue;
      alike.counts.push_back(kept_counts(type, set.communicator->size()));
    }
  }
  return reductions;
}

// --- dispatch ---

void multiply(std::vector<std::size_t>& counts, std::size_t factor) {
  for (std::size_t& count : counts) count *= factor;
}

Move all_gather(const Dispatched& run, std::size_t index, const std::vector<std::size_t>& counts) {
  const std::vector<ops::Range> places = ops::ranges_of(counts);
  CollectiveCall call = run.make_call(index);
  call.counts = counts;
  call.shares_output = run.operation.request.is_once_per_node();
  if (call.input == nullptr) {  // in place
    const auto own = static_cast<std::size_t>(run.set.communicator->rank());
    call.input = call.output + places[own].begin * size_of(call.dtype);
  }
  const std::size_t total = places.back().begin + places.back().length;
  return {call, total * size_of(call.dtype)};
}

Move broadcast(const Dispatched& run, std::size_t index) {
  const std::vector<int>& ranks = run.set.world_ranks;
  const auto root = std::find(ranks.begin(), ranks.end(), run.operation.request.root);
  CollectiveCall call = run.make_call(index);
  call.count = run.type(index).count();
  call.root = static_cast<int>(root - ranks.begin());
  return {call, run.type(index).size_bytes()};
}

Move all_to_all(const Dispatched& run, std::size_t index, const TensorRows& elements) {
  CollectiveCall call = run.make_call(index);
  call.send_counts = elements.sent;
  call.receive_counts = elements.received;
  // Splits differ between ranks; the size of a row does not.
  return {call, run.type(index).size_bytes()};
}

Move make_move(const Dispatched& run, std::size_t index, const TensorRows& elements) {
  switch (run.operation.request.collective) {
    case Collective::AllGather: return all_gather(run, index, elements.received);
    case Collective::Broadcast: return broadcast(run, index);
    default: return all_to_all(run, index, elements);
  }
}

Task move_all(const Dispatched& run, const std::vector<TensorRows>& rows) {
  std::vector<TensorRows> elements = rows;
  std::vector<Move> moves;
  for (std::size_t i = 0; i < elements.size(); ++i) {
    multiply(elements[i].sent, run.type(i).count());
    multiply(elements[i].received, run.type(i).count());
    moves.push_back(make_move(run, i, elements[i]));
  }
  co_await run.backend.move(run.operation.request.collective, moves);
}

}  // namespace

Task make_room(const SetContext& set, Backend& backend, const Operations& batch,
               const std::vector<Bits>& absent, BatchPlan& plan) {
  Operation& first = *batch.front();
  if (is_reduction(first)) {
    plan.reductions = reductions_of(set, batch, absent);
    co_await backend.make_room(plan.reductions);
    co_return;
  }
  refuse_for_absent(set, first.request, absent.front());
  std::vector<TensorRows>& rows = plan.rows;
  rows.resize(first.tensors.size());
  const Dispatched run{set, backend, first, absent.front()};
  for (std::size_t i = 0; i < rows.size(); ++i) {
    switch (first.request.collective) {
      case Collective::AllGather: co_await make_room_to_gather(run, i, rows[i]); break;
      case Collective::AllToAll: co_await make_room_to_exchange(run, i, rows[i]); break;
      default: break;  // the program has allocated the output
    }
  }
  if (first.request.has_allocated_outputs()) run.check_overlap(rows);
}

Task dispatch(const SetContext& set, Backend& backend, const Operations& batch,
              const std::vector<Bits>& absent, const BatchPlan& plan) {
  const Dispatched first{set, backend, *batch.front(), absent.front()};
  switch (first.operation.request.collective) {
    case Collective::AllReduce:
    case Collective::ReduceScatter: co_await backend.reduce(plan.reductions); break;
    case Collective::AllGather:
    case Collective::Broadcast:
    case Collective::AllToAll: co_await move_all(first, plan.rows); break;
    default: break;  // a barrier and the like move nothing
  }
}

}  // namespace kolo::runtime
