#include "train/optimizer/training_reporter.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <sys/resource.h>

#include "kolo/torch/training_report.hpp"
#include "ops/kernels/pieces.hpp"
#include "ops/steps/coded_pieces.hpp"
#include "runtime/engine/engine.hpp"
#include "train/tensors/parameter_storage.hpp"
#include "train/tensors/tensor_memory.hpp"

namespace kolo {
namespace {

constexpr double kMiB = 1024.0 * 1024.0;

void print_row(std::ostream& stream, const char* what, double now, double expected) {
  std::array<char, 96> line{};
  std::snprintf(line.data(), line.size(), "  %-24s%12.2f%12.2f\n", what, now / kMiB,
                expected / kMiB);
  stream << line.data();
}

void print_row(std::ostream& stream, const char* what, double now) {
  std::array<char, 96> line{};
  std::snprintf(line.data(), line.size(), "  %-24s%12.2f\n", what, now / kMiB);
  stream << line.data();
}

}  // namespace

std::ostream& operator<<(std::ostream& stream, const TrainingReport& report) {
  const TrainingReport::Kept& now = report.now;
  const TrainingReport::Kept& expected = report.expected;
  const auto row = [&](const char* what, auto measured, auto formula) {
    print_row(stream, what, static_cast<double>(measured), static_cast<double>(formula));
  };
  stream << "shard = " << name_of(report.shard) << ", sharded over " << report.sharers << " of "
         << report.ranks << " ranks\n  MiB on this rank                 now     formula\n";
  row("parameters", now.parameters, expected.parameters);
  row("gradients", now.gradients, expected.gradients);
  row("optimizer state", now.optimizer_state, expected.optimizer_state);
  row("buckets", now.buckets, expected.buckets);
  if (now.residuals > 0) row("error feedback", now.residuals, expected.residuals);
  row("total", now.total(), expected.total());
  row("sent in a step", report.sent_per_step, report.expected_sent_per_step);
  print_row(stream, "process, peak", static_cast<double>(report.peak_resident));
  print_row(stream, "  at construction", static_cast<double>(report.peak_at_construction));
  const auto row_of_time = [&](const char* what, double seconds) {
    if (seconds <= 0.0) return;
    std::array<char, 96> line{};
    std::snprintf(line.data(), line.size(), "  %-24s%12.3f ms\n", what, seconds * 1e3);
    stream << line.data();
  };
  row_of_time("reductions on the GPU", report.gpu_seconds_per_step);
  row_of_time("exposed communication", report.exposed_seconds_per_step);
  return stream;
}

}  // namespace kolo

namespace kolo::train {
namespace {

/// Bytes of the tensors in a leaf's state, and the number of tensors of the leaf's shape.
struct StateSize {
  std::size_t bytes = 0;
  std::size_t elementwise = 0;
};

StateSize size_of_state(const TrainingView::Leaf& leaf, const WrappedOptimizer& wrapped) {
  StateSize size;
  const auto fields = wrapped.state(leaf.values);
  if (!fields) return size;
  for (const StateField& field : *fields) {
    if (!field.value.isTensor()) continue;
    size.bytes += field.value.toTensor().nbytes();
    if (is_elementwise(field, leaf.values)) ++size.elementwise;
  }
  return size;
}

/// Bytes that each of `ranks` ranks sends to reduce-scatter or all-gather `bytes` in a ring.
std::uint64_t ring_bytes(std::uint64_t bytes, int ranks) {
  const auto n = static_cast<std::uint64_t>(ranks);
  return bytes * (n - 1) / n;
}

std::size_t peak_resident() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::size_t>(usage.ru_maxrss) * 1024;  // Linux counts KiB
}

/// Bytes of all parameters, and of the same elements in other dtypes.
struct ModelSize {
  std::size_t parameters = 0;
  std::size_t gradients = 0;
  std::size_t updated = 0;  ///< as the optimizer steps them
  std::size_t masters = 0;  ///< of parameters that have a master copy

  void add(const at::Tensor& parameter, const DistributedOptimizerOptions& options) {
    const auto count = static_cast<std::size_t>(parameter.numel());
    const std::size_t element = size_of(dtype_of(parameter));
    const UpdateType type{options.master_weights, options.offload};
    const std::size_t updated_element = type.of(parameter.options()).dtype().itemsize();
    parameters += count * element;
    gradients +=
        count * std::max(element, options.reduce_dtype ? size_of(*dtype_of(*options.reduce_dtype))
                                                       : element);
    updated += count * updated_element;
    if (updated_element != element) masters += count * updated_element;
  }
};

/// Bytes that rank `rank` of `ranks` sends to all-reduce `count` elements.
std::uint64_t allreduce_bytes(const Codec& codec, std::size_t count, int rank, int ranks) {
  std::uint64_t bytes = 0;
  for (int other = 0; other < ranks; ++other) {
    if (other == rank) continue;
    const auto length = [&](int of) {
      return ops::piece_of(count, ranks, of, codec.block()).length;
    };
    bytes += ops::coded_bytes(codec, length(other), 1);
    bytes += ops::coded_bytes(codec, length(rank), ranks);
  }
  return bytes;
}

/// Bytes that each of `ranks` ranks sends to reduce-scatter `count` elements, a multiple of them.
std::uint64_t reduce_scatter_bytes(const Codec& codec, std::size_t count, int ranks) {
  const auto n = static_cast<std::size_t>(ranks);
  return (n - 1) * ops::coded_bytes(codec, count / n, 1);
}

/// Adds a bucket for which each rank encodes its piece of its node's sum.
void add_piece(const Bucket& bucket, std::size_t bytes, const TrainingContext& context,
               GradientTraffic& traffic) {
  const ops::NodePlaces nodes = context.set.engine()->node_places();
  const std::size_t piece = nodes.own_piece(bucket.gradient_count()).length;
  const std::size_t element = size_of(bucket.dtype);
  const std::size_t bytes_inside = bytes / element * std::max(element, sizeof(float));
  const auto neighbours = static_cast<int>(nodes.neighbours().size());
  traffic.coded_elements += piece;
  traffic.coded_bytes +=
      allreduce_bytes(*context.compression.codec, piece, nodes.node(), nodes.node_count()) +
      2 * ring_bytes(bytes_inside, neighbours);
}

/// Adds the gradients of a reducer, in its current buckets.
void add_traffic(const GradientReducer& reducer, const TrainingContext& context,
                 GradientTraffic& traffic) {
  const GradientCompression& compression = context.compression;
  const ShardSets& sets = context.sets;
  const int sharers = sets.sharded->size();
  for (const Bucket& bucket : reducer.buckets().buckets()) {
    std::size_t bytes = 0;  // without padding
    for (const Bucket::Member& member : bucket.members) {
      const at::Tensor& parameter = reducer.parameters()[member.parameter].tensor;
      bytes += static_cast<std::size_t>(parameter.numel()) * size_of(bucket.dtype);
    }
    const std::size_t count = bucket.gradient_count();
    const std::size_t shard = count / static_cast<std::size_t>(sharers);
    if (!compression.encodes_whole(bucket)) traffic.whole_bytes += bytes;
    if (!compression.has_codec(bucket)) {
      traffic.replica_bytes += bytes;
    } else if (compression.is_piecewise()) {
      add_piece(bucket, bytes, context, traffic);
    } else if (!compression.is_of_replicas) {
      traffic.coded_elements += count;
      const Codec& codec = *compression.codec;
      traffic.coded_bytes += context.is_sharded()
                                 ? reduce_scatter_bytes(codec, count, sharers)
                                 : allreduce_bytes(codec, count, context.set.rank(), sharers);
    } else if (sets.replicas != nullptr) {
      traffic.coded_elements += shard;
      traffic.coded_bytes +=
          allreduce_bytes(*compression.codec, shard, sets.replicas->rank(), sets.replicas->size());
    }
  }
}

void count_memory(const GradientReducer& reducer, TrainingReport::Kept& kept) {
  kept.residuals += reducer.layouts().residuals().size_bytes();
  const bool has_shards = reducer.shards() != nullptr;
  const bool has_slots = reducer.layouts().now().shares_slots();
  (has_slots ? kept.buckets : kept.gradients) += reducer.buckets().memory().size_bytes();
  if (has_shards && reducer.shards()->memory().units() != nullptr) {
    kept.buckets += reducer.shards()->memory().units()->slot_bytes();
  }
  const std::vector<ReducedParameter>& parameters = reducer.parameters();
  for (const ReducedParameter& parameter : parameters) {
    if (!is_fully_sharded(parameter.tensor)) kept.parameters += parameter.tensor.nbytes();
  }
  for (std::size_t i = 0; has_shards && i < reducer.buckets().buckets().size(); ++i) {
    if (has_slots) kept.gradients += reducer.shards()->gradient_shard(i).nbytes();
    for (const ParameterShards::Leaf& leaf : reducer.shards()->leaves(i)) {
      if (!is_fully_sharded(parameters[leaf.parameter].tensor)) continue;
      kept.parameters += leaf.elements.nbytes();
    }
  }
}

/// Adds the state of this rank's leaves. Returns the number of elementwise tensors that a leaf's
/// state has.
std::size_t count_state(const TrainingView& view, TrainingReport::Kept& kept) {
  std::size_t elementwise = 0;
  for (const TrainingView::Leaf& leaf : view.leaves) {
    const StateSize state = size_of_state(leaf, view.wrapped);
    kept.optimizer_state += state.bytes + (leaf.master.defined() ? leaf.master.nbytes() : 0);
    elementwise = std::max(elementwise, state.elementwise);
  }
  return elementwise;
}

}  // namespace

void TrainingReporter::start() {
  peak_at_construction_ = peak_resident();
  before_ = traffic();
}

void TrainingReporter::step() {
  const Traffic now = traffic();
  last_step_ = {now.bytes - before_.bytes, now.gpu_seconds - before_.gpu_seconds,
                now.exposed - before_.exposed};
  before_ = now;
}

TrainingReporter::Traffic TrainingReporter::traffic() const {
  Traffic traffic;
  traffic.exposed = context_.set.engine()->recorder().blocked();
  const auto add = [&](const ProcessSet& set) {
    const auto metrics = set.metrics();
    traffic.bytes += metrics.bytes_sent;
    traffic.gpu_seconds += metrics.gpu_seconds;
  };
  add(context_.set);
  if (context_.sets.replicas == nullptr) return traffic;
  add(*context_.sets.sharded);
  add(*context_.sets.replicas);
  return traffic;
}

TrainingReport TrainingReporter::report(const GradientReducers& reducers,
                                        const TrainingView& view) const {
  TrainingReport report;
  report.shard = *context_.options.shard;
  report.ranks = context_.set.size();
  report.sharers = context_.is_sharded() ? context_.sets.sharded->size() : 1;
  ModelSize size;
  GradientTraffic traffic;
  for (const auto& reducer : reducers) {
    for (const ReducedParameter& parameter : reducer->parameters()) {
      size.add(parameter.tensor, context_.options);
    }
    add_traffic(*reducer, context_, traffic);
    count_memory(*reducer, report.now);
  }
  const std::size_t state_per_parameter = count_state(view, report.now);
  const auto sharers = static_cast<std::size_t>(report.sharers);
  report.expected = {
      .parameters = size.parameters / (report.shard == Shard::Full ? sharers : 1),
      .gradients = size.gradients / (shards_gradients(report.shard) ? sharers : 1),
      .optimizer_state = (size.masters + state_per_parameter * size.updated) / sharers,
      .buckets = 0,
      .residuals =
          context_.compression.has_error_feedback ? 2 * sizeof(float) * traffic.coded_elements : 0};
  report.peak_resident = peak_resident();
  report.peak_at_construction = peak_at_construction_;
  report.sent_per_step = last_step_.bytes;
  report.gpu_seconds_per_step = last_step_.gpu_seconds;
  report.exposed_seconds_per_step = last_step_.exposed.count();
  const std::vector<GatheredUnits*> units = reducers.units();
  std::size_t gathered = size.parameters;
  if (!units.empty()) {
    for (const auto& [name, frozen] : context_.frozen.parameters()) gathered += frozen.nbytes();
  }
  report.expected_sent_per_step =
      expected_bytes_per_step(gathered, traffic, units.empty() ? 1 : units.front()->sharers());
  return report;
}

std::uint64_t TrainingReporter::expected_bytes_per_step(std::size_t parameter_bytes,
                                                        const GradientTraffic& gradients,
                                                        int slot_sharers) const {
  const DistributedOptimizerOptions& options = context_.options;
  const auto passes = static_cast<std::uint64_t>(
      options.accumulation == Accumulation::Reduced ? options.backward_passes_per_step : 1);
  const auto backward_passes = static_cast<std::uint64_t>(options.backward_passes_per_step);
  const int sharers = context_.sets.sharded->size();
  const std::uint64_t gathers = *options.shard != Shard::Full ? 1
                                : context_.gathers_on_use && options.reshard_after_forward
                                    ? 2 * backward_passes
                                : context_.gathers_on_use ? 1
                                                          : 0;
  const std::size_t gathered_bytes =
      context_.is_sharded() ? parameter_bytes : gradients.whole_bytes;
  const std::uint64_t bytes_per_gather =
      ring_bytes(gathered_bytes / static_cast<std::size_t>(slot_sharers), sharers / slot_sharers);
  std::uint64_t bytes =
      passes * (ring_bytes(gradients.whole_bytes, sharers) + gradients.coded_bytes) +
      gathers * bytes_per_gather;
  if (context_.sets.replicas != nullptr) {
    bytes += passes * 2 *
             ring_bytes(gradients.replica_bytes / static_cast<std::size_t>(sharers),
                        context_.sets.replicas->size());
  }
  return bytes;
}

}  // namespace kolo::train
