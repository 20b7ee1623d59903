#include <algorithm>
#include <system_error>

#include "kolo/error.hpp"
#include "torch/accelerator/accelerated_training.hpp"
#include "torch/checkpoint/checkpoint.hpp"
#include "torch/checkpoint/json_fields.hpp"
#include "torch/checkpoint/on_all_ranks.hpp"
#include "torch/checkpoint/printable.hpp"
#include "torch/tensors/agreement.hpp"

/// AcceleratedTraining::save_state and load_state.
namespace kolo::tensors {
namespace {

constexpr const char* kState = "kolo.accelerator";  // the key of the state among the extras

}  // namespace

void AcceleratedTraining::save_state(const std::filesystem::path& folder, SaveOptions options) {
  std::string problem;
  if (options.scaler != nullptr) {
    problem = "SaveOptions::scaler is given. Leave it out: the Accelerator saves its own";
  } else if (options.extras.contains(kState)) {
    problem = std::string("SaveOptions::extras has '") + kState + "'. Choose another name";
  }
  agree(set_, set_.next_name("save_state"), "Accelerator: save_state()", {}, problem);
  if (scaler_.is_enabled()) options.scaler = &scaler_;
  nlohmann::json state{{"schedule", rates_->state()}};
  if (feed_ != nullptr) state["data"] = feed_->state();
  options.extras[kState] = state.dump();
  optimizer_.save(folder, options);
}

std::optional<Loaded> AcceleratedTraining::load_state(const std::filesystem::path& path) {
  const std::string name = set_.next_name("load_state");
  if (!has_checkpoint(path, name + ".find")) return std::nullopt;
  drop_gradients();
  Loaded loaded = optimizer_.load(path, {.scaler = scaler_.is_enabled() ? &scaler_ : nullptr});
  const std::string what = "loading the state of an Accelerator from " + loaded.path.string();
  on_all_ranks({.name = name + ".restore", .process_set = &set_}, what, [&] {
    const auto state = loaded.extras.find(kState);
    if (state == loaded.extras.end()) {
      throw InvalidArgument("save_state() has not made it. Load it with optimizer().load()");
    }
    restore(state->second);
  });
  loaded.extras.erase(kState);
  steps_ = loaded.steps;
  return loaded;
}

/// Whether any rank sees a checkpoint. If only some do, load() throws a better error.
bool AcceleratedTraining::has_checkpoint(const std::filesystem::path& path,
                                         const std::string& name) {
  const std::vector<std::string> found =
      on_all_ranks({.name = name, .process_set = &set_}, "looking for checkpoints", [&] {
        std::error_code error;
        if (!std::filesystem::exists(path, error)) return std::string();
        const bool is_one =
            !std::filesystem::is_directory(path, error) || tensors::has_checkpoint(path);
        return std::string(is_one ? "yes" : "");
      });
  return std::ranges::any_of(found, [](const std::string& each) { return !each.empty(); });
}

void AcceleratedTraining::restore(const std::string& text) {
  try {
    const nlohmann::json state = parse_json(text);
    if (state.contains("data") != (feed_ != nullptr)) {
      throw InvalidArgument(std::string("it has ") + (feed_ == nullptr ? "a" : "no") +
                            " position in training data, unlike the program. Call the same "
                            "prepare() as the program that saved it");
    }
    if (feed_ != nullptr) feed_->restore(state.at("data"));
    rates_->restore(state.at("schedule"));
  } catch (const nlohmann::json::exception& error) {
    throw InvalidArgument("its state is damaged: " + printable(error.what()));
  }
}

}  // namespace kolo::tensors
