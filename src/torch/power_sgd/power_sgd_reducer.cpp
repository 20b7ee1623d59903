#include "torch/power_sgd/power_sgd_reducer.hpp"

#include <memory>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "kolo/error.hpp"
#include "kolo/tensor_collectives.hpp"

namespace kolo::tensors {
namespace {

/// As outside of backward() with create_graph and of Autocast, which would multiply in 16 bits.
struct PlainArithmetic {
  at::NoGradGuard no_grad;
  c10::impl::ExcludeDispatchKeyGuard no_autocast{c10::autocast_dispatch_keyset};
};

void require_fit(const LowRankState& state, const at::Tensor& matrix, const std::string& name) {
  const bool fits = (!state.error.defined() || state.error.sizes() == matrix.sizes()) &&
                    (!state.q.defined() || state.q.size(0) == matrix.size(1));
  if (fits) return;
  throw InvalidArgument("PowerSgd: it has the state of another parameter '" + name +
                        "'. Make one object for each optimizer.");
}

}  // namespace

TensorHandle PowerSgdReducer::reduce(GradientBucket bucket) {
  if (bucket.process_set != options_.process_set) {
    throw InvalidArgument("PowerSgd: it was made for process set " + options_.process_set->name() +
                          ", and the optimizer reduces over " + bucket.process_set->name() +
                          ". Give both the same one, by PowerSgdOptions::process_set.");
  }
  const PlainArithmetic arithmetic;
  const std::vector<LowRankGradient> compressed = choose(bucket);
  if (compressed.empty()) {
    return allreduce_async_(bucket.gradients,
                            {.name = bucket.name, .process_set = bucket.process_set});
  }
  auto reduction = std::make_shared<LowRankReduction>(options_, std::move(bucket), compressed);
  return reduction->begin().then([reduction](const at::Tensor&) {
    const PlainArithmetic as_before;
    return reduction->finish();
  });
}

std::vector<LowRankGradient> PowerSgdReducer::choose(const GradientBucket& bucket) {
  std::vector<LowRankGradient> chosen;
  if (bucket.step < options_.start_step) return chosen;
  for (std::size_t i = 0; i < bucket.views.size(); ++i) {
    const at::Tensor& view = bucket.views[i];
    if (!compresses(view)) continue;
    const at::Tensor matrix = view.view({view.size(0), -1});
    LowRankState& state = states_[bucket.parameter_names[i]];
    require_fit(state, matrix, bucket.parameter_names[i]);
    chosen.push_back({.parameter = i, .view = matrix, .state = &state});
  }
  return chosen;
}

bool PowerSgdReducer::compresses(const at::Tensor& gradient) const {
  if (gradient.dim() < 2 || !gradient.is_floating_point()) return false;
  const auto elements = static_cast<double>(gradient.numel());
  const auto rows = static_cast<double>(gradient.size(0));
  return elements >= options_.min_compression_rate * (rows + elements / rows) * options_.rank;
}

}  // namespace kolo::tensors
