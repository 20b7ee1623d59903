#include "extras/c10d/tensors.hpp"

#include <string>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include "kolo/error.hpp"
#include "kolo/torch/tensor_types.hpp"

namespace kolo::c10d_backend {
namespace {

[[noreturn]] void refuse(const char* operation, const std::string& problem) {
  throw InvalidArgument(std::string(operation) + ": " + problem);
}

}  // namespace

void require_usable(const at::Tensor& tensor, const char* operation) {
  if (tensor.layout() != at::kStrided) refuse(operation, "the tensor is sparse. Use to_dense().");
  if (!tensor.is_cpu()) {
    refuse(operation, "the tensor is on " + tensor.device().str() + ". It must be on the CPU.");
  }
  if (tensor.is_conj() || tensor.is_neg()) {
    refuse(operation, "the tensor is a lazy conjugate. Pass tensor.resolve_conj().resolve_neg().");
  }
}

void require_same_dtype(const at::Tensor& input, const at::Tensor& output, const char* operation) {
  if (input.scalar_type() == output.scalar_type()) return;
  refuse(operation, std::string("the input is of ") + c10::toString(input.scalar_type()) +
                        ", the output of " + c10::toString(output.scalar_type()) +
                        ". They must be the same.");
}

at::Tensor& the_only(std::vector<at::Tensor>& tensors, const char* operation) {
  if (tensors.size() == 1) return tensors.front();
  refuse(operation, "there are " + std::to_string(tensors.size()) + " tensors. Pass one.");
}

void require_count(std::size_t count, int size, const char* operation) {
  if (count == static_cast<std::size_t>(size)) return;
  refuse(operation, "there are " + std::to_string(count) + " tensors for " + std::to_string(size) +
                        " ranks. Pass one for each.");
}

TensorView view_to_move(const at::Tensor& tensor) {
  if (const auto dtype = dtype_of(tensor.scalar_type())) {
    return {tensor.data_ptr(), *dtype, {tensor.numel()}};
  }
  return {tensor.data_ptr(), DType::UInt8, {static_cast<std::int64_t>(tensor.nbytes())}};
}

TensorView view_to_reduce(const at::Tensor& tensor, const char* operation) {
  const auto dtype = dtype_of(tensor.scalar_type());
  if (!dtype) {
    refuse(operation, std::string("tensors of ") + c10::toString(tensor.scalar_type()) +
                          " cannot be reduced. Convert them, for example to Float.");
  }
  return {tensor.data_ptr(), *dtype, {tensor.numel()}};
}

at::Tensor Memory::input(const at::Tensor& tensor) const {
  require_usable(tensor, operation_);
  const at::NoGradGuard no_grad;
  return tensor.contiguous();
}

at::Tensor Memory::output(const at::Tensor& tensor) {
  require_usable(tensor, operation_);
  if (tensor.is_contiguous()) return tensor;
  const at::Tensor memory = at::empty(tensor.sizes(), tensor.options().requires_grad(false));
  copies_.emplace_back(memory, tensor);
  return memory;
}

at::Tensor Memory::in_place(const at::Tensor& tensor) {
  const at::Tensor memory = input(tensor);
  if (!tensor.is_contiguous()) copies_.emplace_back(memory, tensor);
  return memory;
}

at::Tensor Memory::inputs(const std::vector<at::Tensor>& tensors) const {
  const at::Tensor memory = flat(tensors);
  const at::NoGradGuard no_grad;
  std::int64_t begin = 0;
  for (const at::Tensor& tensor : tensors) {
    memory.narrow(0, begin, tensor.numel()).view(tensor.sizes()).copy_(tensor);
    begin += tensor.numel();
  }
  return memory;
}

at::Tensor Memory::outputs(const std::vector<at::Tensor>& tensors) {
  at::Tensor memory = flat(tensors);
  std::int64_t begin = 0;
  for (const at::Tensor& tensor : tensors) {
    copies_.emplace_back(memory.narrow(0, begin, tensor.numel()).view(tensor.sizes()), tensor);
    begin += tensor.numel();
  }
  return memory;
}

at::Tensor Memory::flat(const std::vector<at::Tensor>& tensors) const {
  std::int64_t count = 0;
  for (const at::Tensor& tensor : tensors) {
    require_usable(tensor, operation_);
    require_same_dtype(tensors.front(), tensor, operation_);
    count += tensor.numel();
  }
  return at::empty({count}, tensors.front().options().requires_grad(false));
}

std::function<void()> Memory::copy_out() const {
  if (copies_.empty()) return nullptr;
  return [copies = copies_] {
    const at::NoGradGuard no_grad;
    for (const auto& [from, to] : copies) to.copy_(from);
  };
}

}  // namespace kolo::c10d_backend
