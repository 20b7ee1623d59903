#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <c10/core/Allocator.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/version.h>

#include "extras/c10d/tensors.hpp"
#include "extras/c10d/work.hpp"
#include "kolo/collectives.hpp"
#include "kolo/error.hpp"
#include "kolo/extras/c10d_backend.hpp"
#include "kolo/insight.hpp"
#include "kolo/messages.hpp"
#include "kolo/torch/program_stream.hpp"
#include "kolo/torch/tensor_collectives.hpp"
#include "kolo/torch/tensor_types.hpp"

namespace kolo::c10d_backend {
namespace {

using c10d::OpType;
using Tensors = std::vector<at::Tensor>;
using WorkPointer = c10::intrusive_ptr<c10d::Work>;
using std::chrono::milliseconds;

// c10d's tags are ints. Beyond them are those of gathers, scatters and monitored barriers, which
// are made of messages.
constexpr std::int64_t kFirstOwnTag = std::int64_t{1} << 32;

class StoreOfC10d final : public Store {
 public:
  StoreOfC10d(c10::intrusive_ptr<c10d::Store> store, void (*check)())
      : store_(std::move(store)), check_(check) {}

  void set(const std::string& key, const std::string& value) override { store_->set(key, value); }
  /// Asks again and again: when a wait() of a TCPStore does not end in time, it logs warnings.
  std::optional<std::string> get(const std::string& key, milliseconds timeout) override {
    constexpr milliseconds kLongestPause{20};
    const auto until = std::chrono::steady_clock::now() + timeout;
    for (milliseconds pause{1}; !store_->check({key}); pause = std::min(2 * pause, kLongestPause)) {
      if (std::chrono::steady_clock::now() >= until) {
        if (check_ != nullptr) check_();
        return std::nullopt;
      }
      std::this_thread::sleep_for(pause);
    }
    return store_->get_to_str(key);
  }

 private:
  const c10::intrusive_ptr<c10d::Store> store_;
  void (*const check_)();
};

/// A sum of truth values is their "or", a product their "and", as in c10d's NCCL.
AllreduceOptions reduction_of(const c10d::ReduceOp& op, const at::Tensor& tensor,
                              const char* operation) {
  const bool is_truth = tensor.scalar_type() == at::kBool;
  switch (op) {
    case c10d::ReduceOp::SUM: return {.op = is_truth ? ReduceOp::Max : ReduceOp::Sum};
    case c10d::ReduceOp::AVG: return {.op = ReduceOp::Average};
    case c10d::ReduceOp::PRODUCT: return {.op = is_truth ? ReduceOp::Min : ReduceOp::Product};
    case c10d::ReduceOp::MIN: return {.op = ReduceOp::Min};
    case c10d::ReduceOp::MAX: return {.op = ReduceOp::Max};
    case c10d::ReduceOp::BAND: return {.op = ReduceOp::BitAnd};
    case c10d::ReduceOp::BOR: return {.op = ReduceOp::BitOr};
    case c10d::ReduceOp::BXOR: return {.op = ReduceOp::BitXor};
    case c10d::ReduceOp::PREMUL_SUM: {
      const auto* factor = dynamic_cast<const c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
      if (factor == nullptr) break;
      const double value = factor->tensor_factor.defined() ? factor->tensor_factor.item<double>()
                                                           : factor->double_factor;
      return {.op = ReduceOp::Sum, .prescale = value};
    }
    default: break;
  }
  throw InvalidArgument(std::string(operation) +
                        ": Kolo does not have this reduction. It has SUM, AVG, PRODUCT, MIN, "
                        "MAX, BAND, BOR, BXOR and PREMUL_SUM.");
}

/// Of tensors that are reduced together.
AllreduceOptions reduction_of(const c10d::ReduceOp& op, const Tensors& tensors,
                              const char* operation) {
  const std::string name = operation;
  if (tensors.empty()) throw InvalidArgument(name + ": there are no tensors. Pass at least one.");
  const auto is_truth = [](const at::Tensor& tensor) { return tensor.scalar_type() == at::kBool; };
  if (!std::ranges::all_of(tensors, [&](const at::Tensor& tensor) {
        return is_truth(tensor) == is_truth(tensors.front());
      })) {
    throw InvalidArgument(name +
                          ": some tensors are of Bool, others are not. Reduce them separately.");
  }
  return reduction_of(op, tensors.front(), operation);
}

/// An operation begins. The first of a backward() tells that gradients are being reduced.
void note_backward() {
  thread_local int last = -1;
  const int task = torch::autograd::get_current_graph_task_id();
  if (task == -1 || task == last) return;
  last = task;
  enter_phase(TrainingPhase::Backward);
  torch::autograd::Engine::get_default_engine().queue_callback([] {
    // A node runs while this is one backward() within another, as of checkpoints.
    if (torch::autograd::get_current_node() != nullptr) return;
    enter_phase(TrainingPhase::Step);
    OperationWork::wait_for_futures_of_backward();
  });
}

class Backend final : public c10d::Backend {
 public:
  Backend(ProcessSet& set, milliseconds timeout, const extras::Interpreter& interpreter)
      : c10d::Backend(set.rank(), set.size()),
        set_(set.shared_from_this()),
        options_(c10::make_intrusive<Options>("kolo", timeout)),
        interpreter_(interpreter) {
    init();
  }

  const std::string getBackendName() const override { return "kolo"; }
  void setSequenceNumberForGroup() override {}  // operations are counted from the start
  std::uint64_t getSequenceNumberForGroup() override { return sequence_; }
  /// The weak reference of the group that it was split from keeps the object, not its threads.
  void release_resources() override { futures_.reset(); }
  void shutdown() override {
    const auto set = std::exchange(set_, nullptr);
    try {
      if (set != nullptr) set->runtime().remove_process_set(*set);
    } catch (const Error&) {  // other ranks have ended, or the Runtime, and the set with it
    }
  }

#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 9  // torch has these calls since then
  c10::intrusive_ptr<Options> getBackendOptions() override { return options_; }
  void setTimeout(milliseconds timeout) override { options_->timeout = timeout; }
  c10::intrusive_ptr<c10d::Backend> split(const c10::intrusive_ptr<c10d::Store>& store,
                                          const std::vector<int>& ranks,
                                          const c10::intrusive_ptr<Options>& options) override {
    if (std::ranges::find(ranks, rank_) == ranks.end()) return nullptr;
    // c10d calls this for the CPU and again for CUDA, with one store, and expects one backend.
    if (auto last = last_split_.lock(); last != nullptr && last_store_ == store) return last;
    std::vector<int> members;
    for (const int rank : ranks) members.push_back(world_rank(rank));
    auto backend =
        extras::make_c10d_backend(open_set().runtime(), store, std::move(members),
                                  options ? options->timeout : options_->timeout, interpreter_);
    last_store_ = store;
    last_split_ = c10::weak_intrusive_ptr<c10d::Backend>(backend);
    return backend;
  }
#endif

  // What allocateTensor() returns is always good; it may be of the usual kind.
  bool supportsTensorAlloc(c10::DeviceIndex) override { return true; }
  at::Tensor allocateTensor(long size, at::TensorOptions options) override {
    const std::size_t bytes = static_cast<std::size_t>(size) * options.dtype().itemsize();
    const bool may_share = set_ != nullptr && options.device().is_cpu();
    const auto memory = may_share ? set_->allocate(bytes) : nullptr;
    if (memory == nullptr) return at::empty({size}, options);
    return at::for_blob(memory.get(), {size})
        .deleter([memory](void*) {})
        .options(options)
        .resizeable_storage()  // into memory of the usual kind
        .allocator(c10::GetAllocator(c10::kCPU))
        .make_tensor();
  }

  WorkPointer broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    Memory memory("broadcast");
    const at::Tensor used = memory.in_place(the_only(tensors, "broadcast"));
    return make_work(
        {.type = OpType::BROADCAST,
         .title = "kolo:broadcast",
         .handles = one(broadcast_async(view_to_move(used), world_rank(options.rootRank),
                                        of(options.timeout, memory))),
         .inputs = tensors,
         .outputs = tensors},
        &memory);
  }

  WorkPointer allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    if (the_only(tensors, "allreduce").is_sparse()) return allreduce_sparse(tensors, options);
    return reduce_all(tensors, options, OpType::ALLREDUCE);
  }

  WorkPointer allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    const at::Tensor& tensor = the_only(tensors, "allreduce");
    if (!tensor.is_cpu()) {
      throw InvalidArgument("allreduce: the sparse tensor is on " + tensor.device().str() +
                            ". Use to_dense() or cpu().");
    }
    AllreduceOptions reduction = reduction_of(options.reduceOp, tensor, "allreduce");
    complete(reduction, options.timeout);
    auto [handle, result] = sparse_allreduce_async(tensor.detach(), reduction).split();
    return make_work({.type = OpType::_ALLREDUCE_SPARSE,
                      .title = "kolo:sparse_all_reduce",
                      .handles = one(std::move(handle)),
                      .inputs = tensors,
                      .outputs = tensors,
                      .finish = [tensor, result = std::move(result)] {
                        const at::NoGradGuard no_grad;
                        tensor.copy_(result().coalesce());
                      }});
  }

  WorkPointer allreduce_coalesced(Tensors& tensors,
                                  const c10d::AllreduceCoalescedOptions& options) override {
    return reduce_all(tensors, options, OpType::ALLREDUCE_COALESCED);
  }

  WorkPointer reduce(Tensors& tensors, const c10d::ReduceOptions& options) override {
    Memory memory("reduce");
    const at::Tensor& tensor = the_only(tensors, "reduce");
    const bool is_root = world_rank(options.rootRank) == world_rank(rank_);
    const at::Tensor used = is_root ? memory.in_place(tensor) : memory.input(tensor);
    // Other ranks' tensors stay as they are.
    const at::Tensor result = is_root ? used : memory.unread(used);
    AllreduceOptions reduction = reduction_of(options.reduceOp, tensor, "reduce");
    complete(reduction, options.timeout, memory);
    return make_work({.type = OpType::REDUCE,
                      .title = "kolo:reduce",
                      .handles = one(allreduce_async(view_to_reduce(used, "reduce"),
                                                     view_to_reduce(result, "reduce"), reduction)),
                      .inputs = tensors,
                      .outputs = tensors},
                     &memory);
  }

  WorkPointer allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                        const c10d::AllgatherOptions& options) override {
    const at::Tensor& input = the_only(inputs, "allgather");
    require_lists(outputs, "allgather");
    Memory memory("allgather");
    const at::Tensor all = memory.outputs(outputs.front());
    const at::Tensor from = memory.input(input);
    return make_work(
        {.type = OpType::ALLGATHER,
         .title = "kolo:all_gather",
         .handles = one(gather_to(all, counts_of(outputs.front()), from, memory, options.timeout)),
         .inputs = inputs,
         .outputs = outputs.front()},
        &memory);
  }

  WorkPointer _allgather_base(at::Tensor& output, at::Tensor& input,
                              const c10d::AllgatherOptions& options) override {
    return gather_evenly({output}, {input}, options, OpType::_ALLGATHER_BASE,
                         "kolo:_all_gather_base");
  }

  /// @param outputs by rank, of each input
  WorkPointer allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                  const c10d::AllgatherOptions& options) override {
    require_count(outputs.size(), size_, "allgather");
    Memory memory("allgather");
    OperationWork::Parts parts{
        .type = OpType::ALLGATHER_COALESCED, .title = "kolo:all_gather", .inputs = inputs};
    for (const Tensors& of_rank : outputs) {
      require_pairs(of_rank, inputs, "allgather");
      parts.outputs.insert(parts.outputs.end(), of_rank.begin(), of_rank.end());
    }
    Tensors from;
    Tensors to;
    std::vector<std::vector<std::int64_t>> counts;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      Tensors of_input;
      for (const Tensors& of_rank : outputs) of_input.push_back(of_rank[i]);
      from.push_back(memory.input(inputs[i]));
      to.push_back(memory.outputs(of_input));
      counts.push_back(counts_of(of_input));
    }
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      parts.handles.push_back(
          gather_to(to[i], std::move(counts[i]), from[i], memory, options.timeout));
    }
    return make_work(std::move(parts), &memory);
  }

  WorkPointer allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                              const c10d::AllgatherOptions& options) override {
    return gather_evenly(outputs, inputs, options, OpType::COALESCED,
                         "kolo:all_gather_into_tensor_coalesced");
  }

  WorkPointer reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                             const c10d::ReduceScatterOptions& options) override {
    the_only(outputs, "reduce_scatter");
    require_lists(inputs, "reduce_scatter");
    const std::vector<std::int64_t> counts = counts_of(inputs.front());
    if (std::ranges::adjacent_find(counts, std::ranges::not_equal_to()) != counts.end()) {
      return scatter_unevenly(outputs, inputs.front(), options);
    }
    return scatter_evenly(outputs, {Memory("reduce_scatter").inputs(inputs.front())}, options,
                          OpType::REDUCE_SCATTER, "kolo:reduce_scatter");
  }

  WorkPointer _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                   const c10d::ReduceScatterOptions& options) override {
    return scatter_evenly({output}, {input}, options, OpType::_REDUCE_SCATTER_BASE,
                          "kolo:_reduce_scatter_base");
  }

  WorkPointer reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                              const c10d::ReduceScatterOptions& options) override {
    return scatter_evenly(outputs, inputs, options, OpType::COALESCED,
                          "kolo:reduce_scatter_tensor_coalesced");
  }

  WorkPointer alltoall_base(at::Tensor& output, at::Tensor& input,
                            std::vector<std::int64_t>& output_splits,
                            std::vector<std::int64_t>& input_splits,
                            const c10d::AllToAllOptions& options) override {
    Memory memory("alltoall");
    const auto received = elements_of(output, output_splits);
    const auto sent = elements_of(input, input_splits);
    const at::Tensor room = memory.output(output);
    return exchange({.type = OpType::ALLTOALL_BASE,
                     .title = "kolo:all_to_all",
                     .inputs = {input},
                     .outputs = {output}},
                    room, received, memory.input(input.is_alias_of(output) ? input.clone() : input),
                    sent, memory, options.timeout);
  }

  WorkPointer alltoall(Tensors& outputs, Tensors& inputs,
                       const c10d::AllToAllOptions& options) override {
    require_count(outputs.size(), size_, "alltoall");
    require_count(inputs.size(), size_, "alltoall");
    Memory memory("alltoall");
    const at::Tensor room = memory.outputs(outputs);
    return exchange({.type = OpType::ALLTOALL,
                     .title = "kolo:all_to_all",
                     .inputs = inputs,
                     .outputs = outputs},
                    room, counts_of(outputs), memory.inputs(inputs), counts_of(inputs), memory,
                    options.timeout);
  }

  // Gathers, scatters and monitored barriers are messages. Their tags are counted first, so that
  // the ranks' counts stay alike where one of them throws.

  WorkPointer gather(std::vector<Tensors>& outputs, Tensors& inputs,
                     const c10d::GatherOptions& options) override {
    const std::int64_t tag = next_own_tag();
    Memory memory("gather", Memory::Place::Cpu);
    const at::Tensor& input = the_only(inputs, "gather");
    OperationWork::Parts parts{.type = OpType::GATHER, .title = "kolo:gather", .inputs = inputs};
    if (options.rootRank != rank_) {
      parts.handles = one(send_to(options.rootRank, memory.input(input), tag, options.timeout));
      return make_work(std::move(parts), &memory);
    }
    require_lists(outputs, "gather");
    parts.outputs = outputs.front();
    memory.copy(input, outputs.front()[static_cast<std::size_t>(rank_)]);
    for (int other = 0; other < size_; ++other) {
      if (other == rank_) continue;
      const at::Tensor room = memory.output(outputs.front()[static_cast<std::size_t>(other)]);
      parts.handles.push_back(receive_from(other, room, tag, options.timeout));
    }
    return make_work(std::move(parts), &memory);
  }

  WorkPointer scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                      const c10d::ScatterOptions& options) override {
    const std::int64_t tag = next_own_tag();
    Memory memory("scatter", Memory::Place::Cpu);
    const at::Tensor& output = the_only(outputs, "scatter");
    OperationWork::Parts parts{
        .type = OpType::SCATTER, .title = "kolo:scatter", .outputs = outputs};
    if (options.rootRank != rank_) {
      const at::Tensor room = memory.output(output);
      parts.handles = one(receive_from(options.rootRank, room, tag, options.timeout));
      return make_work(std::move(parts), &memory);
    }
    require_lists(inputs, "scatter");
    parts.inputs = inputs.front();
    memory.copy(inputs.front()[static_cast<std::size_t>(rank_)], output);
    for (int other = 0; other < size_; ++other) {
      if (other == rank_) continue;
      const at::Tensor input = memory.input(inputs.front()[static_cast<std::size_t>(other)]);
      parts.handles.push_back(send_to(other, input, tag, options.timeout));
    }
    return make_work(std::move(parts), &memory);
  }

  WorkPointer send(Tensors& tensors, int to, int tag) override {
    Memory memory("send", Memory::Place::Cpu);
    const at::Tensor input = memory.input(the_only(tensors, "send"));
    return make_work({.type = OpType::SEND,
                      .title = "kolo:send",
                      .handles = one(send_to(to, input, tag, c10d::kUnsetTimeout)),
                      .inputs = tensors},
                     &memory);
  }

  WorkPointer recv(Tensors& tensors, int from, int tag) override {
    return receive(tensors, world_rank(from), tag, OpType::RECV, "kolo:recv");
  }

  WorkPointer recvAnysource(Tensors& tensors, int tag) override {
    return receive(tensors, kAnyRank, tag, OpType::RECVANYSOURCE, "kolo:recvAnySource");
  }

  // Calls in between run as usual; their works become one.
  bool supportsCoalescing() const override { return true; }
  void startCoalescing() override { coalesced_.emplace(); }
  WorkPointer endCoalescing() override {
    if (!coalesced_) throw InvalidArgument("endCoalescing: there was no startCoalescing");
    OperationWork::Parts parts{.type = OpType::COALESCED,
                               .title = "kolo:coalesced",
                               .works = *std::exchange(coalesced_, std::nullopt)};
    for (const auto& work : parts.works) {
      for (const at::Tensor& tensor : work->result()) parts.outputs.push_back(tensor);
      if (work->device().is_cuda()) parts.device = work->device();
    }
    return make_work(std::move(parts));
  }

  WorkPointer barrier(const c10d::BarrierOptions& options) override {
    OperationOptions completed;
    complete(completed, options.timeout);
    return make_work({.type = OpType::BARRIER,
                      .title = "kolo:barrier",
                      .handles = one(barrier_async(completed))});
  }

  // The others tell the first rank that they have come, and wait for its answer: so it alone knows
  // who is missing.
  void monitoredBarrier(const c10d::BarrierOptions& options, bool waits_for_all) override {
    const std::int64_t tag = next_own_tag();
    const milliseconds timeout = deadline_of(options.timeout);
    const at::Tensor token = at::zeros({1}, at::kByte);
    if (rank_ != 0) {
      const std::string self = "Rank " + std::to_string(rank_);
      try {
        send_to(0, token, tag, timeout).wait();
        receive_from(0, token, tag, timeout).wait();
      } catch (const Error& error) {
        throw TimeoutError(self +
                           " successfully reached monitoredBarrier, but received errors "
                           "while waiting for send/recv from rank 0: " +
                           error.what());
      }
      return;
    }
    const std::vector<int> missing = find_missing(token, tag, timeout, waits_for_all);
    if (!missing.empty()) {
      std::string text = missing.size() == 1 ? "Rank " : "Ranks ";
      for (const int rank : missing) {
        text += (rank == missing.front() ? "" : ", ") + std::to_string(rank);
      }
      throw TimeoutError(text + " failed to pass monitoredBarrier in " +
                         std::to_string(timeout.count()) + " ms");
    }
    for (int other = 1; other < size_; ++other) send_to(other, token, tag, timeout).wait();
  }

 private:
  int world_rank(std::int64_t rank) const {
    const ProcessSet& set = open_set();
    if (rank >= 0 && rank < size_) return set.ranks()[static_cast<std::size_t>(rank)];
    throw InvalidArgument("rank " + std::to_string(rank) +
                          " is not in the process group, which has " + std::to_string(size_) +
                          " ranks");
  }

  ProcessSet& open_set() const {
    if (set_ != nullptr) return *set_;
    throw ShutdownError("the process group has been shut down. Use it before that.");
  }

  milliseconds deadline_of(milliseconds timeout) const {
    const milliseconds set = timeout == c10d::kUnsetTimeout ? options_->timeout : timeout;
    return std::min<milliseconds>(set, kForEver);
  }

  template <class Options>
  void complete(Options& options, milliseconds timeout) const {
    note_backward();
    options.timeout = deadline_of(timeout);
    options.process_set = &open_set();
  }

  template <class Options>
  void complete(Options& options, milliseconds timeout, Memory& memory) const {
    complete(options, timeout);
    options.keep_alive = memory.owner();
    options.stream = ProgramStream::current(memory.device()).handle();
  }

  OperationOptions of(milliseconds timeout, Memory& memory) const {
    OperationOptions options;
    complete(options, timeout, memory);
    return options;
  }

  MessageOptions of_message(milliseconds timeout, std::int64_t tag,
                            std::shared_ptr<void> keep_alive) const {
    MessageOptions options{.tag = tag, .keep_alive = std::move(keep_alive)};
    complete(options, timeout);
    return options;
  }

  static std::vector<Handle> one(Handle handle) {
    std::vector<Handle> handles;
    handles.push_back(std::move(handle));
    return handles;
  }

  WorkPointer make_work(OperationWork::Parts parts, Memory* memory = nullptr) {
    if (memory != nullptr) {
      parts.copies = memory->copies();
      parts.device = memory->device();
      parts.program = ProgramStream::current(parts.device);
      if (parts.device.is_cuda()) parts.memory = memory->owner();
      if (memory->place() == Memory::Place::Cpu) {
        parts.messages = ProgramStream::beside_current(parts.device);
      }
    }
    parts.sequence = ++sequence_;
    parts.interpreter = interpreter_;
    auto work = c10::make_intrusive<OperationWork>(rank_, std::move(parts), futures_);
    if (coalesced_) coalesced_->push_back(work);
    return work;
  }

  std::int64_t next_own_tag() { return kFirstOwnTag + ++own_tags_; }

  void require_lists(const std::vector<Tensors>& lists, const char* operation) const {
    if (lists.size() != 1) {
      throw InvalidArgument(std::string(operation) + ": there are " + std::to_string(lists.size()) +
                            " lists of tensors. Pass one.");
    }
    require_count(lists.front().size(), size_, operation);
  }

  WorkPointer reduce_all(const Tensors& tensors, const c10d::AllreduceOptions& options,
                         OpType type) {
    AllreduceOptions reduction = reduction_of(options.reduceOp, tensors, "allreduce");
    Memory memory("allreduce");
    std::vector<InputOutput> pairs;
    for (const at::Tensor& tensor : tensors) {
      const TensorView view = view_to_reduce(memory.in_place(tensor), "allreduce");
      pairs.push_back({view, view});
    }
    complete(reduction, options.timeout, memory);
    return make_work({.type = type,
                      .title = "kolo:all_reduce",
                      .handles = one(grouped_allreduce_async(pairs, reduction)),
                      .inputs = tensors,
                      .outputs = tensors},
                     &memory);
  }

  static std::vector<std::int64_t> counts_of(const Tensors& tensors) {
    std::vector<std::int64_t> counts;
    for (const at::Tensor& tensor : tensors) counts.push_back(tensor.numel());
    return counts;
  }

  /// Gathers `counts` elements of the ranks in contiguous memory.
  Handle gather_to(const at::Tensor& output, std::vector<std::int64_t> counts,
                   const at::Tensor& input, Memory& memory, milliseconds timeout) {
    require_same_dtype(input, output, "allgather");
    const std::int64_t own = counts[static_cast<std::size_t>(rank_)];
    if (input.numel() != own) {
      throw InvalidArgument("allgather: the input has " + std::to_string(input.numel()) +
                            " elements, this rank's output " + std::to_string(own) +
                            ". They must be equal.");
    }
    return allgather_async(view_to_move(input), output.data_ptr(),
                           rows_of(std::move(counts), output), of(timeout, memory));
  }

  WorkPointer gather_evenly(const Tensors& outputs, const Tensors& inputs,
                            const c10d::AllgatherOptions& options, OpType type, const char* title) {
    require_pairs(outputs, inputs, "allgather");
    Memory memory("allgather");
    OperationWork::Parts parts{.type = type, .title = title, .inputs = inputs, .outputs = outputs};
    std::vector<InputAndGathered> pairs;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      require_multiple(outputs[i], inputs[i], "allgather");
      require_same_dtype(inputs[i], outputs[i], "allgather");
      TensorView row = view_to_move(memory.input(inputs[i]));
      row.shape.insert(row.shape.begin(), 1);
      pairs.push_back({std::move(row), memory.output(outputs[i]).data_ptr()});
    }
    const std::vector<std::int64_t> one_each(static_cast<std::size_t>(size_), 1);
    parts.handles = one(grouped_allgather_async(pairs, one_each, of(options.timeout, memory)));
    return make_work(std::move(parts), &memory);
  }

  WorkPointer scatter_evenly(const Tensors& outputs, const Tensors& inputs,
                             const c10d::ReduceScatterOptions& options, OpType type,
                             const char* title) {
    require_pairs(outputs, inputs, "reduce_scatter");
    Memory memory("reduce_scatter");
    std::vector<InputOutput> pairs;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      require_same_dtype(inputs[i], outputs[i], "reduce_scatter");
      require_multiple(inputs[i], outputs[i], "reduce_scatter");
      pairs.push_back({view_to_reduce(memory.input(inputs[i]), "reduce_scatter"),
                       view_to_reduce(memory.output(outputs[i]), "reduce_scatter")});
    }
    AllreduceOptions reduction = reduction_of(options.reduceOp, inputs, "reduce_scatter");
    complete(reduction, options.timeout, memory);
    return make_work({.type = type,
                      .title = title,
                      .handles = one(grouped_reduce_scatter_async(pairs, reduction)),
                      .inputs = inputs,
                      .outputs = outputs},
                     &memory);
  }

  /// Every rank reduces the parts of all, since Kolo's reduce-scatter divides rows evenly.
  WorkPointer scatter_unevenly(const Tensors& outputs, const Tensors& inputs,
                               const c10d::ReduceScatterOptions& options) {
    const auto own = static_cast<std::size_t>(rank_);
    const at::Tensor& output = outputs.front();
    if (output.numel() != inputs[own].numel()) {
      throw InvalidArgument("reduce_scatter: this rank's input has " +
                            std::to_string(inputs[own].numel()) + " elements, its output " +
                            std::to_string(output.numel()) + ". They must be equal.");
    }
    require_same_dtype(inputs[own], output, "reduce_scatter");
    Memory memory("reduce_scatter");
    const at::Tensor all = memory.inputs(inputs);
    std::int64_t begin = 0;
    for (std::size_t i = 0; i < own; ++i) begin += inputs[i].numel();
    memory.copy(all.narrow(0, begin, output.numel()), output);
    AllreduceOptions reduction = reduction_of(options.reduceOp, all, "reduce_scatter");
    complete(reduction, options.timeout, memory);
    const TensorView view = view_to_reduce(all, "reduce_scatter");
    return make_work({.type = OpType::REDUCE_SCATTER,
                      .title = "kolo:reduce_scatter",
                      .handles = one(allreduce_async(view, view, reduction)),
                      .inputs = inputs,
                      .outputs = outputs},
                     &memory);
  }

  static void require_pairs(const Tensors& outputs, const Tensors& inputs, const char* operation) {
    if (outputs.size() == inputs.size()) return;
    throw InvalidArgument(std::string(operation) + ": there are " + std::to_string(inputs.size()) +
                          " inputs and " + std::to_string(outputs.size()) +
                          " outputs. Pass as many.");
  }

  void require_multiple(const at::Tensor& whole, const at::Tensor& part,
                        const char* operation) const {
    if (whole.numel() == part.numel() * size_) return;
    throw InvalidArgument(std::string(operation) + ": a rank's part has " +
                          std::to_string(part.numel()) + " elements, the tensor of all " +
                          std::to_string(size_) + " ranks has " + std::to_string(whole.numel()) +
                          ". It must have the parts of all ranks.");
  }

  /// How many elements rows of the first dimension are, by rank; no rows: equal parts.
  std::vector<std::int64_t> elements_of(const at::Tensor& tensor,
                                        std::vector<std::int64_t> rows) const {
    const std::int64_t all = tensor.dim() > 0 ? tensor.size(0) : 1;
    if (rows.empty()) rows.assign(static_cast<std::size_t>(size_), all / size_);
    require_count(rows.size(), size_, "alltoall");
    const std::int64_t sum = std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
    if (sum != all || std::ranges::min(rows) < 0) {
      throw InvalidArgument("alltoall: the splits add up to " + std::to_string(sum) +
                            " rows, the tensor has " + std::to_string(all) +
                            ". They must be equal, and none negative.");
    }
    const std::int64_t row = all > 0 ? tensor.numel() / all : 0;
    for (std::int64_t& each : rows) each *= row;
    return rows;
  }

  /// Elements of a dtype that Kolo does not have are several rows, one for each byte.
  static std::vector<std::int64_t> rows_of(std::vector<std::int64_t> elements,
                                           const at::Tensor& tensor) {
    if (!dtype_of(tensor.scalar_type())) {
      for (std::int64_t& each : elements) each *= static_cast<std::int64_t>(tensor.itemsize());
    }
    return elements;
  }

  /// What other ranks send in other numbers than the output has room for goes elsewhere, so that
  /// only this rank has an error, and the group goes on.
  WorkPointer exchange(OperationWork::Parts parts, const at::Tensor& output,
                       const std::vector<std::int64_t>& received, const at::Tensor& input,
                       const std::vector<std::int64_t>& sent, Memory& memory,
                       milliseconds timeout) {
    require_same_dtype(input, output, "alltoall");
    struct Surplus {
      std::string problem;
      at::Tensor memory;
    };
    const auto surplus = std::make_shared<Surplus>();
    OperationOptions options = of(timeout, memory);
    // It waits for what is on its stream when it allocates, so not for what the program adds there.
    const ProgramStream beside = ProgramStream::beside_current(memory.device());
    options.stream = beside.handle();
    parts.handles = one(alltoall_async(
        view_to_move(input), rows_of(sent, input),
        [surplus, output, view = view_to_move(output), expected = rows_of(received, output), beside,
         ranks = open_set().ranks(), own = rank_](const std::vector<std::int64_t>& rows) {
          const auto [theirs, room] = std::ranges::mismatch(rows, expected);
          if (theirs == rows.end()) return view.data;
          surplus->problem =
              "alltoall: rank " +
              std::to_string(ranks[static_cast<std::size_t>(theirs - rows.begin())]) + " sends " +
              std::to_string(*theirs) + " elements of " + std::string(name_of(view.dtype)) +
              ", rank " + std::to_string(ranks[static_cast<std::size_t>(own)]) + " has room for " +
              std::to_string(*room) + ". Pass the splits with which the other ranks send.";
          const std::int64_t all = std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
          const auto allocated_for = beside.make_current();
          surplus->memory = at::empty({all, static_cast<std::int64_t>(size_of(view.dtype))},
                                      output.options().dtype(at::kByte).requires_grad(false));
          return surplus->memory.data_ptr();
        },
        options));
    parts.finish = [surplus] {
      if (!surplus->problem.empty()) throw MismatchError(surplus->problem);
    };
    return make_work(std::move(parts), &memory);
  }

  Handle send_to(std::int64_t to, const at::Tensor& tensor, std::int64_t tag,
                 milliseconds timeout) {
    return send_async(view_to_move(tensor), world_rank(to),
                      of_message(timeout, tag, std::make_shared<at::Tensor>(tensor)));
  }

  Handle receive_from(std::int64_t from, const at::Tensor& tensor, std::int64_t tag,
                      milliseconds timeout) {
    return receive_async(view_to_move(tensor), world_rank(from),
                         of_message(timeout, tag, std::make_shared<at::Tensor>(tensor)));
  }

  WorkPointer receive(Tensors& tensors, int from, int tag, OpType type, const char* title) {
    Memory memory("recv", Memory::Place::Cpu);
    const at::Tensor room = memory.output(the_only(tensors, "recv"));
    const auto sender = std::make_shared<int>(-1);
    const MessageOptions options =
        of_message(c10d::kUnsetTimeout, tag,
                   std::make_shared<std::pair<at::Tensor, std::shared_ptr<int>>>(room, sender));
    return make_work(
        {.type = type,
         .title = title,
         .handles = one(receive_async(view_to_move(room), from, options, sender.get())),
         .inputs = tensors,  // for their shapes
         .outputs = tensors,
         .finish =
             [sender, ranks = open_set().ranks()] {
               const auto found = std::ranges::find(ranks, *sender);
               *sender = static_cast<int>(found - ranks.begin());
             },
         .sender = sender},
        &memory);
  }

  /// Of a monitored barrier: the ranks from which nothing came in time; only the first, unless
  /// asked for all.
  std::vector<int> find_missing(const at::Tensor& token, std::int64_t tag, milliseconds timeout,
                                bool waits_for_all) {
    const auto until = std::chrono::steady_clock::now() + timeout;
    std::vector<int> missing;
    for (int other = 1; other < size_ && (missing.empty() || waits_for_all); ++other) {
      const auto left =
          std::chrono::duration_cast<milliseconds>(until - std::chrono::steady_clock::now());
      if (left.count() <= 0 && missing.empty()) {
        throw TimeoutError("Rank 0 timed out in monitoredBarrier after " +
                           std::to_string(timeout.count()) + " ms, before it heard of rank " +
                           std::to_string(other));
      }
      try {
        receive_from(other, token, tag, std::max(left, milliseconds{1})).wait();
      } catch (const TimeoutError&) {
        missing.push_back(other);
      }
    }
    return missing;
  }

  std::shared_ptr<ProcessSet> set_;  // null once it is shut down
  const c10::intrusive_ptr<Options> options_;
  const extras::Interpreter interpreter_;
  std::atomic<std::uint64_t> sequence_{0};
  std::atomic<std::int64_t> own_tags_{0};
  c10::intrusive_ptr<c10d::Store> last_store_;
  c10::weak_intrusive_ptr<c10d::Backend> last_split_{c10::intrusive_ptr<c10d::Backend>()};
  // Since startCoalescing().
  std::optional<std::vector<c10::intrusive_ptr<OperationWork>>> coalesced_;
  std::shared_ptr<FutureThreads> futures_ = FutureThreads::make();
};

}  // namespace
}  // namespace kolo::c10d_backend

namespace kolo::extras {

std::shared_ptr<Store> store_of(c10::intrusive_ptr<c10d::Store> store, void (*check)()) {
  return std::make_shared<c10d_backend::StoreOfC10d>(std::move(store), check);
}

c10::intrusive_ptr<c10d::Backend> make_c10d_backend(Runtime& runtime,
                                                    const c10::intrusive_ptr<c10d::Store>& store,
                                                    std::vector<int> ranks,
                                                    std::chrono::milliseconds timeout,
                                                    Interpreter interpreter) {
  if (!std::ranges::is_sorted(ranks)) {
    throw InvalidArgument(
        "the ranks of a process group must ascend, since those of a process set do");
  }
  timeout = std::min<std::chrono::milliseconds>(timeout, c10d_backend::kForEver);
  c10d_backend::StoreOfC10d of_c10d(store, interpreter.check);
  ProcessSet& set = runtime.add_process_set(std::move(ranks), of_c10d, Matching::ByOrder, timeout);
  return c10::make_intrusive<c10d_backend::Backend>(set, timeout, interpreter);
}

}  // namespace kolo::extras
