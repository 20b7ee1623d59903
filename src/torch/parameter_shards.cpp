#include "torch/parameter_shards.hpp"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include "torch/state_cut.hpp"

namespace kolo::tensors {
namespace {

// Optimizers go over their tensors several times: pieces this long, with their gradients and their
// state, stay in a core's cache meanwhile.
constexpr std::size_t kMostPieceBytes = std::size_t{512} << 10;

at::Tensor elements_at(std::byte* place, std::size_t count, const at::Tensor& like,
                       const std::shared_ptr<void>& owner) {
  return at::from_blob(
      place, {static_cast<std::int64_t>(count)}, [owner](void*) {},
      like.options().requires_grad(false));
}

/// Makes the tensor's memory `place`, with the elements that it has.
void rebind(const at::Tensor& tensor, std::byte* place, const std::shared_ptr<void>& owner) {
  if (tensor.nbytes() > 0) std::memcpy(place, tensor.data_ptr(), tensor.nbytes());
  auto* const keeper = new std::shared_ptr<void>(owner);
  tensor.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(at::DataPtr(
      place, keeper, [](void* context) { delete static_cast<std::shared_ptr<void>*>(context); },
      tensor.device()));
}

}  // namespace

ParameterShards::ParameterShards(const std::vector<at::Tensor>& parameters,
                                 const GradientBuckets& buckets, bool recycles,
                                 const OperationOptions& options)
    : parameters_(parameters),
      layout_(buckets.buckets()),
      memory_(buckets.memory().size_bytes(), options) {
  const ProcessSet& set = *options.process_set;
  for (const Bucket& bucket : layout_) {
    const std::size_t element = size_of(bucket.dtype);
    const std::size_t own_bytes =
        bucket.gradient_count() * element / static_cast<std::size_t>(set.size());
    const std::size_t own_begin = bucket.offset + static_cast<std::size_t>(set.rank()) * own_bytes;
    at::Tensor part =
        elements_at(buckets.memory().data() + own_begin, own_bytes / element,
                    parameters_[bucket.members.front().parameter], buckets.memory().owner());
    if (recycles) part = part.clone();
    std::vector<Piece>& pieces = pieces_.emplace_back();
    for (std::size_t i = 0; i < bucket.members.size(); ++i) {
      const auto [index, offset] = bucket.members[i];
      const at::Tensor& parameter = parameters_[index];
      rebind(parameter, memory_.data() + offset, memory_.owner());
      const std::size_t end = std::min(offset + parameter.nbytes(), own_begin + own_bytes);
      std::size_t begin = std::max(offset, own_begin);
      for (std::size_t bytes = 0; begin < end; begin += bytes) {
        bytes = std::min(end - begin, kMostPieceBytes);
        Piece piece{
            index, i, static_cast<std::int64_t>((begin - offset) / element),
            elements_at(memory_.data() + begin, bytes / element, parameter, memory_.owner()),
            part.narrow(0, static_cast<std::int64_t>((begin - own_begin) / element),
                        static_cast<std::int64_t>(bytes / element))
                .detach()};
        piece.values.set_requires_grad(true);
        pieces.push_back(std::move(piece));
      }
    }
    parts_.push_back(std::move(part));
  }
}

void ParameterShards::cut(torch::optim::Optimizer& optimizer) const {
  auto& states = optimizer.state();
  for (const std::vector<Piece>& pieces : pieces_) {
    for (const Piece& piece : pieces) {
      const at::Tensor& parameter = parameters_[piece.parameter];
      auto state = cut_state(optimizer, parameter, piece.begin, piece.values.numel());
      if (state) states[piece.values.unsafeGetTensorImpl()] = std::move(state);
    }
  }
  for (const at::Tensor& parameter : parameters_) states.erase(parameter.unsafeGetTensorImpl());
}

void ParameterShards::erase_state(torch::optim::Optimizer& optimizer) const {
  for (const std::vector<Piece>& pieces : pieces_) {
    for (const Piece& piece : pieces) optimizer.state().erase(piece.values.unsafeGetTensorImpl());
  }
}

void ParameterShards::hand_out(std::size_t bucket, const GradientBuckets& buckets,
                               bool is_first) const {
  const Bucket& plan = buckets.buckets()[bucket];
  for (const Piece& piece : pieces_[bucket]) {
    at::Tensor values = piece.values;
    if (buckets.is_anywhere(plan, piece.member)) {
      values.mutable_grad() = piece.gradient;
    } else if (is_first) {
      values.mutable_grad().reset();
    }
  }
}

void ParameterShards::drop_gradients(std::size_t bucket) const {
  for (const Piece& piece : pieces_[bucket]) {
    at::Tensor values = piece.values;
    values.mutable_grad().reset();
  }
}

void ParameterShards::list_gradients(std::vector<at::Tensor>& gradients) const {
  for (const std::vector<Piece>& pieces : pieces_) {
    for (const Piece& piece : pieces) {
      if (piece.values.grad().defined()) gradients.push_back(piece.values.grad());
    }
  }
}

Handle ParameterShards::gather(std::size_t bucket, std::string name,
                               const OperationOptions& options) const {
  const auto ranks = static_cast<std::size_t>(options.process_set->size());
  OperationOptions gathering = options;
  gathering.name = std::move(name);
  return allgather_async(memory_, layout_[bucket].offset,
                         std::vector<std::int64_t>(ranks, parts_[bucket].numel()),
                         layout_[bucket].dtype, gathering);
}

}  // namespace kolo::tensors
