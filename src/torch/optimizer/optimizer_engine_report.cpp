#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <sys/resource.h>
#include <vector>

#include "torch/optimizer/optimizer_engine.hpp"
#include "torch/sharding/state_fields.hpp"

namespace kolo::tensors {
namespace {

/// Bytes of the tensors in a part's state, and how many bytes those have for each byte of it.
struct StateBytes {
  std::size_t kept = 0;
  std::size_t factor = 0;
};

StateBytes bytes_of_state(const TrainingView::Part& part, torch::optim::Optimizer& wrapped) {
  StateBytes bytes;
  const auto state = wrapped.state().find(part.values.unsafeGetTensorImpl());
  if (state == wrapped.state().end()) return bytes;
  for (const StateField& field : fields_of(*state->second)) {
    if (!field.value.isTensor()) continue;
    bytes.kept += field.value.toTensor().nbytes();
    if (is_elementwise(field, part.values)) ++bytes.factor;
  }
  return bytes;
}

/// What a rank moves when `ranks` of them reduce and gather `bytes` in a ring.
std::uint64_t ring_bytes(std::uint64_t bytes, int ranks) {
  const auto n = static_cast<std::uint64_t>(ranks);
  return bytes * (n - 1) / n;
}

}  // namespace

std::size_t OptimizerEngine::peak_resident() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::size_t>(usage.ru_maxrss) * 1024;  // Linux counts KiB
}

std::uint64_t OptimizerEngine::bytes_sent() const {
  std::uint64_t bytes = set_.metrics().bytes_sent;
  if (sets_.replicas == nullptr) return bytes;
  return bytes + sets_.divided->metrics().bytes_sent + sets_.replicas->metrics().bytes_sent;
}

double OptimizerEngine::gpu_seconds() const {
  const double seconds = set_.metrics().gpu_seconds;
  if (sets_.replicas == nullptr) return seconds;
  return seconds + sets_.divided->metrics().gpu_seconds + sets_.replicas->metrics().gpu_seconds;
}

TrainingReport OptimizerEngine::report() const {
  TrainingReport report;
  report.shard = *options_.shard;
  report.ranks = set_.size();
  report.sharers = report.shard == Shard::None ? 1 : sets_.divided->size();
  const auto sharers = static_cast<std::size_t>(report.sharers);
  for (const auto& reducer : reducers_) {
    for (const ReducedParameter& parameter : reducer->parameters()) {
      report.now.parameters += parameter.tensor.nbytes();
    }
    const bool has_parts = reducer->shards() != nullptr && report.shard == Shard::Gradients;
    std::size_t& memory = has_parts ? report.now.buckets : report.now.gradients;
    memory += reducer->buckets().memory().size_bytes();
    for (std::size_t i = 0; has_parts && i < reducer->buckets().buckets().size(); ++i) {
      report.now.gradients += reducer->shards()->part(i).nbytes();
    }
  }
  std::size_t factor = 0;
  for (const TrainingView::Part& part : view().parts) {
    const StateBytes state = bytes_of_state(part, wrapped_);
    report.now.optimizer_state += state.kept;
    factor = std::max(factor, state.factor);
  }
  const std::size_t parameters = report.now.parameters;
  report.expected = {
      .parameters = parameters,
      .gradients = report.shard == Shard::Gradients ? parameters / sharers : parameters,
      .optimizer_state = factor * parameters / sharers,
      .buckets = 0};
  report.peak_resident = peak_resident();
  report.peak_at_construction = peak_at_construction_;
  report.sent_per_step = sent_per_step_;
  report.gpu_seconds_per_step = gpu_seconds_per_step_;
  const int passes =
      options_.accumulation == Accumulation::Reduced ? options_.backward_passes_per_step : 1;
  const auto rounds = static_cast<std::uint64_t>(passes);
  report.expected_sent_per_step = (rounds + 1) * ring_bytes(parameters, sets_.divided->size());
  if (sets_.replicas != nullptr) {
    report.expected_sent_per_step +=
        rounds * 2 * ring_bytes(parameters / sharers, sets_.replicas->size());
  }
  return report;
}

}  // namespace kolo::tensors
