#include "torch/training/random_sources.hpp"

#include <mutex>

#include <ATen/Context.h>
#include <c10/util/Exception.h>

#include "kolo/error.hpp"
#include "train/tensors/generator_state.hpp"

namespace kolo::train {

at::Tensor RandomSource::state() const { return state_of(generator); }

void RandomSource::restore(const at::Tensor& state) { set_state_of(generator, state); }

void RandomSource::require_valid(const at::Tensor& state) const {
  at::Generator source = generator;
  try {
    const std::lock_guard lock(source.mutex());
    source.clone().set_state(state);
  } catch (const c10::Error& error) {
    throw InvalidArgument("'" + key +
                          "' is not a valid generator state: " + error.what_without_backtrace());
  }
}

std::vector<RandomSource> random_sources(const TrainingView& view) {
  const std::string key = "random." + std::to_string(view.set.rank());
  std::vector<RandomSource> sources{{key, at::globalContext().defaultGenerator(at::kCPU)}};
  for (const auto& [name, tensor] : view.model.parameters) {
    if (!tensor.is_cuda()) continue;
    sources.push_back({key + ".cuda", at::globalContext().defaultGenerator(tensor.device())});
    break;
  }
  return sources;
}

}  // namespace kolo::train
