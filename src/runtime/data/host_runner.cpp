#include "runtime/data/host_runner.hpp"

#include <vector>

#include "base/log.hpp"
#include "kolo/error.hpp"
#include "ops/kernels/identity.hpp"
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
  for (const auto& operation : batch) operation->started = Operation::Clock::now();
  std::vector<Bits> absent(batch.size());
  if (have_some_joined) co_await find_absent(path_, batch, absent);
  std::vector<TensorRows> rows;
  co_await make_room(path_, backend_, batch, absent, rows);
  co_await dispatch(path_, backend_, batch, absent, rows);
  Operation& first = *batch.front();
  switch (first.request.collective) {
    case Collective::AddProcessSet: first.process_set_number = ++process_sets_; break;
    case Collective::ShareMemory: co_await share_memory(first); break;
    default: break;
  }
}

/// If the system provides no shared memory, the buffer is private on all ranks that would share it.
Task HostRunner::share_memory(Operation& operation) {
  operation.shared_memory_number = ++shared_memories_;
  const bool is_per_node = operation.request.is_once_per_node();
  if (path_.staging == nullptr && !is_per_node) co_return;
  Communicator& sharers = is_per_node ? *path_.node_communicator : *path_.communicator;
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
  return runtime::make_stand_in(path_, request, std::make_shared<HostScratch>());
}

std::uint64_t HostRunner::bytes_sent() const {
  std::uint64_t bytes = path_.communicator->bytes_sent();
  for (const auto& window : {path_.staging, path_.node_staging}) {
    if (window != nullptr) bytes += window->bytes_moved();
  }
  return bytes;
}

}  // namespace kolo::runtime
