#include "train/wrapped/whole_tensors.hpp"

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include <ATen/Context.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <c10/core/GradMode.h>
#include <c10/util/accumulate.h>

#include "train/tensors/generator_state.hpp"

namespace kolo::train {
namespace {

// Several, since some classes use in a step what the one before has left in their state.
constexpr int kSteps = 3;

/// LibTorch's generator for CPUs as it was.
class KeptRandomness {
 public:
  KeptRandomness() : state_(train::state_of(generator())) {}
  ~KeptRandomness() { set_state_of(generator(), state_); }
  KeptRandomness(const KeptRandomness&) = delete;  // it is restored once
  KeptRandomness& operator=(const KeptRandomness&) = delete;
  void restart() { set_state_of(generator(), state_); }

 private:
  static const at::Generator& generator() {
    return at::globalContext().defaultGenerator(at::Device(at::kCPU));
  }
  const at::Tensor state_;
};

/// Of so many dimensions: 12 elements or more, unless it has none.
std::vector<std::int64_t> shape_of(std::int64_t dimensions) {
  if (dimensions == 1) return {12};
  std::vector<std::int64_t> shape(static_cast<std::size_t>(dimensions), 2);
  if (dimensions > 0) shape[0] = 3;
  if (dimensions == 2) shape[1] = 4;
  return shape;
}

/// Values whose norms differ from one part to another.
at::Tensor ramp(std::int64_t count, double begin, double factor, const at::TensorOptions& type) {
  const at::Tensor steps = at::arange(1, count + 1, at::TensorOptions(at::kDouble));
  return ((steps * factor + begin) * steps / count).sin().mul(steps).to(type);
}

/// Steps the tensor in pieces of these lengths, or whole. Returns its elements.
at::Tensor stepped(WrappedOptimizer& optimizer, std::size_t group, const at::Tensor& tensor,
                   const std::vector<std::int64_t>& pieces) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> leaves;
  for (const at::Tensor& part : tensor.view(-1).split_with_sizes(pieces)) {
    const bool is_whole = pieces.size() == 1;
    leaves.push_back(part.clone().view(is_whole ? tensor.sizes() : part.sizes()).requires_grad_());
  }
  const auto erase = [&](void*) {
    for (const at::Tensor& leaf : leaves) optimizer.erase_state(leaf);
  };
  const std::unique_ptr<void, decltype(erase)> erased(&optimizer, erase);
  for (int step = 0; step < kSteps; ++step) {
    const at::Tensor gradient =
        ramp(tensor.numel(), 0.3 * step, 0.7, tensor.options().requires_grad(false));
    const std::vector<at::Tensor> parts = gradient.split_with_sizes(pieces);
    for (std::size_t i = 0; i < leaves.size(); ++i) {
      leaves[i].mutable_grad() = parts[i].clone().view(leaves[i].sizes());
    }
    std::vector<std::vector<at::Tensor>> of_groups(optimizer.groups().size());
    of_groups[group] = leaves;
    optimizer.step_leaves(std::move(of_groups));
  }
  std::vector<at::Tensor> results;
  for (const at::Tensor& leaf : leaves) results.push_back(leaf.detach().reshape({-1}));
  return at::cat(results);
}

/// Whether a tensor of this shape and type steps otherwise in pieces than whole. Throws what the
/// whole step throws.
bool differs_in_pieces(WrappedOptimizer& optimizer, std::size_t group,
                       const std::vector<std::int64_t>& shape, const at::TensorOptions& type) {
  const std::int64_t count = c10::multiply_integers(shape);
  const at::Tensor tensor = ramp(count, 1.0, 0.4, type).view(shape);
  KeptRandomness randomness;
  const at::Tensor whole = stepped(optimizer, group, tensor, {count});
  if (count == 1) return false;
  randomness.restart();
  at::Tensor pieces;
  try {
    pieces = stepped(optimizer, group, tensor, {count / 3, count - count / 3});
  } catch (const std::exception&) {
    return true;
  }
  // With a rate of 0 nothing moves, and nothing is known: then it is not taken for elementwise.
  const double moved = (whole - tensor.view({-1})).abs().max().item<double>();
  const double apart = (whole - pieces).abs().max().item<double>();
  return !(apart < 1e-3 * moved);
}

}  // namespace

Wholeness wholeness_of(WrappedOptimizer& optimizer, std::size_t group,
                       const std::vector<at::Tensor>& some) {
  if (const std::optional<bool> said = optimizer.needs_whole_tensors(group)) {
    return {*said, false, {}};
  }
  Wholeness found{false, true, {}};
  const std::shared_ptr<void> kept = optimizer.keep_groups();
  std::set<std::int64_t> tried;
  for (const at::Tensor& parameter : some) {
    if (!tried.insert(parameter.dim()).second) continue;
    const auto probe = [&](at::ScalarType type) {
      found.is_needed |= differs_in_pieces(optimizer, group, shape_of(parameter.dim()),
                                           at::TensorOptions(parameter.device()).dtype(type));
    };
    try {
      try {
        // In which updates with a small rate do not vanish beside the values.
        probe(parameter.is_complex() ? at::kComplexDouble : at::kDouble);
      } catch (const std::exception&) {  // its kernels may take no doubles
        probe(parameter.is_complex() ? at::kComplexFloat : at::kFloat);
      }
    } catch (const std::exception& error) {
      found.problem = "step() of class " + optimizer.class_name() + " threw '" + error.what() +
                      "' for a probe, which finds out whether it needs whole tensors. " +
                      kHowToSay +
                      ", or use shard = none: a step that needs its closure runs only there.";
      return found;
    }
  }
  return found;
}

}  // namespace kolo::train
