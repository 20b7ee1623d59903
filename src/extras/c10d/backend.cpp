#include <algorithm>
#include <cstdint>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include "extras/c10d/tensors.hpp"
#include "extras/c10d/work.hpp"
#include "kolo/collectives.hpp"
#include "kolo/error.hpp"
#include "kolo/extras/c10d_backend.hpp"
#include "kolo/messages.hpp"

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
  explicit StoreOfC10d(c10::intrusive_ptr<c10d::Store> store) : store_(std::move(store)) {}

  void set(const std::string& key, const std::string& value) override { store_->set(key, value); }
  std::optional<std::string> get(const std::string& key, milliseconds timeout) override {
    const auto until = std::chrono::steady_clock::now() + timeout;
    try {
      store_->wait({key}, timeout);
    } catch (const std::exception&) {
      if (std::chrono::steady_clock::now() < until) throw;  // no timeout
      return std::nullopt;
    }
    return store_->get_to_str(key);
  }

 private:
  const c10::intrusive_ptr<c10d::Store> store_;
};

AllreduceOptions reduction_of(const c10d::ReduceOp& op, const char* operation) {
  switch (op) {
    case c10d::ReduceOp::SUM: return {.op = ReduceOp::Sum};
    case c10d::ReduceOp::AVG: return {.op = ReduceOp::Average};
    case c10d::ReduceOp::PRODUCT: return {.op = ReduceOp::Product};
    case c10d::ReduceOp::MIN: return {.op = ReduceOp::Min};
    case c10d::ReduceOp::MAX: return {.op = ReduceOp::Max};
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
                        ": Kolo does not have this reduction. It has SUM, AVG, PRODUCT, MIN, MAX "
                        "and PREMUL_SUM.");
}

class Backend final : public c10d::Backend {
 public:
  Backend(Runtime& runtime, ProcessSet& set, milliseconds timeout)
      : c10d::Backend(set.rank(), set.size()),
        runtime_(runtime),
        set_(set.shared_from_this()),
        options_(c10::make_intrusive<Options>("kolo", timeout)) {
    init();
  }

  const std::string getBackendName() const override { return "kolo"; }
  c10::intrusive_ptr<Options> getBackendOptions() override { return options_; }
  void setTimeout(milliseconds timeout) override { options_->timeout = timeout; }
  void setSequenceNumberForGroup() override {}  // operations are counted from the start
  std::uint64_t getSequenceNumberForGroup() override { return sequence_; }
  void shutdown() override {
    if (const auto set = std::exchange(set_, nullptr)) runtime_.remove_process_set(*set);
  }

  bool supportsSplitting() const override { return true; }
  c10::intrusive_ptr<c10d::Backend> split(const c10::intrusive_ptr<c10d::Store>& store,
                                          const std::vector<int>& ranks,
                                          const c10::intrusive_ptr<Options>& options) override {
    std::vector<int> members;
    for (const int rank : ranks) members.push_back(world_rank(rank));
    return extras::make_c10d_backend(runtime_, store, std::move(members),
                                     options ? options->timeout : options_->timeout);
  }

  WorkPointer broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    at::Tensor& tensor = the_only(tensors, "broadcast");
    return make_work({.type = OpType::BROADCAST,
                      .title = "kolo:broadcast",
                      .handles = one(broadcast_async(view_to_move(tensor, "broadcast"),
                                                     world_rank(options.rootRank),
                                                     of(options.timeout, tensors))),
                      .outputs = tensors});
  }

  WorkPointer allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    the_only(tensors, "allreduce");
    return reduce_all(tensors, options, OpType::ALLREDUCE, "kolo:all_reduce");
  }

  WorkPointer allreduce_coalesced(Tensors& tensors,
                                  const c10d::AllreduceCoalescedOptions& options) override {
    return reduce_all(tensors, options, OpType::ALLREDUCE_COALESCED, "kolo:all_reduce");
  }

  WorkPointer reduce(Tensors& tensors, const c10d::ReduceOptions& options) override {
    const at::Tensor& tensor = the_only(tensors, "reduce");
    // Other ranks' tensors stay as they are.
    const at::Tensor result = options.rootRank == rank_ ? tensor : at::empty_like(tensor);
    AllreduceOptions reduction = reduction_of(options.reduceOp, "reduce");
    complete(reduction, options.timeout, {tensor, result});
    return make_work({.type = OpType::REDUCE,
                      .title = "kolo:reduce",
                      .handles = one(allreduce_async(view_to_reduce(tensor, "reduce"),
                                                     view_to_reduce(result, "reduce"), reduction)),
                      .outputs = tensors});
  }

  WorkPointer allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                        const c10d::AllgatherOptions& options) override {
    const at::Tensor& input = the_only(inputs, "allgather");
    require_lists(outputs, "allgather");
    auto all = std::make_shared<Joined>(outputs.front(), "allgather");
    return make_work({.type = OpType::ALLGATHER,
                      .title = "kolo:all_gather",
                      .handles = one(gather_to(all->flat(), all->counts(), input, options.timeout)),
                      .outputs = outputs.front(),
                      .finish = [all] { all->copy_out(); }});
  }

  WorkPointer _allgather_base(at::Tensor& output, at::Tensor& input,
                              const c10d::AllgatherOptions& options) override {
    return make_work({.type = OpType::_ALLGATHER_BASE,
                      .title = "kolo:_all_gather_base",
                      .handles = one(gather_evenly(output, input, options.timeout)),
                      .outputs = {output}});
  }

  WorkPointer allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                              const c10d::AllgatherOptions& options) override {
    std::vector<Handle> handles;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      handles.push_back(gather_evenly(outputs[i], inputs.at(i), options.timeout));
    }
    return make_work({.type = OpType::COALESCED,
                      .title = "kolo:all_gather_into_tensor_coalesced",
                      .handles = std::move(handles),
                      .outputs = outputs});
  }

  WorkPointer reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                             const c10d::ReduceScatterOptions& options) override {
    at::Tensor& output = the_only(outputs, "reduce_scatter");
    require_lists(inputs, "reduce_scatter");
    const Joined all(inputs.front(), "reduce_scatter");
    all.copy_in();
    return make_work({.type = OpType::REDUCE_SCATTER,
                      .title = "kolo:reduce_scatter",
                      .handles = one(scatter_evenly(output, all.flat(), options)),
                      .outputs = outputs});
  }

  WorkPointer _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                   const c10d::ReduceScatterOptions& options) override {
    return make_work({.type = OpType::_REDUCE_SCATTER_BASE,
                      .title = "kolo:_reduce_scatter_base",
                      .handles = one(scatter_evenly(output, input, options)),
                      .outputs = {output}});
  }

  WorkPointer reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                              const c10d::ReduceScatterOptions& options) override {
    std::vector<Handle> handles;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      handles.push_back(scatter_evenly(outputs[i], inputs.at(i), options));
    }
    return make_work({.type = OpType::COALESCED,
                      .title = "kolo:reduce_scatter_tensor_coalesced",
                      .handles = std::move(handles),
                      .outputs = outputs});
  }

  WorkPointer alltoall_base(at::Tensor& output, at::Tensor& input,
                            std::vector<std::int64_t>& output_splits,
                            std::vector<std::int64_t>& input_splits,
                            const c10d::AllToAllOptions& options) override {
    return make_work({.type = OpType::ALLTOALL_BASE,
                      .title = "kolo:all_to_all",
                      .handles = one(exchange(output, elements_of(output, output_splits), input,
                                              elements_of(input, input_splits), options.timeout)),
                      .outputs = {output}});
  }

  WorkPointer alltoall(Tensors& outputs, Tensors& inputs,
                       const c10d::AllToAllOptions& options) override {
    require_count(outputs.size(), size_, "alltoall");
    require_count(inputs.size(), size_, "alltoall");
    const auto received = std::make_shared<Joined>(outputs, "alltoall");
    const Joined sent(inputs, "alltoall");
    sent.copy_in();
    return make_work({.type = OpType::ALLTOALL,
                      .title = "kolo:all_to_all",
                      .handles = one(exchange(received->flat(), received->counts(), sent.flat(),
                                              sent.counts(), options.timeout)),
                      .outputs = outputs,
                      .finish = [received] { received->copy_out(); }});
  }

  WorkPointer gather(std::vector<Tensors>& outputs, Tensors& inputs,
                     const c10d::GatherOptions& options) override {
    const at::Tensor& input = the_only(inputs, "gather");
    const std::int64_t tag = next_own_tag();
    OperationWork::Parts parts{.type = OpType::GATHER, .title = "kolo:gather"};
    if (options.rootRank != rank_) {
      parts.handles.push_back(send_to(options.rootRank, input, tag, options.timeout));
      return make_work(std::move(parts));
    }
    require_lists(outputs, "gather");
    parts.outputs = outputs.front();
    for (int other = 0; other < size_; ++other) {
      at::Tensor& output = outputs.front()[static_cast<std::size_t>(other)];
      if (other == rank_) {
        copy(output, input);
      } else {
        parts.handles.push_back(receive_from(other, output, tag, options.timeout));
      }
    }
    return make_work(std::move(parts));
  }

  WorkPointer scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                      const c10d::ScatterOptions& options) override {
    at::Tensor& output = the_only(outputs, "scatter");
    const std::int64_t tag = next_own_tag();
    OperationWork::Parts parts{
        .type = OpType::SCATTER, .title = "kolo:scatter", .outputs = outputs};
    if (options.rootRank != rank_) {
      parts.handles.push_back(receive_from(options.rootRank, output, tag, options.timeout));
      return make_work(std::move(parts));
    }
    require_lists(inputs, "scatter");
    for (int other = 0; other < size_; ++other) {
      const at::Tensor& input = inputs.front()[static_cast<std::size_t>(other)];
      if (other == rank_) {
        copy(output, input);
      } else {
        parts.handles.push_back(send_to(other, input, tag, options.timeout));
      }
    }
    return make_work(std::move(parts));
  }

  WorkPointer send(Tensors& tensors, int to, int tag) override {
    return make_work(
        {.type = OpType::SEND,
         .title = "kolo:send",
         .handles = one(send_to(to, the_only(tensors, "send"), tag, c10d::kUnsetTimeout))});
  }

  WorkPointer recv(Tensors& tensors, int from, int tag) override {
    return receive(tensors, world_rank(from), tag, OpType::RECV, "kolo:recv");
  }

  WorkPointer recvAnysource(Tensors& tensors, int tag) override {
    return receive(tensors, kAnyRank, tag, OpType::RECVANYSOURCE, "kolo:recvAnySource");
  }

  // Calls between them run one after another, as otherwise; their works become one.
  bool supportsCoalescing() const override { return true; }
  void startCoalescing() override { coalesced_.emplace(); }
  WorkPointer endCoalescing() override {
    if (!coalesced_) throw InvalidArgument("endCoalescing: there was no startCoalescing");
    OperationWork::Parts parts{.type = OpType::COALESCED,
                               .title = "kolo:coalesced",
                               .works = *std::exchange(coalesced_, std::nullopt)};
    for (const auto& work : parts.works) {
      for (const at::Tensor& tensor : work->result()) parts.outputs.push_back(tensor);
    }
    return make_work(std::move(parts));
  }

  // The others tell the first rank that they have come, and wait for its answer: so it alone knows
  // who is missing.
  void monitoredBarrier(const c10d::BarrierOptions& options, bool waits_for_all) override {
    const std::int64_t tag = next_own_tag();
    at::Tensor token = at::zeros({1}, at::kByte);
    const milliseconds timeout = deadline_of(options.timeout);
    const auto until = std::chrono::steady_clock::now() + timeout;
    if (rank_ != 0) {
      send_to(0, token, tag, timeout).wait();
      receive_from(0, token, tag, timeout).wait();
      return;
    }
    std::string missing;
    for (int other = 1; other < size_; ++other) {
      try {
        const auto left =
            std::chrono::duration_cast<milliseconds>(until - std::chrono::steady_clock::now());
        receive_from(other, token, tag, std::max(left, milliseconds{1})).wait();
      } catch (const TimeoutError&) {
        missing += (missing.empty() ? "" : ", ") + std::to_string(other);
        if (!waits_for_all) break;
      }
    }
    if (!missing.empty()) {
      throw TimeoutError("monitored barrier: rank" + std::string(waits_for_all ? "s " : " ") +
                         missing + " did not come within " + std::to_string(timeout.count()) +
                         " ms.");
    }
    for (int other = 1; other < size_; ++other) send_to(other, token, tag, timeout).wait();
  }

  WorkPointer barrier(const c10d::BarrierOptions& options) override {
    return make_work({.type = OpType::BARRIER,
                      .title = "kolo:barrier",
                      .handles = one(barrier_async(of(options.timeout, {})))});
  }

 private:
  int world_rank(std::int64_t rank) const {
    const ProcessSet& set = open_set();
    if (rank < 0 || rank >= size_) {
      throw InvalidArgument("rank " + std::to_string(rank) +
                            " is not in the process group, which has " + std::to_string(size_) +
                            " ranks");
    }
    return set.ranks()[static_cast<std::size_t>(rank)];
  }

  ProcessSet& open_set() const {
    if (set_ != nullptr) return *set_;
    throw ShutdownError("the process group has been shut down. Use it before that.");
  }

  milliseconds deadline_of(milliseconds timeout) const {
    return timeout == c10d::kUnsetTimeout ? options_->timeout : timeout;
  }

  template <class Options>
  void complete(Options& options, milliseconds timeout, Tensors tensors) const {
    options.timeout = deadline_of(timeout);
    options.process_set = &open_set();
    options.keep_alive = std::make_shared<Tensors>(std::move(tensors));
  }

  OperationOptions of(milliseconds timeout, Tensors tensors) const {
    OperationOptions options;
    complete(options, timeout, std::move(tensors));
    return options;
  }

  static std::vector<Handle> one(Handle handle) {
    std::vector<Handle> handles;
    handles.push_back(std::move(handle));
    return handles;
  }

  static void copy(const at::Tensor& to, const at::Tensor& from) {
    const at::NoGradGuard no_grad;
    to.copy_(from.view_as(to));
  }

  WorkPointer make_work(OperationWork::Parts parts) {
    parts.sequence = ++sequence_;
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

  WorkPointer reduce_all(const Tensors& tensors, const c10d::AllreduceOptions& options, OpType type,
                         const char* title) {
    AllreduceOptions reduction = reduction_of(options.reduceOp, "allreduce");
    complete(reduction, options.timeout, tensors);
    std::vector<InputOutput> pairs;
    for (const at::Tensor& tensor : tensors) {
      const TensorView view = view_to_reduce(tensor, "allreduce");
      pairs.push_back({view, view});
    }
    return make_work({.type = type,
                      .title = title,
                      .handles = one(grouped_allreduce_async(pairs, reduction)),
                      .outputs = tensors});
  }

  /// Gathers `counts` elements of each rank.
  Handle gather_to(const at::Tensor& output, std::vector<std::int64_t> counts,
                   const at::Tensor& input, milliseconds timeout) {
    if (input.numel() != counts[static_cast<std::size_t>(rank_)] ||
        input.scalar_type() != output.scalar_type()) {
      throw InvalidArgument("allgather: the input has " + std::to_string(input.numel()) +
                            " elements of " + c10::toString(input.scalar_type()) +
                            ", this rank's output " +
                            std::to_string(counts[static_cast<std::size_t>(rank_)]) + " of " +
                            c10::toString(output.scalar_type()) + ". They must be equal.");
    }
    void* const place = view_to_move(output, "allgather").data;
    return allgather_async(
        view_to_move(input, "allgather"),
        [place](const std::vector<std::int64_t>&) { return place; }, of(timeout, {input, output}));
  }

  Handle gather_evenly(const at::Tensor& output, const at::Tensor& input, milliseconds timeout) {
    require_multiple(output, input, "allgather");
    return gather_to(output,
                     std::vector<std::int64_t>(static_cast<std::size_t>(size_), input.numel()),
                     input, timeout);
  }

  Handle scatter_evenly(const at::Tensor& output, const at::Tensor& input,
                        const c10d::ReduceScatterOptions& options) {
    require_multiple(input, output, "reduce_scatter");
    AllreduceOptions reduction = reduction_of(options.reduceOp, "reduce_scatter");
    complete(reduction, options.timeout, {input, output});
    return reduce_scatter_async(view_to_reduce(input, "reduce_scatter"),
                                view_to_reduce(output, "reduce_scatter"), reduction);
  }

  void require_multiple(const at::Tensor& whole, const at::Tensor& part,
                        const char* operation) const {
    if (whole.numel() == part.numel() * size_ && whole.scalar_type() == part.scalar_type()) return;
    throw InvalidArgument(
        std::string(operation) + ": a rank's part has " + std::to_string(part.numel()) +
        " elements of " + c10::toString(part.scalar_type()) + ", the tensor of all " +
        std::to_string(size_) + " ranks has " + std::to_string(whole.numel()) + " of " +
        c10::toString(whole.scalar_type()) + ". It must have the parts of all ranks.");
  }

  /// How many elements rows of the first dimension are, by rank; no rows: equal parts.
  std::vector<std::int64_t> elements_of(const at::Tensor& tensor,
                                        const std::vector<std::int64_t>& rows) const {
    const std::int64_t row =
        tensor.dim() > 0 && tensor.size(0) > 0 ? tensor.numel() / tensor.size(0) : 1;
    std::vector<std::int64_t> elements;
    for (const std::int64_t each : rows) elements.push_back(each * row);
    if (rows.empty()) elements.assign(static_cast<std::size_t>(size_), tensor.numel() / size_);
    require_count(elements.size(), size_, "alltoall");
    if (std::accumulate(elements.begin(), elements.end(), std::int64_t{0}) != tensor.numel()) {
      throw InvalidArgument(
          "alltoall: the rows of the ranks are not those of the tensor, which has " +
          std::to_string(tensor.dim() > 0 ? tensor.size(0) : 1));
    }
    return elements;
  }

  Handle exchange(const at::Tensor& output, const std::vector<std::int64_t>& received,
                  const at::Tensor& input, std::vector<std::int64_t> sent, milliseconds timeout) {
    const TensorView from = view_to_move(input, "alltoall");
    const TensorView to = view_to_move(output, "alltoall");
    // Elements of a dtype that Kolo does not have are several rows, one for each byte.
    const auto scale = [](std::vector<std::int64_t> counts, const at::Tensor& tensor,
                          const TensorView& view) {
      const std::int64_t rows = tensor.numel() > 0 ? view.shape.front() / tensor.numel() : 1;
      for (std::int64_t& count : counts) count *= rows;
      return counts;
    };
    return alltoall_async(
        from, scale(std::move(sent), input, from),
        [place = to.data,
         expected = scale(received, output, to)](const std::vector<std::int64_t>& rows) {
          if (rows != expected) {
            throw MismatchError(
                "alltoall: the others send another number of elements than the output has room "
                "for. Pass the splits with which they send.");
          }
          return place;
        },
        of(timeout, {input, output}));
  }

  Handle send_to(std::int64_t to, const at::Tensor& tensor, std::int64_t tag,
                 milliseconds timeout) {
    MessageOptions options{.tag = tag};
    complete(options, timeout, {tensor});
    return send_async(view_to_move(tensor, "send"), world_rank(to), options);
  }

  Handle receive_from(std::int64_t from, const at::Tensor& tensor, std::int64_t tag,
                      milliseconds timeout) {
    MessageOptions options{.tag = tag};
    complete(options, timeout, {tensor});
    return receive_async(view_to_move(tensor, "recv"), world_rank(from), options);
  }

  WorkPointer receive(Tensors& tensors, int from, int tag, OpType type, const char* title) {
    const auto sender = std::make_shared<int>(-1);
    MessageOptions options{.tag = tag};
    complete(options, c10d::kUnsetTimeout, tensors);
    const TensorView view = view_to_move(the_only(tensors, "recv"), "recv");
    return make_work({.type = type,
                      .title = title,
                      .handles = one(receive_async(view, from, options, sender.get())),
                      .outputs = tensors,
                      .finish =
                          [sender, ranks = open_set().ranks()] {
                            const auto found = std::ranges::find(ranks, *sender);
                            *sender = static_cast<int>(found - ranks.begin());
                          },
                      .sender = sender});
  }

  Runtime& runtime_;
  std::shared_ptr<ProcessSet> set_;  // null once it is shut down
  const c10::intrusive_ptr<Options> options_;
  std::uint64_t sequence_ = 0;
  std::int64_t own_tags_ = 0;
  // Since startCoalescing().
  std::optional<std::vector<c10::intrusive_ptr<OperationWork>>> coalesced_;
  const std::shared_ptr<FutureThread> futures_ = std::make_shared<FutureThread>();
};

}  // namespace
}  // namespace kolo::c10d_backend

namespace kolo::extras {

c10::intrusive_ptr<c10d::Backend> make_c10d_backend(Runtime& runtime,
                                                    const c10::intrusive_ptr<c10d::Store>& store,
                                                    std::vector<int> ranks,
                                                    std::chrono::milliseconds timeout) {
  if (!std::ranges::is_sorted(ranks)) {
    throw InvalidArgument(
        "the ranks of a process group must ascend, since those of a process set do");
  }
  c10d_backend::StoreOfC10d of_c10d(store);
  ProcessSet& set = runtime.add_process_set(std::move(ranks), of_c10d, Matching::ByOrder);
  return c10::make_intrusive<c10d_backend::Backend>(runtime, set, timeout);
}

}  // namespace kolo::extras
