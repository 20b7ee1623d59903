#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <future>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "checkpoint/new_checkpoint.hpp"
#include "checkpoint/ranks.hpp"
#include "kolo/agreement.hpp"
#include "kolo/torch/checkpoint.hpp"
#include "train/checkpoint/saved_state.hpp"
#include "train/checkpoint/training_view.hpp"
#include "train/gradients/gradient_reducers.hpp"
#include "train/gradients/training_context.hpp"
#include "train/wrapped/options.hpp"

namespace kolo::train {

/// The program's modules as they are now.
struct NamedModel {
  TrainingContext::NamedTensors parameters;
  TrainingContext::NamedTensors buffers;
};
using ModelSource = std::function<NamedModel()>;

/// The names of parameters as they are now: those in the model; others of the groups are numbered.
class CurrentNames {
 public:
  CurrentNames(const NamedModel& model, const TrainingContext::Groups& groups);

  /// The name of a parameter of the model or of the groups.
  const std::string& of(const at::Tensor& parameter) const {
    return names_.at(parameter.unsafeGetTensorImpl());
  }
  /// One that has left both keeps the name that it had.
  std::string of(const at::Tensor& parameter, const std::string& before) const {
    const auto found = names_.find(parameter.unsafeGetTensorImpl());
    return found == names_.end() ? before : found->second;
  }
  std::string of(const ReducedParameter& parameter) const {
    return of(parameter.tensor, parameter.name);
  }
  std::vector<std::vector<std::string>> of(const TrainingContext::Groups& groups) const;
  /// Which parameter of the groups is not in the model, and what to do; empty if all are.
  const std::string& problem() const { return problem_; }

 private:
  std::unordered_map<const void*, std::string> names_;
  std::string problem_;
};

/// Saves and loads the training state of an optimizer; see DistributedOptimizer. Saving and loading
/// are collective.
class TrainingCheckpoint {
 public:
  TrainingCheckpoint(TrainingContext& context, GradientReducers& reducers, OptionSync& option_sync,
                     ModelSource model);
  ~TrainingCheckpoint() { finish(); }
  TrainingCheckpoint(const TrainingCheckpoint&) = delete;  // a thread may write its copy
  TrainingCheckpoint& operator=(const TrainingCheckpoint&) = delete;

  /// With options.in_background, wait() has been called since the last such save.
  Saved save(const std::filesystem::path& folder, const SaveOptions& options);
  /// Waits for a save in the background, and throws its error. Returns nothing if there was none.
  std::optional<Saved> wait();
  /// The same, but logs the error.
  void finish() noexcept;
  Loaded load(const std::filesystem::path& path, const LoadOptions& options);
  void save_full_state(const std::filesystem::path& file, int root);

  TrainingView view() const;

 private:
  std::string next_name(const char* operation);
  Loaded load_checkpoint(const std::filesystem::path& path, const LoadOptions& options,
                         const checkpoints::Ranks& ranks);
  Loaded require_fit(const TrainingView& training, const SavedTraining& saved,
                     const LoadOptions& options) const;
  void require_saveable(const std::string& call, const std::string& name,
                        std::vector<NamedValue> facts) const;
  std::vector<TrainingDetails::Options> own_options() const;
  void add_leaves(const CurrentNames& names, TrainingView& view) const;
  void add_shares(const CurrentNames& names, TrainingView& view) const;
  TrainingView::Residuals residuals(const CurrentNames& names) const;
  nlohmann::json layout(const CurrentNames& names) const;
  void follow_layout(const TrainingDetails& details);
  void copy(std::vector<checkpoints::TensorSlice>& slices);

  TrainingContext& context_;
  GradientReducers& reducers_;
  OptionSync& option_sync_;
  const ModelSource model_;
  std::int64_t operations_ = 0;                 // so far; a suffix of operations' names
  std::vector<std::byte> copy_;                 // this rank's share, for a save in the background
  Saved written_;                               // there, without its path
  std::future<std::filesystem::path> writing_;  // the last member: its thread reads the copy
};

}  // namespace kolo::train
