#include "kolo/torch/model_dtype.hpp"

#include <string>
#include <unordered_set>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>

#include "kolo/error.hpp"
#include "train/tensors/deferred.hpp"
#include "train/tensors/parameter_storage.hpp"

namespace kolo {
namespace {

/// Finds the floating-point tensors of a model, and which of them keep their dtype.
class DtypeSearch {
 public:
  explicit DtypeSearch(const ModuleFilter& keep) : keep_(keep) {}

  void visit(const torch::nn::Module& module, const std::string& name, bool is_kept = false) {
    is_kept = is_kept || (keep_ && !name.empty() && keep_(name, module));
    const auto add = [&](const std::string& key, const at::Tensor& tensor) {
      if (!tensor.defined() || !tensor.is_floating_point()) return;
      if (is_kept) kept_.insert(tensor.unsafeGetTensorImpl());
      found_.emplace_back(name.empty() ? key : name + "." + key, tensor);
    };
    for (const auto& item : module.named_parameters(/*recurse=*/false)) {
      add(item.key(), item.value());
    }
    for (const auto& item : module.named_buffers(/*recurse=*/false)) add(item.key(), item.value());
    for (const auto& item : module.named_children()) {
      visit(*item.value(), name.empty() ? item.key() : name + "." + item.key(), is_kept);
    }
  }

  /// Those that do not keep their dtype, with their names; some may appear several times.
  std::vector<std::pair<std::string, at::Tensor>> others() const {
    std::vector<std::pair<std::string, at::Tensor>> others;
    for (const auto& named : found_) {
      if (!kept_.contains(named.second.unsafeGetTensorImpl())) others.push_back(named);
    }
    return others;
  }

 private:
  const ModuleFilter& keep_;
  std::unordered_set<const void*> kept_;
  std::vector<std::pair<std::string, at::Tensor>> found_;
};

std::string problem_with(const at::Tensor& tensor) {
  if (train::is_deferred(tensor)) {
    return "has no elements on this rank, as the model is a kolo::deferred one. Convert it in the "
           "model's constructor.";
  }
  if (train::is_fully_sharded(tensor)) {
    return "is sharded by a DistributedOptimizer. Convert the model before the optimizer is made.";
  }
  return {};
}

}  // namespace

void set_dtype(torch::nn::Module& model, c10::ScalarType dtype, const ModuleFilter& keep) {
  if (!c10::isFloatingType(dtype)) {
    throw InvalidArgument(std::string("set_dtype: ") + c10::toString(dtype) +
                          " is not a floating dtype. Use float16, bfloat16, float32 or float64.");
  }
  DtypeSearch search(keep);
  search.visit(model, "");
  const auto others = search.others();
  for (const auto& [name, tensor] : others) {
    if (const std::string problem = problem_with(tensor); !problem.empty()) {
      throw InvalidArgument("set_dtype: '" + name + "' " + problem);
    }
  }
  const at::NoGradGuard no_grad;
  for (const auto& [name, tensor] : others) {
    if (tensor.scalar_type() != dtype) at::Tensor(tensor).set_data(tensor.detach().to(dtype));
  }
}

}  // namespace kolo
