#include "runtime/data/set_context.hpp"

#include <algorithm>
#include <string>
#include <string_view>

#include "kolo/algorithm.hpp"
#include "kolo/error.hpp"
#include "ops/select.hpp"

namespace kolo::runtime {
namespace {

void check_codec(const Request& request) {
  const std::string text = "compression \"" + request.compression + "\" ";
  if (request.op != ReduceOp::Average && request.op != ReduceOp::Sum) {
    throw InvalidArgument(text + "is for Average and Sum, not " + std::string(name_of(request.op)) +
                          ". Use none, fp16 or bf16.");
  }
  if (request.device != DeviceKind::Cpu) {
    throw InvalidArgument(text +
                          "is for tensors in CPU memory. Use none, fp16 or bf16, or copy the "
                          "tensor to the CPU.");
  }
}

void check_scope(const Request& request) {
  const std::string scope = "compression_scope BetweenNodes ";
  if (request.collective != Collective::AllReduce) {
    throw InvalidArgument(scope + "is for all-reduces, not " +
                          std::string(name_of(request.collective)) + ". Use Everywhere.");
  }
  if (request.op != ReduceOp::Average && request.op != ReduceOp::Sum) {
    throw InvalidArgument(scope + "is for Average and Sum, not " +
                          std::string(name_of(request.op)) + ". Use Everywhere.");
  }
  if (request.device != DeviceKind::Cpu) {
    throw InvalidArgument(scope + "is for tensors in CPU memory. Use Everywhere.");
  }
}

}  // namespace

const CustomReduction& Choices::find_reduction(std::string_view name) const {
  std::string choices;
  for (const CustomReduction& reduction : reductions) {
    if (reduction.name == name) return reduction;
    choices += (choices.empty() ? "" : ", ") + std::string(reduction.name);
  }
  throw InvalidArgument("there is no custom reduction \"" + std::string(name) +
                        "\"; InitOptions::reductions has " + (choices.empty() ? "none" : choices));
}

void SetContext::release() {
  communicator.reset();
  staging.reset();
  heap.reset();
  node_communicator.reset();
  node_staging.reset();
}

int SetContext::awaited() const {
  // Asked once: the rank may arrive meanwhile.
  const int last = staging != nullptr ? staging->last_rank() : -1;
  if (last >= 0) return world_rank(last);
  int left = node_staging != nullptr ? node_staging->last_rank() : -1;
  if (left >= 0) {  // its number among the ranks of this node
    const int own = node_of_rank[static_cast<std::size_t>(communicator->rank())];
    for (std::size_t rank = 0; rank < node_of_rank.size(); ++rank) {
      if (node_of_rank[rank] == own && left-- == 0) return world_ranks[rank];
    }
  }
  const int awaited = communicator->awaited();
  return awaited < 0 ? -1 : world_rank(awaited);
}

CollectiveCall SetContext::make_call() const {
  CollectiveCall call;
  call.communicator = communicator.get();
  call.window = staging.get();
  call.nodes = nodes ? &*nodes : nullptr;
  call.segment_bytes = config.tuning.segment_bytes;
  return call;
}

const Algorithm& SetContext::choose(Collective collective, std::size_t bytes, ReduceOp op,
                                    bool has_peer_buffers, bool shares_output) const {
  ops::Situation situation;
  situation.collective = collective;
  situation.op = op;
  situation.bytes = bytes;
  situation.size = communicator->size();
  situation.has_window = staging != nullptr;
  situation.has_peer_buffers = has_peer_buffers;
  situation.has_nodes = has_nodes();
  situation.shares_output = shares_output;
  return ops::select(choices.algorithms, situation);
}

const Codec* SetContext::codec_of(const Request& request) const {
  const Codec* const codec = choices.compressors.find_codec(request.compression);
  const bool encodes = std::ranges::any_of(
      request.tensors, [](const auto& tensor) { return is_floating(tensor.dtype); });
  return encodes || request.tensors.empty() ? codec : nullptr;
}

void SetContext::check(const Request& request) const {
  if (codec_of(request) != nullptr) check_codec(request);
  if (request.compression_scope == CompressionScope::BetweenNodes) check_scope(request);
  if (request.op == ReduceOp::Custom) choices.find_reduction(request.custom);
  if (request.is_once_per_node() && (!has_nodes() || request.device != DeviceKind::Cpu)) {
    throw InvalidArgument(
        "the ranks of a node can share an output only in CPU memory, and only if there are several "
        "nodes with equally many ranks each. Give each rank an output of its own.");
  }
}

Task gather_numbers(const SetContext& set, const std::vector<std::size_t>& own,
                    std::vector<std::size_t>& all) {
  static_assert(sizeof(std::size_t) == size_of(DType::Int64));
  const std::size_t size = set.world_ranks.size();
  all.assign(size * own.size(), 0);
  const std::vector<std::size_t> counts(size, own.size());
  CollectiveCall call = set.make_call();
  call.dtype = DType::Int64;
  call.input = reinterpret_cast<const std::byte*>(own.data());
  call.output = reinterpret_cast<std::byte*>(all.data());
  call.counts = counts;
  co_await set.choose(Collective::AllGather, all.size() * sizeof(std::size_t)).run(call);
}

Task exchange_numbers(const SetContext& set, const std::vector<std::size_t>& sent,
                      std::vector<std::size_t>& received) {
  const std::size_t size = set.world_ranks.size();
  received.assign(size, 0);
  const std::vector<std::size_t> one_each(size, 1);
  CollectiveCall call = set.make_call();
  call.dtype = DType::Int64;
  call.input = reinterpret_cast<const std::byte*>(sent.data());
  call.output = reinterpret_cast<std::byte*>(received.data());
  call.send_counts = one_each;
  call.receive_counts = one_each;
  co_await set.choose(Collective::AllToAll, sizeof(std::size_t)).run(call);
}

}  // namespace kolo::runtime
