#include "torch/tensors/deferred_storage.hpp"

#include <c10/core/CPUAllocator.h>

#include "torch/tensors/storage_access.hpp"

namespace kolo::tensors {
namespace {

/// The deleter that identifies deferred storages.
void release_nothing(void*) {}

}  // namespace

void defer_storage(const at::Tensor& tensor, const std::string& name) {
  set_refusal(tensor.storage(),
              "kolo::deferred: parameter '" + name +
                  "' has no elements on this rank before an optimizer of its model is wrapped. "
                  "Wrap it in a DistributedOptimizer first.");
  take_elements(tensor.storage(), release_nothing);
}

bool is_deferred(const at::Tensor& tensor) {
  return tensor.defined() && tensor.has_storage() && has_deleter(tensor.storage(), release_nothing);
}

void allocate_deferred(const std::vector<at::Tensor>& tensors) {
  for (const at::Tensor& tensor : tensors) {
    if (!is_deferred(tensor)) continue;  // it shares a storage with an earlier tensor
    set_elements(tensor.storage(), c10::GetCPUAllocator()->allocate(tensor.storage().nbytes()));
  }
}

}  // namespace kolo::tensors
