// TrainingEngine: full parameters and checkpoints.
#include <string>

#include "kolo/error.hpp"
#include "kolo/shard.hpp"
#include "torch/optimizer/full_parameters.hpp"
#include "torch/optimizer/parameter_state.hpp"
#include "torch/optimizer/training_engine.hpp"
#include "torch/tensors/write_protection.hpp"

namespace kolo::tensors {

void TrainingEngine::full_parameters(const std::function<void()>& write) {
  guards_.require_untouched();
  write_full_parameters(context_, batches_, write);
}

DistributedOptimizer::ParameterState TrainingEngine::parameter_state(
    const at::Tensor& parameter) const {
  const auto [reducer, index] = batches_.find(parameter, "parameter_state()");
  return state_of(context_, *reducer, index);
}

void TrainingEngine::reset_parameter_state(const at::Tensor& parameter) {
  const auto [reducer, index] = batches_.find(parameter, "reset_parameter_state()");
  reset_state_of(context_, *reducer, index);
}

void TrainingEngine::require_state_map() const {
  if (!context_.is_sharded()) return;
  throw InvalidArgument(
      "DistributedOptimizer: state() with shard = " +
      std::string(kolo::name_of(*context_.options.shard)) +
      ", where each rank has state of its shards alone. Read a parameter's state with "
      "parameter_state(), reset it with reset_parameter_state(), and save it with save().");
}

/// Averages parameters of ranks that have stepped alone.
void TrainingEngine::average_parameters() {
  option_sync_.match_members(context_.groups, wrapped_->groups());
  batches_.add_new();
  local_.average();
}

void TrainingEngine::check_replicas() {
  guards_.require_untouched();
  replica_check_.check();
}

void TrainingEngine::save(const std::filesystem::path& folder, const SaveOptions& options) {
  merge_options();
  local_.is_on() ? average_parameters() : comparison_.compare_last_and_next();
  checkpoint_.save(folder, options);
}

Loaded TrainingEngine::load(const std::filesystem::path& path, const LoadOptions& options) {
  context_.step.phases.require(StepCall::Load);
  option_sync_.match_members(context_.groups, wrapped_->groups());
  batches_.add_new();
  merge_options();
  for (GatheredUnits* const units : batches_.units()) units->release_all();
  const WritesAllowed writes;
  const Loaded loaded = checkpoint_.load(path, options);
  local_.resume(context_.steps);
  comparison_.restart();
  return loaded;
}

void TrainingEngine::save_full_state(const std::filesystem::path& file, int root) {
  if (local_.is_on()) average_parameters();
  checkpoint_.save_full_state(file, root);
}

void TrainingEngine::save(torch::serialize::OutputArchive& archive) const {
  guards_.require_whole_state("torch::save");
  wrapped_->save(archive);
}

void TrainingEngine::load(torch::serialize::InputArchive& archive) {
  guards_.require_whole_state("torch::load");
  wrapped_->load(archive);
  merge_options();  // loading replaces the options of the wrapped optimizer's groups
}

}  // namespace kolo::tensors
