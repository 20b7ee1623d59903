#include "torch/checkpoint/whole_index.hpp"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "kolo/error.hpp"
#include "torch/checkpoint/tensor_slice.hpp"

namespace kolo::tensors {
namespace {

std::string range_of(std::int64_t begin, std::int64_t end) {
  return "elements " + std::to_string(begin) + " to " + std::to_string(end - 1);
}

std::string kind_of(const CheckpointIndex::Tensor& tensor) {
  return text_of(tensor.dtype, tensor.shape);
}

void require_whole(const CheckpointIndex& index, const CheckpointIndex::Tensor& tensor) {
  const std::optional<std::int64_t> elements = elements_of(tensor.shape);
  if (!elements) throw InvalidArgument("its shape is impossible");
  std::int64_t end = 0;
  std::string last;
  for (const CheckpointIndex::Slice& slice : tensor.slices) {
    const std::string& file = index.files.at(slice.file).name;
    if (slice.begin < end) {
      throw InvalidArgument(range_of(slice.begin, std::min(end, slice.begin + slice.count)) +
                            " are in " + last + " and in " + file);
    }
    if (slice.begin > end) throw InvalidArgument(range_of(end, slice.begin) + " are in no file");
    end = slice.begin + slice.count;
    last = file;
  }
  if (end < *elements) throw InvalidArgument(range_of(end, *elements) + " are in no file");
  if (end > *elements) {
    throw InvalidArgument(kind_of(tensor) + " has no " + range_of(*elements, end) +
                          ", but they are in " + last);
  }
}

void merge_tensor(CheckpointIndex& whole, const std::string& name, CheckpointIndex::Tensor part,
                  std::size_t first_file) {
  const auto [place, is_new] =
      whole.tensors.try_emplace(name, CheckpointIndex::Tensor{part.dtype, part.shape, {}});
  CheckpointIndex::Tensor& tensor = place->second;
  if (tensor.dtype != part.dtype || tensor.shape != part.shape) {
    throw MismatchError("tensor '" + name + "' is " + kind_of(tensor) +
                        " on a rank before that of " + whole.files.back().name + ", where it is " +
                        kind_of(part));
  }
  for (CheckpointIndex::Slice& slice : part.slices) {
    slice.file += first_file;
    tensor.slices.push_back(slice);
  }
}

}  // namespace

CheckpointIndex merge_indexes(std::vector<CheckpointIndex> parts) {
  CheckpointIndex whole;
  for (CheckpointIndex& part : parts) {
    const std::size_t first_file = whole.files.size();
    whole.files.insert(whole.files.end(), part.files.begin(), part.files.end());
    for (auto& [name, tensor] : part.tensors) {
      merge_tensor(whole, name, std::move(tensor), first_file);
    }
    whole.details.update(part.details, /*merge_objects=*/true);
  }
  for (auto& [name, tensor] : whole.tensors) {
    std::sort(tensor.slices.begin(), tensor.slices.end(),
              [](const auto& a, const auto& b) { return a.begin < b.begin; });
  }
  return whole;
}

void require_whole(const CheckpointIndex& index) {
  for (const auto& [name, tensor] : index.tensors) {
    try {
      require_whole(index, tensor);
    } catch (const InvalidArgument& error) {
      throw InvalidArgument("tensor '" + name + "': " + error.what());
    }
  }
}

}  // namespace kolo::tensors
