#include "extras/c10d/tensors.hpp"

#include <string>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "kolo/error.hpp"
#include "kolo/torch/tensor_types.hpp"

namespace kolo::c10d_backend {
namespace {

[[noreturn]] void refuse(const char* operation, const std::string& problem) {
  throw InvalidArgument(std::string(operation) + ": " + problem);
}

}  // namespace

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
  const Device device = device_of(tensor.device());
  if (const auto dtype = dtype_of(tensor.scalar_type())) {
    return {tensor.data_ptr(), *dtype, {tensor.numel()}, device};
  }
  return {tensor.data_ptr(), DType::UInt8, {static_cast<std::int64_t>(tensor.nbytes())}, device};
}

TensorView view_to_reduce(const at::Tensor& tensor, const char* operation) {
  const auto dtype = dtype_of(tensor.scalar_type());
  if (!dtype) {
    refuse(operation, std::string("tensors of ") + c10::toString(tensor.scalar_type()) +
                          " cannot be reduced. Convert them, for example to Float.");
  }
  return {tensor.data_ptr(), *dtype, {tensor.numel()}, device_of(tensor.device())};
}

void Memory::require_usable(const at::Tensor& tensor) {
  if (tensor.layout() != at::kStrided) refuse(operation_, "the tensor is sparse. Use to_dense().");
  const at::Device device = tensor.device();
  if (!device.is_cpu() && !device.is_cuda()) {
    refuse(operation_, "the tensor is on " + device.str() + ". It must be on the CPU or a GPU.");
  }
  if (device_.value_or(device) != device) {
    refuse(operation_, "one tensor is on " + device_->str() + ", another on " + device.str() +
                           ". All must be on one device.");
  }
  if (tensor.is_conj() || tensor.is_neg()) {
    refuse(operation_, "the tensor is a lazy conjugate. Pass tensor.resolve_conj().resolve_neg().");
  }
  device_ = device;
}

at::Tensor Memory::use(at::Tensor memory) {
  used_->push_back(memory);
  return memory;
}

at::Tensor Memory::input(const at::Tensor& tensor) {
  require_usable(tensor);
  const at::NoGradGuard no_grad;
  return use((place_ == Place::Cpu ? tensor.cpu() : tensor).contiguous());
}

at::Tensor Memory::output(const at::Tensor& tensor) {
  require_usable(tensor);
  const at::Device device = place_ == Place::Cpu ? at::Device(at::kCPU) : tensor.device();
  if (tensor.is_contiguous() && tensor.device() == device) return use(tensor);
  const at::Tensor memory =
      at::empty(tensor.sizes(), tensor.options().requires_grad(false).device(device));
  copies_.emplace_back(memory, tensor);
  return use(memory);
}

at::Tensor Memory::in_place(const at::Tensor& tensor) {
  const at::Tensor memory = input(tensor);
  if (!memory.is_alias_of(tensor)) copies_.emplace_back(memory, tensor);
  return memory;
}

at::Tensor Memory::inputs(const std::vector<at::Tensor>& tensors) {
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

void Memory::copy(const at::Tensor& from, const at::Tensor& to) {
  require_usable(from);
  require_usable(to);
  copies_.emplace_back(from.reshape(to.sizes()), to);
}

at::Tensor Memory::unread(const at::Tensor& like) { return use(at::empty_like(like)); }

at::Tensor Memory::flat(const std::vector<at::Tensor>& tensors) {
  std::int64_t count = 0;
  for (const at::Tensor& tensor : tensors) {
    require_usable(tensor);
    require_same_dtype(tensors.front(), tensor, operation_);
    count += tensor.numel();
  }
  return use(at::empty({count}, tensors.front().options().requires_grad(false)));
}

}  // namespace kolo::c10d_backend
