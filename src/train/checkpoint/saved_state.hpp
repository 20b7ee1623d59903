#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Generator.h>
#include <nlohmann/json.hpp>

#include "checkpoint/checkpoint.hpp"
#include "checkpoint/ranks.hpp"
#include "train/checkpoint/training_details.hpp"
#include "train/checkpoint/training_view.hpp"

namespace kolo::train {

/// What a checkpoint of a training run holds besides its model: the state of the optimizer, of
/// compression, and of random number generators.

/// The optimizer's state of this rank's leaves, and what all ranks know about that of a parameter.
///
/// Ranks may have state of different parameters, also where each has whole ones: with local SGD
/// they train alone.
class LeafStates {
 public:
  /// A tensor of a parameter's state.
  using Key = std::pair<std::string, std::string>;  // parameter, field
  struct Tensor {
    DType dtype = DType::Float32;
    std::vector<std::int64_t> shape;  ///< of all elements, if elementwise
    /// One element for every element of the parameter: ranks have those of their leaves.
    bool is_elementwise = false;
    std::set<int> ranks{};  ///< of the set: those that have it
  };

  /// Runs `work` too, and throws its error on all ranks. Collective over the view's set, which the
  /// ranks are; one operation. Throws InvalidArgument on all ranks for state that cannot be read,
  /// and for names that no file can hold.
  LeafStates(
      const TrainingView& view, const checkpoints::Ranks& ranks, const std::string& what,
      const std::function<void()>& work = [] {});

  /// The fields of view.leaves[leaf]; none if it has no state.
  const std::vector<StateField>& fields(std::size_t leaf) const { return fields_[leaf]; }
  /// The tensors of all ranks, in the same order on each.
  const std::map<Key, Tensor>& tensors() const { return tensors_; }
  /// Whether every rank has the tensor.
  bool is_everywhere(const Tensor& tensor) const {
    return tensor.ranks.size() == static_cast<std::size_t>(view_.set.size());
  }
  /// Whether this rank is the last that has the tensor: its numbers are kept, too.
  bool is_last_with(const Tensor& tensor) const {
    return *tensor.ranks.rbegin() == view_.set.rank();
  }

  /// For a checkpoint: of every parameter with state on this rank, its numbers, and whether its
  /// tensors are elementwise.
  nlohmann::json describe() const;

 private:
  nlohmann::json own_tensors() const;
  void merge(const std::vector<std::string>& all);

  const TrainingView& view_;
  std::vector<std::vector<StateField>> fields_;  // of each leaf
  std::map<Key, Tensor> tensors_;
};

/// What a checkpoint of a training run has. Neither its tensors nor its details are trusted.
struct SavedTraining {
  const checkpoints::CheckpointIndex& index;
  std::filesystem::path path;
  TrainingDetails details;

  bool has(const std::string& key) const { return index.tensors.contains(key); }
  /// Throws InvalidArgument if it has no such tensor, or one of another dtype or shape than the
  /// program's; names both.
  void require(const std::string& key, DType dtype, const std::vector<std::int64_t>& shape) const;

  /// The name in the checkpoint of the model's tensor `name`: a tied parameter has one there.
  const std::string& name_of(const std::string& name) const {
    const auto alias = details.aliases.find(name);
    return alias == details.aliases.end() ? name : alias->second;
  }
};

/// Throws InvalidArgument if the state of a leaf does not match the program's optimizer, or with
/// `strict` if it is of another class, whose languages may differ. Known
/// classes need all fields, in their types and the parameter's shape; other classes decide
/// themselves. State in the dtype of a parameter fits its master copy.
void require_same_state(const TrainingView& view, const SavedTraining& saved, bool strict);

/// The fields of a leaf's state, with uninitialized tensors; none if the checkpoint has no state
/// for it.
std::vector<StateField> fields_in(const SavedTraining& saved, const TrainingView::Leaf& leaf);

/// The tensors in a checkpoint that one of this rank's residuals is loaded from.
struct SavedResidual {
  const TrainingView::Residual* target;
  std::vector<std::string> keys;  ///< of the tensors whose sum it gets
};

/// The saved residuals that this rank loads: saved copy i is added to copy i mod n of the n current
/// ones. Throws InvalidArgument if a tensor does not match its parameter.
std::vector<SavedResidual> find_residuals(const TrainingView& view, const SavedTraining& saved);

/// Verifies the checksums of the tensors that load_residuals() reads. Throws the errors of
/// Checkpoint.
void verify_residuals(const std::vector<SavedResidual>& residuals,
                      const checkpoints::Checkpoint& checkpoint);

/// Replaces the residuals of `view` with the saved sums, or with zeros where none was saved.
/// Rescales them for averages over another number of ranks.
void load_residuals(const TrainingView& view, const std::vector<SavedResidual>& residuals,
                    const SavedTraining& saved, const checkpoints::Checkpoint& checkpoint);

/// A random number generator of a training run.
struct RandomSource {
  std::string key;  ///< of this rank's state in a checkpoint
  at::Generator generator;

  at::Tensor state() const;
  void restore(const at::Tensor& state);
  /// Throws InvalidArgument, naming the key, if `restore` would fail.
  void require_valid(const at::Tensor& state) const;
};

/// The generators of the CPU and of the model's CUDA device.
std::vector<RandomSource> random_sources(const TrainingView& view);

}  // namespace kolo::train
