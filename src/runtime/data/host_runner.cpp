#include "runtime/data/host_runner.hpp"

#include <cstddef>
#include <cstdint>
#include <exception>
#include <numeric>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/log.hpp"
#include "kolo/error.hpp"
#include "ops/kernels/kernels.hpp"
#include "runtime/data/absent_ranks.hpp"
#include "runtime/data/dispatch.hpp"
#include "runtime/protocol/bits.hpp"

namespace kolo::runtime {
namespace {

constexpr int kShareMemoryTag = Communicator::kTagCount - 2;  // algorithms use the low ones

class HostScratch final : public ScratchMemory {
 public:
  std::byte* allocate(std::size_t bytes) override { return buffers_.emplace_back(bytes).data(); }
  void fill_identity(DType dtype, const Reduction& reduction, std::byte* to,
                     std::size_t count) override {
    ops::fill_identity(dtype, reduction, to, count);
  }

 private:
  std::vector<std::vector<std::byte>> buffers_;
};

}  // namespace

Task HostRunner::run(Operations batch, bool have_some_joined) {
  return run(std::move(batch), have_some_joined, *set_.communicator);
}

/// `of_world`: the communicator as the world has made it.
Task HostRunner::run(Operations batch, bool have_some_joined, Communicator& of_world) {
  for (const auto& operation : batch) operation->started = Operation::Clock::now();
  std::vector<Bits> absent(batch.size());
  if (have_some_joined) co_await find_absent(set_, batch, absent);
  BatchPlan plan;
  co_await make_room(set_, backend_, batch, absent, plan);
  co_await dispatch(set_, backend_, batch, absent, plan);
  Operation& first = *batch.front();
  switch (first.request.collective) {
    case Collective::AddProcessSet: first.process_set_number = ++process_sets_; break;
    case Collective::ShareMemory: co_await share_memory(first, of_world); break;
    default: break;
  }
}

namespace {

/// The memory that other ranks would access in algorithms that copy nothing; empty: there are none
/// for this operation.
std::span<const std::byte> memory_for_peers(const Operation& operation, int rank) {
  const Request& request = operation.request;
  if (operation.tensors.size() != 1 || request.is_on_buffers()) return {};
  const TensorMemory& memory = operation.tensors.front();
  const std::size_t bytes = request.size_bytes();
  switch (request.collective) {
    case Collective::AllReduce:
      if (memory.input != memory.output) break;
      return {memory.output, bytes};
    case Collective::ReduceScatter: return {memory.input, bytes};
    case Collective::AllGather: {
      if (request.rows.empty()) break;
      const auto own = request.rows.begin() + rank;
      const std::int64_t before = std::accumulate(request.rows.begin(), own, std::int64_t{0});
      const std::int64_t all = std::accumulate(own, request.rows.end(), before);
      if (memory.input != memory.output + static_cast<std::size_t>(before) * bytes) break;
      return {memory.output, static_cast<std::size_t>(all) * bytes};
    }
    default: break;
  }
  return {};
}

}  // namespace

/// Whether all ranks' memory lies in their heaps; then each finds that of the others.
Task HostRunner::find_peer_buffers(Operation& operation, OrderedCommunicator& order) {
  co_await order.all_sharers_begun();
  const auto places = order.places();
  if (!places) co_return;
  for (std::size_t rank = 0; rank < places->size(); ++rank) {
    operation.tensors.front().peer_buffers.push_back(
        set_.heap->at(static_cast<int>(rank), (*places)[rank]));
  }
}

Task HostRunner::run_in_order(Operations one, OrderedCommunicator& order) {
  const Request& request = one.front()->request;
  std::optional<std::size_t> place;
  if (set_.heap != nullptr) {
    place = set_.heap->offset_of(memory_for_peers(*one.front(), order.rank()));
  }
  co_await order.room();
  order.begin(request, place.value_or(Stamp::kNowhere));
  if (place) co_await find_peer_buffers(*one.front(), order);
  // The others read and write this rank's memory, as their own requests say.
  if (request.is_on_buffers()) co_await order.all_sharers_begun();
  const bool is_barrier = request.collective == Collective::Barrier ||
                          request.collective == Collective::RemoveProcessSet;
  if (is_barrier) {
    std::vector<std::size_t> all;
    const std::vector<std::size_t> own{0};
    co_await gather_numbers(set_, own, all);
  }
  Task whole = run(one, false, order.inner());
  std::exception_ptr error;
  try {
    co_await whole;
  } catch (const BackendError&) {  // as of a message of another size: its sender's stamp says why
    error = std::current_exception();
  }
  co_await order.agreement();
  if (error) std::rethrow_exception(error);
}

/// If the system provides no shared memory, the buffer is private on all ranks that would share it.
Task HostRunner::share_memory(Operation& operation, Communicator& of_world) {
  operation.shared_memory_number = ++shared_memories_;
  const bool is_per_node = operation.request.is_once_per_node();
  if (set_.staging == nullptr && !is_per_node) co_return;
  Communicator& sharers = is_per_node ? *set_.node_communicator : of_world;
  try {
    co_await world_.make_window(sharers, kShareMemoryTag, operation.request.size_bytes(),
                                operation.shared_window);
  } catch (const BackendError& error) {
    if (sharers.rank() == 0) {
      KOLO_LOG(Warn) << describe(operation.request)
                     << ": private memory, not shared: " << error.what();
    }
  }
}

std::shared_ptr<Operation> HostRunner::make_stand_in(const Request& request) const {
  return runtime::make_stand_in(set_, request, std::make_shared<HostScratch>());
}

Metrics::Bytes HostRunner::bytes() const {
  Metrics::Bytes bytes{.messages = set_.communicator->bytes_sent(),
                       .packed = backend_.bytes_packed()};
  for (const auto* const window : {set_.staging.get(), set_.node_staging.get()}) {
    if (window != nullptr) bytes.shared_memory += window->bytes_moved();
  }
  return bytes;
}

}  // namespace kolo::runtime
