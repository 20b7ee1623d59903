#include "torch/training/saved_residuals.hpp"

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include "train/tensors/tensor_memory.hpp"

namespace kolo::train {

std::vector<SavedResidual> find_residuals(const TrainingView& view, const SavedTraining& saved) {
  std::vector<SavedResidual> residuals;
  if (saved.details.residual_ranks == 0) return residuals;
  for (const TrainingView::Residual& target : view.residuals.own) {
    SavedResidual residual{&target, {}};
    for (int copy = view.residuals.copy;; copy += view.residuals.copies) {
      std::string key = residual_key(copy, saved.name_of(target.name));
      if (!saved.has(key)) break;
      saved.require(key, DType::Float32, target.parameter.sizes().vec());
      residual.keys.push_back(std::move(key));
    }
    if (!residual.keys.empty()) residuals.push_back(std::move(residual));
  }
  return residuals;
}

void verify_residuals(const std::vector<SavedResidual>& residuals, const Checkpoint& checkpoint) {
  for (const auto& [target, keys] : residuals) {
    for (const std::string& key : keys) {
      checkpoint.verify(key, DType::Float32, target->begin, target->elements.numel());
    }
  }
}

void load_residuals(const TrainingView& view, const std::vector<SavedResidual>& residuals,
                    const SavedTraining& saved, const Checkpoint& checkpoint) {
  const at::NoGradGuard no_grad;
  for (const TrainingView::Residual& residual : view.residuals.own) {
    at::Tensor(residual.elements).zero_();
  }
  // A mean over another number of ranks has another divisor, unless that is the sum of counts.
  const double factor =
      view.residuals.are_averaged && !saved.details.loss_reference
          ? static_cast<double>(view.set.size()) / static_cast<double>(saved.details.residual_ranks)
          : 1.0;
  for (const auto& [target, keys] : residuals) {
    at::Tensor sum = target->elements;
    const at::Tensor values = at::empty(sum.sizes(), at::kFloat);  // in CPU memory
    for (const std::string& key : keys) {
      checkpoint.read(key, DType::Float32, target->begin,
                      {static_cast<std::byte*>(values.data_ptr()), values.nbytes()});
      sum.add_(values.to(sum.device()), factor);
    }
  }
}

}  // namespace kolo::train
