#include "torch/power_sgd/power_sgd_reducer.hpp"

#include <memory>
#include <utility>

#include "kolo/error.hpp"
#include "torch/tensors/plain_arithmetic.hpp"

namespace kolo::tensors {

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
