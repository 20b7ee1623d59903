#include "torch/sharding/parameter_shards.hpp"

#include <algorithm>
#include <limits>
#include <memory>
#include <utility>

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include "torch/sharding/state_cut.hpp"
#include "torch/tensors/flat_memory.hpp"

namespace kolo::tensors {
namespace {

/// Optimizers go over their tensors several times: pieces of this length, with their gradients and
/// their state, stay in a core's cache meanwhile. On a GPU each would cost kernels of its own.
std::size_t most_piece_bytes(const at::Device& device) {
  return device.is_cpu() ? std::size_t{512} << 10 : std::numeric_limits<std::size_t>::max();
}

/// Moves the tensor's elements to their place in `memory`, and makes that its storage.
void move_to(const SharedBuffer& memory, std::size_t offset, const at::Tensor& tensor) {
  tensor_over(memory, offset, tensor.sizes(), tensor.options()).copy_(tensor.detach());
  auto* const keeper = new std::shared_ptr<void>(memory.owner());
  tensor.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(at::DataPtr(
      memory.data() + offset, keeper,
      [](void* context) { delete static_cast<std::shared_ptr<void>*>(context); }, tensor.device()));
}

}  // namespace

ParameterShards::ParameterShards(const std::vector<at::Tensor>& parameters,
                                 const GradientBuckets& buckets, bool recycles,
                                 const OperationOptions& options)
    : parameters_(parameters),
      layout_(buckets.buckets()),
      memory_(make_flat_memory(buckets.memory().size_bytes(), buckets.device(), options)) {
  const ProcessSet& set = *options.process_set;
  for (const Bucket& bucket : layout_) {
    const std::size_t element = size_of(bucket.dtype);
    const std::size_t own_bytes =
        bucket.gradient_count() * element / static_cast<std::size_t>(set.size());
    const std::size_t own_begin = bucket.offset + static_cast<std::size_t>(set.rank()) * own_bytes;
    const at::TensorOptions type = parameters_[bucket.members.front().parameter].options();
    const auto elements = [&](const SharedBuffer& memory, std::size_t offset, std::size_t bytes) {
      return tensor_over(memory, offset, {static_cast<std::int64_t>(bytes / element)}, type);
    };
    at::Tensor part = elements(buckets.memory(), own_begin, own_bytes);
    if (recycles) part = part.clone();
    std::vector<Piece>& pieces = pieces_.emplace_back();
    for (std::size_t i = 0; i < bucket.members.size(); ++i) {
      const auto [index, offset] = bucket.members[i];
      const at::Tensor& parameter = parameters_[index];
      move_to(memory_, offset, parameter);
      const std::size_t end = std::min(offset + parameter.nbytes(), own_begin + own_bytes);
      std::size_t begin = std::max(offset, own_begin);
      for (std::size_t bytes = 0; begin < end; begin += bytes) {
        bytes = std::min(end - begin, most_piece_bytes(buckets.device()));
        Piece piece{index, i, static_cast<std::int64_t>((begin - offset) / element),
                    elements(memory_, begin, bytes),
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
