#include "runtime/data/batch_runner.hpp"

#include <algorithm>
#include <memory>
#include <string>

#include "base/log.hpp"
#include "kolo/error.hpp"
#include "ops/kernels/identity.hpp"
#include "ops/kernels/pieces.hpp"
#include "runtime/data/absent_ranks.hpp"
#include "runtime/data/numbers.hpp"

namespace kolo::runtime {
namespace {

constexpr int kShareMemoryTag = Communicator::kTagCount - 2;  // algorithms use the low ones

std::vector<std::int64_t> rows_of(const std::vector<std::size_t>& numbers) {
  return {numbers.begin(), numbers.end()};
}

/// Memory that ends with the operation that owns it.
struct Scratch {
  std::vector<std::vector<std::byte>> buffers;

  std::byte* add(std::size_t bytes) { return buffers.emplace_back(bytes).data(); }
};

}  // namespace

BatchRunner::BatchRunner(comm::World& world, const DataPath& path)
    : world_(world), path_(path), reducer_(path) {}

Task BatchRunner::run(Operations operations, bool have_some_joined) {
  for (const auto& operation : operations) operation->started = Operation::Clock::now();
  std::vector<Bits> absent(operations.size());
  if (have_some_joined) co_await find_absent(path_, operations, absent);
  if (operations.front()->request.collective == Collective::AllReduce) {
    co_await all_reduce_together(path_, reducer_, operations, absent);
  } else {
    co_await run_one(*operations.front(), absent.front());
  }
}

Task BatchRunner::run_one(Operation& operation, const Bits& absent) {
  const Request& request = operation.request;
  refuse_for_absent(path_, request, absent);
  if (request.collective == Collective::ShareMemory) {
    co_await share_memory(operation);
    co_return;
  }
  for (std::size_t i = 0; i < operation.tensors.size(); ++i) {
    TensorMemory& memory = operation.tensors[i];
    switch (request.collective) {
      case Collective::AllGather:
        if (request.rows.empty()) {
          co_await all_gather(request.tensors[i], memory);
        } else {
          co_await all_gather_in_place(request, memory, absent);
        }
        break;
      case Collective::Broadcast: co_await broadcast(request, i, memory, absent); break;
      case Collective::ReduceScatter: {
        const ReductionItem item{&request.tensors[i], &memory};
        const JoinedRanks away = joined_of(path_, absent);
        co_await reducer_.reduce_scatter(request, item, away);
        break;
      }
      case Collective::AllToAll: co_await all_to_all(request, i, memory, absent); break;
      default: break;  // a barrier and the like: that all ranks agreed to run it is all there is
    }
  }
  if (request.collective == Collective::AddProcessSet) operation.result = ++process_sets_;
}

Task BatchRunner::broadcast(const Request& request, std::size_t index, TensorMemory& memory,
                            const Bits& absent) {
  const TensorType& type = request.tensors[index];
  CollectiveCall call = path_.make_call();
  call.dtype = type.dtype;
  call.output = memory.output;
  call.count = type.count();
  const auto root = std::find(path_.world_ranks.begin(), path_.world_ranks.end(), request.root);
  call.root = static_cast<int>(root - path_.world_ranks.begin());
  call.peer_buffers = reachable(memory, absent);
  co_await choose(call, Collective::Broadcast, type.size_bytes()).run(call);
}

Task BatchRunner::all_gather(const TensorType& type, TensorMemory& memory) {
  std::vector<std::size_t> counts;
  const std::vector<std::size_t> own{static_cast<std::size_t>(memory.row_count)};
  co_await gather_numbers(path_, own, counts);
  memory.output = static_cast<std::byte*>(memory.allocate_output(rows_of(counts)));

  std::size_t total = 0;
  for (std::size_t& count : counts) {
    count *= type.count();
    total += count;
  }
  CollectiveCall call = path_.make_call();
  call.dtype = type.dtype;
  call.input = memory.input;
  call.output = memory.output;
  call.counts = counts;
  co_await path_.choose(Collective::AllGather, total * size_of(call.dtype)).run(call);
}

/// A rank that has joined has zeros in its place.
Task BatchRunner::all_gather_in_place(const Request& request, TensorMemory& memory,
                                      const Bits& absent) {
  const TensorType& type = request.tensors.front();
  std::vector<std::size_t> counts;
  for (const std::int64_t rows : request.rows) {
    counts.push_back(static_cast<std::size_t>(rows) * type.count());
  }
  const std::vector<ops::Range> places = ops::ranges_of(counts);
  const std::size_t own = static_cast<std::size_t>(path_.communicator->rank());
  CollectiveCall call = path_.make_call();
  call.dtype = type.dtype;
  call.input = memory.output + places[own].begin * size_of(call.dtype);
  call.output = memory.output;
  call.counts = counts;
  call.peer_buffers = reachable(memory, absent);
  const std::size_t total = places.back().begin + places.back().length;
  co_await choose(call, Collective::AllGather, total * size_of(call.dtype)).run(call);
}

Task BatchRunner::all_to_all(const Request& request, std::size_t index, TensorMemory& memory,
                             const Bits& absent) {
  std::vector<std::size_t> sent(memory.send_splits.begin(), memory.send_splits.end());
  std::vector<std::size_t> received;
  co_await exchange_numbers(path_, sent, received);
  if (!absent.none()) co_await refuse_rows_for_absent(path_, request, received, absent);
  memory.output = static_cast<std::byte*>(memory.allocate_output(rows_of(received)));

  const TensorType& type = request.tensors[index];
  for (std::size_t& count : sent) count *= type.count();
  for (std::size_t& count : received) count *= type.count();
  CollectiveCall call = path_.make_call();
  call.dtype = type.dtype;
  call.input = memory.input;
  call.output = memory.output;
  call.send_counts = sent;
  call.receive_counts = received;
  call.peer_buffers = reachable(memory, absent);
  // By the bytes of a row, which alone are the same on all ranks.
  co_await choose(call, Collective::AllToAll, type.size_bytes()).run(call);
}

/// Every rank's memory, where all ranks have some: one that has joined has no place of its own.
std::span<std::byte* const> BatchRunner::reachable(const TensorMemory& memory, const Bits& absent) {
  if (!absent.none()) return {};
  return memory.peer_buffers;
}

const Algorithm& BatchRunner::choose(const CollectiveCall& call, Collective collective,
                                     std::size_t bytes) const {
  return path_.choose(collective, bytes, ReduceOp::Sum, !call.peer_buffers.empty());
}

/// Where it cannot be had, on all ranks alike, the buffer is private memory.
Task BatchRunner::share_memory(Operation& operation) {
  operation.result = ++shared_memories_;
  if (path_.staging == nullptr) co_return;
  try {
    co_await world_.make_window(*path_.communicator, kShareMemoryTag,
                                operation.request.size_bytes(), operation.shared_window);
  } catch (const BackendError& error) {
    if (path_.communicator->rank() == 0) {
      KOLO_LOG(Warn) << describe(operation.request)
                     << ": private memory, not shared: " << error.what();
    }
  }
}

std::shared_ptr<Operation> BatchRunner::make_identity(const Request& request) const {
  auto operation = std::make_shared<Operation>();
  operation->request = request;
  const auto scratch = std::make_shared<Scratch>();
  operation->keep_alive = scratch;
  for (const TensorType& type : request.tensors) {
    TensorMemory& memory = operation->tensors.emplace_back();
    memory.send_splits.assign(path_.world_ranks.size(), 0);
    memory.allocate_output = [scratch = scratch.get(), row_bytes = type.size_bytes()](
                                 const std::vector<std::int64_t>& rows) {
      std::size_t count = 0;
      for (const std::int64_t of_rank : rows) count += static_cast<std::size_t>(of_rank);
      return scratch->add(count * row_bytes);
    };
    if (!request.rows.empty()) {
      memory.output = static_cast<std::byte*>(memory.allocate_output(request.rows));
    }
    const bool is_reduction = request.collective == Collective::AllReduce ||
                              request.collective == Collective::ReduceScatter;
    if (!is_reduction && request.collective != Collective::Broadcast) continue;
    memory.output = scratch->add(type.size_bytes());
    if (!is_reduction) continue;
    std::byte* const input = scratch->add(type.size_bytes());
    memory.input = input;
    Reduction reduction{request.op};
    if (request.op == ReduceOp::Custom) {
      reduction.custom = &path_.choices.find_reduction(request.custom);
    }
    ops::fill_identity(type.dtype, reduction, input, type.count());
  }
  return operation;
}

std::uint64_t BatchRunner::bytes_sent() const {
  std::uint64_t bytes = path_.communicator->bytes_sent();
  for (const auto& window : {path_.staging, path_.node_staging}) {
    if (window != nullptr) bytes += window->bytes_moved();
  }
  return bytes;
}

}  // namespace kolo::runtime
