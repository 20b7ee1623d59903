#include "runtime/device/device_runner.hpp"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "base/deadline.hpp"
#include "kolo/error.hpp"
#include "ops/kernels/identity.hpp"
#include "ops/kernels/pieces.hpp"
#include "runtime/data/absent_ranks.hpp"
#include "runtime/data/numbers.hpp"
#include "runtime/protocol/agreed_failure.hpp"

namespace kolo::runtime {
namespace {

constexpr int kConnectTag = Communicator::kTagCount - 1;  // algorithms use the low ones

/// This rank's turn to launch; over when a batch has been launched, or has failed.
class Turn {
 public:
  Turn(LaunchOrder& order, std::uint64_t ticket) : order_(order), ticket_(ticket) {}
  Turn(const Turn&) = delete;  // it ends once
  Turn& operator=(const Turn&) = delete;
  ~Turn() { order_.leave(ticket_); }

 private:
  LaunchOrder& order_;
  std::uint64_t ticket_;
};

}  // namespace

DeviceRunner::DeviceRunner(comm::Gpus& gpus, const DataPath& path, LaunchOrder& order,
                           int local_rank)
    : gpus_(gpus),
      path_(path),
      order_(order),
      local_rank_(local_rank),
      traffic_(path.communicator->size()) {}

// --- any thread ---

comm::Gpu& DeviceRunner::use(int gpu) {
  const std::lock_guard lock(opening_);
  if (gpu_ == nullptr) {
    std::shared_ptr<comm::Gpu> opened = gpus_.open(gpu);
    stream_ = opened->make_stream();
    gpu_ = std::move(opened);
  }
  if (gpu_->index() == gpu) return *gpu_;
  throw InvalidArgument("the tensor lies on cuda:" + std::to_string(gpu) +
                        ", but this rank uses cuda:" + std::to_string(gpu_->index()) +
                        " in this process set. A rank has one GPU: move the tensor there.");
}

int DeviceRunner::own_gpu() {
  const std::lock_guard lock(opening_);
  return gpu_ == nullptr ? local_rank_ % gpus_.count() : gpu_->index();
}

void DeviceRunner::prepare(Operation& operation) {
  DeviceOrder& order = operation.device;
  comm::Gpu& gpu = use(order.gpu);
  order.ready = events_.take(gpu);
  gpu.record(order.ready.get(), order.stream);
}

void DeviceRunner::order_after(const Operation& operation) {
  const DeviceOrder& order = operation.device;
  use(order.gpu).wait(order.stream, order.done.get());
}

// --- batches ---

Task DeviceRunner::connect(const Request& first) {
  if (communicator_ != nullptr) co_return;
  if (!path_.config.share_gpu) co_await require_own_gpus(first);
  co_await gpus_.connect(*path_.communicator, kConnectTag, *gpu_, communicator_);
  reducer_.emplace(path_, *gpu_, *communicator_, stream_.get(), traffic_);
}

/// NCCL would refuse two ranks on one GPU, with less to say.
Task DeviceRunner::require_own_gpus(const Request& first) {
  const std::vector<std::size_t> own{gpu_->id()};
  std::vector<std::size_t> ids;
  co_await gather_numbers(path_, own, ids);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const auto same = std::find(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(i), ids[i]);
    const auto other = static_cast<std::size_t>(same - ids.begin());
    if (other == i) continue;
    throw AgreedFailure{
        {ErrorKind::InvalidArgument,
         describe(first) + " on process set " + path_.name + ": ranks " +
             std::to_string(path_.world_rank(other)) + " and " +
             std::to_string(path_.world_rank(i)) +
             " use the same GPU. Put each rank's tensors on a GPU of its own, cuda:local_rank, and "
             "start at most as many ranks on a node as it has GPUs; or set KOLO_SHARE_GPU=on to "
             "try things out, slowly."}};
  }
}

Task DeviceRunner::run(Operations operations, bool have_some_joined, bool is_ordered) {
  for (const auto& operation : operations) operation->started = Operation::Clock::now();
  std::vector<Bits> absent(operations.size());
  if (have_some_joined) co_await find_absent(path_, operations, absent);
  co_await connect(operations.front()->request);
  std::optional<Turn> turn;
  if (is_ordered) {
    std::uint64_t ticket = 0;
    co_await order_.enter(path_, ticket);
    turn.emplace(order_, ticket);
  }
  for (const auto& operation : operations) {
    gpu_->wait(stream_.get(), operation->device.ready.get());
  }
  std::shared_ptr<void> mark = gpu_->mark(operations.front()->request.name);
  const std::shared_ptr<CUevent_st> began = timers_.take(*gpu_);
  gpu_->record(began.get(), stream_.get());
  co_await launch(operations, absent);
  const std::shared_ptr<CUevent_st> done = timers_.take(*gpu_);
  gpu_->record(done.get(), stream_.get());
  for (const auto& operation : operations) operation->device.done = done;
  const auto give_up_at = give_up_time(operations);
  launched_.push_back(
      {began, done, std::move(mark), give_up_at, std::move(operations), reducer_->take_outgrown()});
}

Task DeviceRunner::launch(const Operations& operations, const std::vector<Bits>& absent) {
  if (operations.front()->request.collective == Collective::AllReduce) {
    co_await all_reduce_together(path_, *reducer_, operations, absent);
  } else {
    co_await launch_one(*operations.front(), absent.front());
  }
}

Task DeviceRunner::launch_one(Operation& operation, const Bits& absent) {
  const Request& request = operation.request;
  refuse_for_absent(path_, request, absent);
  for (std::size_t i = 0; i < operation.tensors.size(); ++i) {
    const TensorType& type = request.tensors[i];
    TensorMemory& memory = operation.tensors[i];
    switch (request.collective) {
      case Collective::AllGather:
        if (request.rows.empty()) {
          co_await all_gather(type, memory, operation.device);
        } else {
          co_await all_gather_in_place(request, memory);
        }
        break;
      case Collective::Broadcast: {
        const auto& ranks = path_.world_ranks;
        const auto root = std::find(ranks.begin(), ranks.end(), request.root) - ranks.begin();
        traffic_.add_round(type.size_bytes());
        communicator_->broadcast(memory.output, type.count(), type.dtype, static_cast<int>(root),
                                 stream_.get());
        co_await *communicator_;
        break;
      }
      case Collective::ReduceScatter: {
        const ReductionItem item{&type, &memory};
        const JoinedRanks joined = joined_of(path_, absent);
        co_await reducer_->reduce_scatter(request, item, joined);
        break;
      }
      case Collective::AllToAll:
        co_await all_to_all(request, i, memory, operation.device, absent);
        break;
      default: break;
    }
  }
}

Task DeviceRunner::all_gather(const TensorType& type, TensorMemory& memory,
                              const DeviceOrder& order) {
  const std::vector<std::size_t> own{static_cast<std::size_t>(memory.row_count)};
  std::vector<std::size_t> counts;
  co_await gather_numbers(path_, own, counts);
  allocate(memory, counts, order);
  std::size_t total = 0;
  for (std::size_t& count : counts) total += count *= type.count();
  traffic_.add_round(total * size_of(type.dtype));
  communicator_->all_gather(memory.input, memory.output, counts, type.dtype, stream_.get());
  co_await *communicator_;
}

Task DeviceRunner::all_gather_in_place(const Request& request, TensorMemory& memory) {
  const TensorType& type = request.tensors.front();
  std::vector<std::size_t> counts;
  for (const std::int64_t rows : request.rows) {
    counts.push_back(static_cast<std::size_t>(rows) * type.count());
  }
  const std::vector<ops::Range> places = ops::ranges_of(counts);
  const std::size_t begin = places[static_cast<std::size_t>(path_.communicator->rank())].begin;
  traffic_.add_round((places.back().begin + places.back().length) * size_of(type.dtype));
  communicator_->all_gather(memory.output + begin * size_of(type.dtype), memory.output, counts,
                            type.dtype, stream_.get());
  co_await *communicator_;
}

Task DeviceRunner::all_to_all(const Request& request, std::size_t index, TensorMemory& memory,
                              const DeviceOrder& order, const Bits& absent) {
  std::vector<std::size_t> sent(memory.send_splits.begin(), memory.send_splits.end());
  std::vector<std::size_t> received;
  co_await exchange_numbers(path_, sent, received);
  if (!absent.none()) co_await refuse_rows_for_absent(path_, request, received, absent);
  allocate(memory, received, order);
  const TensorType& type = request.tensors[index];
  const auto own = static_cast<std::size_t>(path_.communicator->rank());
  for (std::size_t& count : sent) count *= type.count();
  for (std::size_t& count : received) count *= type.count();
  traffic_.add_sent((std::accumulate(sent.begin(), sent.end(), std::size_t{0}) - sent[own]) *
                    size_of(type.dtype));
  communicator_->all_to_all(memory.input, sent, memory.output, received, type.dtype, stream_.get());
  co_await *communicator_;
}

/// The program's allocator orders memory by the program's stream: what used it before may still be
/// there.
void DeviceRunner::allocate(TensorMemory& memory, const std::vector<std::size_t>& rows,
                            const DeviceOrder& order) {
  const std::vector<std::int64_t> counts(rows.begin(), rows.end());
  memory.output = static_cast<std::byte*>(memory.allocate_output(counts));
  const std::shared_ptr<CUevent_st> allocated = events_.take(*gpu_);
  gpu_->record(allocated.get(), order.stream);
  gpu_->wait(stream_.get(), allocated.get());
}

std::shared_ptr<Operation> DeviceRunner::make_identity(const Request& request) {
  auto operation = std::make_shared<Operation>();
  operation->request = request;
  operation->device.gpu = own_gpu();
  comm::Gpu& gpu = use(operation->device.gpu);
  operation->device.stream = stream_.get();
  const auto scratch = std::make_shared<std::vector<std::shared_ptr<std::byte>>>();
  operation->keep_alive = scratch;
  const auto add = [&gpu, scratch = scratch.get()](std::size_t bytes) {
    return scratch->emplace_back(gpu.allocate(bytes)).get();
  };
  for (const TensorType& type : request.tensors) {
    TensorMemory& memory = operation->tensors.emplace_back();
    memory.send_splits.assign(path_.world_ranks.size(), 0);
    memory.allocate_output = [add, row_bytes =
                                       type.size_bytes()](const std::vector<std::int64_t>& rows) {
      return add(
          static_cast<std::size_t>(std::accumulate(rows.begin(), rows.end(), std::int64_t{0})) *
          row_bytes);
    };
    if (!request.rows.empty()) {
      const auto rows = std::accumulate(request.rows.begin(), request.rows.end(), std::int64_t{0});
      memory.output = add(static_cast<std::size_t>(rows) * type.size_bytes());
      gpu.fill(memory.output, static_cast<std::size_t>(rows) * type.count(), type.dtype,
               comm::Scalar{}, stream_.get());
    }
    const bool is_reduction = request.collective == Collective::AllReduce ||
                              request.collective == Collective::ReduceScatter;
    if (!is_reduction && request.collective != Collective::Broadcast) continue;
    memory.output = add(type.size_bytes());
    if (!is_reduction) continue;
    std::byte* const input = add(type.size_bytes());
    memory.input = input;
    alignas(std::int64_t) comm::Scalar identity{};
    ops::fill_identity(type.dtype, Reduction{request.op}, identity.data(), 1);
    gpu.fill(input, type.count(), type.dtype, identity, stream_.get());
  }
  prepare(*operation);
  return operation;
}

void DeviceRunner::retire() {
  if (launched_.empty()) return;
  communicator_->ready();
  while (!launched_.empty() && gpu_->has_passed(launched_.front().done.get())) {
    const Launched& ended = launched_.front();
    seconds_ += gpu_->seconds_between(ended.began.get(), ended.done.get());
    launched_.pop_front();
  }
  if (launched_.empty() || Operation::Clock::now() < launched_.front().give_up_at) return;
  throw BackendError(describe(launched_.front().operations.front()->request) +
                     " was launched on the GPU, and has not ended there although its deadline is "
                     "long over: a GPU hangs, or GPUs do not reach one another. NCCL_DEBUG=INFO "
                     "says more.");
}

/// Some time after the last of their deadlines.
Operation::Clock::time_point DeviceRunner::give_up_time(const Operations& operations) const {
  using TimePoint = Operation::Clock::time_point;
  TimePoint last{};
  for (const auto& operation : operations) last = std::max(last, operation->deadline);
  return later(last, path_.config.lost_after);
}

void DeviceRunner::abort(const std::string& reason) noexcept {
  order_.give_up();
  if (communicator_ != nullptr) communicator_->abort(reason);
}

}  // namespace kolo::runtime
