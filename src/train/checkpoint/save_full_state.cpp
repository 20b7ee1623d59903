#include "train/checkpoint/save_full_state.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "checkpoint/ranks.hpp"
#include "checkpoint/safetensors.hpp"
#include "kolo/collectives.hpp"
#include "kolo/error.hpp"
#include "train/checkpoint/saved_state.hpp"
#include "train/tensors/tensor_collectives.hpp"
#include "train/tensors/tensor_memory.hpp"

namespace kolo::train {
namespace {

constexpr std::size_t kChunkBytes = std::size_t{4} << 20;

/// A tensor, and the ranges of its elements that this rank has.
struct ShardedTensor {
  checkpoints::SafetensorsTensor entry;
  std::vector<std::pair<std::int64_t, at::Tensor>> own{};  // first element, elements
  bool is_gathered = true;                                 // otherwise every rank has it all
};

void add_gathered_parameters(const TrainingView& view, std::vector<ShardedTensor>& tensors) {
  for (const auto& [name, parameter] : view.model.parameters) {
    if (!view.model.gathers(name, parameter)) continue;
    const TensorView memory = extent_of(parameter, name);
    ShardedTensor& tensor = tensors.emplace_back();
    tensor.entry = {name, memory.dtype, memory.shape};
    for (const ModelView::Share& share : view.model.shares) {
      if (share.name == name) tensor.own.emplace_back(share.begin, share.elements);
    }
  }
}

void add_masters(const TrainingView& view, std::vector<ShardedTensor>& tensors) {
  for (const auto& [name, parameter] : view.mastered) {
    ShardedTensor& tensor = tensors.emplace_back();
    tensor.entry = {master_key(name), DType::Float32, parameter.sizes().vec()};
    for (const TrainingView::Leaf& leaf : view.leaves) {
      if (leaf.name == name) tensor.own.emplace_back(leaf.begin, leaf.values.detach());
    }
  }
}

std::vector<ShardedTensor> sharded_tensors(const TrainingView& view, const LeafStates& states) {
  std::vector<ShardedTensor> tensors;
  add_gathered_parameters(view, tensors);
  add_masters(view, tensors);
  std::map<LeafStates::Key, std::size_t> places;
  for (const auto& [key, state] : states.tensors()) {
    places[key] = tensors.size();
    tensors.push_back({{state_key(key.second, key.first), state.dtype, state.shape}, {}});
  }
  for (std::size_t i = 0; i < view.leaves.size(); ++i) {
    const TrainingView::Leaf& leaf = view.leaves[i];
    for (const StateField& field : states.fields(i)) {
      if (!field.value.isTensor()) continue;
      const LeafStates::Key key(leaf.name, field.name);
      const LeafStates::Tensor& state = states.tensors().at(key);
      ShardedTensor& tensor = tensors[places.at(key)];
      tensor.is_gathered = !leaf.is_whole() || !states.is_everywhere(state);
      const bool is_own = leaf.is_whole()
                              ? states.is_everywhere(state) || states.is_last_with(state)
                              : state.is_elementwise || leaf.begin == 0;
      if (!is_own) continue;
      tensor.own.emplace_back(state.is_elementwise ? leaf.begin : 0,
                              contiguous(field.value.toTensor()));
    }
  }
  return tensors;
}

/// Gathers elements [begin, end) of a tensor; every rank sends those that it has, in rank order.
void gather(const TrainingView& view, const ShardedTensor& tensor, std::int64_t begin,
            std::int64_t end, std::vector<std::byte>& chunk, const std::string& name) {
  const std::size_t element = size_of(tensor.entry.dtype);
  std::vector<std::byte> own;
  for (const auto& [first, elements] : tensor.own) {
    const std::int64_t from = std::max(begin, first);
    const std::int64_t to = std::min(end, first + elements.numel());
    if (from >= to) continue;
    const std::size_t place = own.size();
    own.resize(place + static_cast<std::size_t>(to - from) * element);
    copy_bytes(elements, static_cast<std::size_t>(from - first) * element,
               std::span(own).subspan(place));
  }
  allgather({own.data(), DType::UInt8, {static_cast<std::int64_t>(own.size())}, Device{}},
            [&](const auto&) { return chunk.data(); },
            {.name = name, .process_set = &view.sharded});
}

/// Writes on the root; does nothing on other ranks or after an error.
class Output {
 public:
  Output(bool is_root, const std::filesystem::path& file,
         const std::vector<checkpoints::SafetensorsTensor>& tensors) {
    if (!is_root) return;
    attempt([&] { writer_.emplace(file, tensors); });
  }
  void append(std::span<const std::byte> bytes) {
    if (writer_) attempt([&] { writer_->append(bytes.data(), bytes.size()); });
  }
  /// All elements of a contiguous tensor.
  void append(const at::Tensor& tensor, std::vector<std::byte>& chunk) {
    if (!writer_) return;
    if (tensor.is_cpu()) {
      return append({static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()});
    }
    for (std::size_t done = 0; done < tensor.nbytes(); done += kChunkBytes) {
      const auto piece = std::span(chunk).first(std::min(kChunkBytes, tensor.nbytes() - done));
      attempt([&] { copy_bytes(tensor, done, piece); });
      append(piece);
    }
  }
  void close() {
    if (writer_) attempt([&] { writer_->close(); });
    if (error_) std::rethrow_exception(error_);
  }

 private:
  template <class Work>
  void attempt(Work work) {
    if (error_) return;
    try {
      work();
    } catch (...) {
      error_ = std::current_exception();  // thrown on all ranks at the end
    }
  }

  std::optional<checkpoints::SafetensorsWriter> writer_;
  std::exception_ptr error_;
};

}  // namespace

void save_full_state(const TrainingView& view, const std::filesystem::path& file, int root,
                     const std::string& name) {
  if (std::ranges::count(view.set.ranks(), root) == 0) {
    throw InvalidArgument("DistributedOptimizer: save_full_state() on rank " +
                          std::to_string(root) + ", which is not in process set " +
                          view.set.name());
  }
  const checkpoints::Ranks ranks({.name = name, .process_set = &view.set});
  const LeafStates states(view, ranks, "DistributedOptimizer::save_full_state");
  std::vector<checkpoints::SafetensorsTensor> entries;
  std::vector<at::Tensor> whole;
  const auto add_whole = [&](const std::string& key, const at::Tensor& tensor) {
    whole.push_back(contiguous(tensor));
    const TensorView memory = view_of(whole.back(), key);
    entries.push_back({key, memory.dtype, memory.shape});
  };
  for (const auto& [key, tensor] : view.model.parameters) {
    if (view.model.gathers(key, tensor)) continue;
    add_whole(key, tensor);
  }
  for (const auto& [key, tensor] : view.model.buffers) add_whole(key, tensor);
  for (const TrainingView::Leaf& leaf : view.leaves) {
    if (leaf.is_whole() && leaf.master.defined()) add_whole(master_key(leaf.name), leaf.master);
  }
  const std::vector<ShardedTensor> sharded = sharded_tensors(view, states);
  for (const ShardedTensor& tensor : sharded) entries.push_back(tensor.entry);

  Output output(view.set.runtime().rank() == root, file, entries);
  std::vector<std::byte> chunk(kChunkBytes);
  for (const at::Tensor& tensor : whole) output.append(tensor, chunk);
  for (const ShardedTensor& tensor : sharded) {
    if (!tensor.is_gathered) {
      output.append(tensor.own.front().second, chunk);
      continue;
    }
    const std::size_t element = size_of(tensor.entry.dtype);
    const auto step = static_cast<std::int64_t>(kChunkBytes / element);
    const std::int64_t count = checkpoints::elements_of(tensor.entry.shape).value_or(0);
    for (std::int64_t begin = 0; begin < count; begin += step) {
      const std::int64_t end = std::min(begin + step, count);
      gather(view, tensor, begin, end, chunk, name + ".chunk");
      output.append(std::span(chunk).first(static_cast<std::size_t>(end - begin) * element));
    }
  }
  ranks.run(".close", "writing " + file.string(), [&] { output.close(); });
}

}  // namespace kolo::train
