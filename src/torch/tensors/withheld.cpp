#include "torch/tensors/withheld.hpp"

#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/empty.h>

#include "torch/tensors/storage_access.hpp"

namespace kolo::tensors {
namespace {

void no_elements_to_release(void*) {}

}  // namespace

at::Tensor withheld(const at::Tensor& tensor, const std::string& refusal) {
  if (tensor.is_sparse()) {
    return at::_sparse_coo_tensor_unsafe(withheld(tensor._indices(), refusal),
                                         withheld(tensor._values(), refusal), tensor.sizes());
  }
  at::Tensor empty = at::empty({0}, tensor.options().requires_grad(false));
  empty.unsafeGetTensorImpl()->set_sizes_contiguous(tensor.sizes());
  empty.storage().set_nbytes(tensor.nbytes());
  set_refusal(empty.storage(), refusal);
  take_elements(empty.storage(), no_elements_to_release);
  return empty;
}

}  // namespace kolo::tensors
