#include "extras/c10d/tensors.hpp"

#include <cstddef>
#include <cstdint>
#include <string>

#include <ATen/ops/empty.h>

#include "kolo/error.hpp"
#include "kolo/torch/tensor_types.hpp"

namespace kolo::c10d_backend {
namespace {

[[noreturn]] void refuse(const char* operation, const std::string& problem) {
  throw InvalidArgument(std::string(operation) + ": " + problem);
}

void require_dense(const at::Tensor& tensor, const char* operation) {
  if (tensor.layout() != at::kStrided) refuse(operation, "the tensor is sparse. Use to_dense().");
  if (!tensor.is_cpu() && !tensor.is_cuda()) {
    refuse(operation, "the tensor is on " + tensor.device().str() + ", not on the CPU or a GPU.");
  }
  if (!tensor.is_non_overlapping_and_dense()) {
    refuse(operation,
           "the tensor's elements have gaps between them, or overlap. Pass tensor.contiguous().");
  }
}

TensorView row_of(const at::Tensor& tensor, DType dtype, std::int64_t count) {
  return {tensor.data_ptr(), dtype, {count}, device_of(tensor.device())};
}

}  // namespace

TensorView view_to_move(const at::Tensor& tensor, const char* operation) {
  require_dense(tensor, operation);
  if (const auto dtype = dtype_of(tensor.scalar_type())) {
    return row_of(tensor, *dtype, tensor.numel());
  }
  return row_of(tensor, DType::UInt8, static_cast<std::int64_t>(tensor.nbytes()));
}

TensorView view_to_reduce(const at::Tensor& tensor, const char* operation) {
  require_dense(tensor, operation);
  const auto dtype = dtype_of(tensor.scalar_type());
  if (!dtype) {
    refuse(operation, std::string("tensors of ") + c10::toString(tensor.scalar_type()) +
                          " cannot be reduced. Convert them, for example to Float.");
  }
  return row_of(tensor, *dtype, tensor.numel());
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

Joined::Joined(const std::vector<at::Tensor>& tensors, const char* operation) : tensors_(tensors) {
  const at::Tensor& first = tensors.front();
  std::int64_t count = 0;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.scalar_type() != first.scalar_type() || tensor.device() != first.device()) {
      refuse(operation, "the tensors differ in dtype or device.");
    }
    require_dense(tensor, operation);
    counts_.push_back(tensor.numel());
    count += tensor.numel();
  }
  flat_ = at::empty({count}, first.options().requires_grad(false));
}

void Joined::copy_in() const {
  const at::NoGradGuard no_grad;
  for_each(
      [](const at::Tensor& part, const at::Tensor& tensor) { part.view_as(tensor).copy_(tensor); });
}

void Joined::copy_out() const {
  const at::NoGradGuard no_grad;
  for_each(
      [](const at::Tensor& part, const at::Tensor& tensor) { tensor.copy_(part.view_as(tensor)); });
}

void Joined::for_each(
    const std::function<void(const at::Tensor&, const at::Tensor&)>& visit) const {
  std::int64_t begin = 0;
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    visit(flat_.narrow(0, begin, counts_[i]), tensors_[i]);
    begin += counts_[i];
  }
}

}  // namespace kolo::c10d_backend
