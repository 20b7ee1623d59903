#include "torch/tensors/tensor_operation.hpp"

#include <cstddef>

#include <c10/core/TensorImpl.h>

#include "torch/tensors/parameter_storage.hpp"

namespace kolo::tensors {

ProcessSet& member_set(ProcessSet* set) {
  ProcessSet& chosen = runtime::chosen(set);
  static_cast<void>(chosen.lane());  // throws if this rank is not a member
  return chosen;
}

ProgramStream stream_of(const Tensors& tensors) {
  return tensors.empty() ? ProgramStream() : ProgramStream::current(tensors.front().device());
}

at::Tensor contiguous(const at::Tensor& tensor) {
  const at::Tensor own = tensor.detach().resolve_neg().resolve_conj().contiguous();
  // The memory of such a parameter will be reused.
  return is_gathered_on_use(own) ? own.clone() : own;
}

Tensors contiguous(const Tensors& tensors) {
  Tensors all;
  for (const at::Tensor& tensor : tensors) all.push_back(contiguous(tensor));
  return all;
}

void write_back(const Tensors& results, const Tensors& tensors) {
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!results[i].is_alias_of(tensors[i])) {
      tensors[i].detach().copy_(results[i]);
    } else if (!tensors[i].is_inference()) {
      tensors[i].unsafeGetTensorImpl()->bump_version();
    }
  }
}

}  // namespace kolo::tensors
