#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "checkpoint/ranks.hpp"
#include "kolo/torch/checkpoint.hpp"
#include "train/checkpoint/saved_state.hpp"
#include "train/checkpoint/training_view.hpp"
#include "train/optimizer/gradient_reducers.hpp"
#include "train/optimizer/training_context.hpp"
#include "train/wrapped/options.hpp"

namespace kolo::train {

/// Saves and loads the training state of an optimizer; see DistributedOptimizer. Saving and loading
/// are collective.
class TrainingCheckpoint {
 public:
  TrainingCheckpoint(TrainingContext& context, GradientReducers& reducers, OptionSync& option_sync,
                     TrainingContext::NamedTensors parameters,
                     TrainingContext::NamedTensors buffers);

  void save(const std::filesystem::path& folder, const SaveOptions& options);
  Loaded load(const std::filesystem::path& path, const LoadOptions& options);
  void save_full_state(const std::filesystem::path& file, int root);

  TrainingView view() const;

 private:
  std::string next_name(const char* operation);
  Loaded load_checkpoint(const std::filesystem::path& path, const LoadOptions& options,
                         const checkpoints::Ranks& ranks);
  Loaded require_fit(const TrainingView& training, const SavedTraining& saved,
                     const LoadOptions& options) const;
  void add_parameters(ModelView& model) const;
  void add_leaves(TrainingView& view) const;
  void add_shares(TrainingView& view) const;
  TrainingView::Residuals residuals() const;
  nlohmann::json layout() const;
  void follow_layout(const TrainingDetails& details);

  TrainingContext& context_;
  GradientReducers& reducers_;
  OptionSync& option_sync_;
  const TrainingContext::NamedTensors parameters_;
  const TrainingContext::NamedTensors buffers_;
  std::int64_t operations_ = 0;  // so far; a suffix of operations' names
};

}  // namespace kolo::train
