#include "torch/sharding/state_cut.hpp"

#include <vector>

#include <c10/core/GradMode.h>

#include "torch/sharding/state_fields.hpp"

namespace kolo::tensors {

std::unique_ptr<torch::optim::OptimizerParamState> cut_state(torch::optim::Optimizer& optimizer,
                                                             const at::Tensor& parameter,
                                                             std::int64_t begin,
                                                             std::int64_t count) {
  const auto whole = optimizer.state().find(parameter.unsafeGetTensorImpl());
  if (whole == optimizer.state().end()) return nullptr;
  const at::NoGradGuard no_grad;
  std::vector<StateField> fields = fields_of(*whole->second);
  for (StateField& field : fields) {
    if (!is_elementwise(field, parameter)) continue;
    field.value = field.value.toTensor().contiguous().view(-1).narrow(0, begin, count).clone();
  }
  return state_with(new_state(optimizer), fields);
}

}  // namespace kolo::tensors
