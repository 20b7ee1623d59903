#include "torch/power_sgd/power_sgd_reducer.hpp"

#include <memory>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "kolo/error.hpp"

namespace kolo::tensors {
namespace {

/// Disables create_graph, and Autocast, which would multiply in 16 bits.
struct PlainArithmetic {
  at::NoGradGuard no_grad;
  c10::impl::ExcludeDispatchKeyGuard no_autocast{c10::autocast_dispatch_keyset};
};

}  // namespace

TensorHandle PowerSgdReducer::reduce(GradientBucket bucket) {
  if (bucket.process_set != set_.get()) {
    throw InvalidArgument("PowerSgd: it was made for process set " + set_->name() +
                          ", and the optimizer reduces over " + bucket.process_set->name() +
                          ". Give both the same one, by PowerSgdOptions::process_set.");
  }
  const PlainArithmetic arithmetic;
  auto reduction = std::make_shared<LowRankReduction>(options_, warm_starts_, std::move(bucket));
  return reduction->begin().then([reduction](const at::Tensor&) {
    const PlainArithmetic as_before;
    return reduction->finish();
  });
}

}  // namespace kolo::tensors
