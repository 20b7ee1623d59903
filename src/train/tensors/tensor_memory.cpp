#include "train/tensors/tensor_memory.hpp"

#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>

#include <ATen/MemoryOverlap.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include "kolo/error.hpp"
#include "train/tensors/deferred.hpp"

namespace kolo::train {
namespace {

/// The deleter that identifies storages over a SharedBuffer.
void release(void* buffer) { delete static_cast<SharedBuffer*>(buffer); }

/// The tensor without elements that lie in the memory of others.
at::Tensor without_copies(at::Tensor tensor, const at::Tensor& expanded) {
  for (std::int64_t d = 0; d < expanded.dim(); ++d) {
    if (expanded.stride(d) == 0 && expanded.size(d) > 1) tensor = tensor.narrow(d, 0, 1);
  }
  return tensor;
}

}  // namespace

DType dtype_of(const at::Tensor& tensor) { return *dtype_of(tensor.scalar_type()); }

std::string problem_with_type(const at::Tensor& tensor) {
  if (!tensor.defined()) return "the tensor is undefined";
  if (tensor.layout() != at::kStrided) {
    return "sparse tensors are not supported. Use tensor.to_dense(), or sparse_allreduce.";
  }
  if (!tensor.is_cpu() && !tensor.is_cuda()) {
    return "the tensor lies on " + tensor.device().str() +
           ", but Kolo supports the CPU and CUDA devices only. Use tensor.cpu().";
  }
  if (!dtype_of(tensor.scalar_type())) {
    return std::string("tensors of type ") + c10::toString(tensor.scalar_type()) +
           " are not supported. Convert it to uint8, int8, int16, int32, int64, float16, bfloat16, "
           "float32, float64, bool, complex64 or complex128 first.";
  }
  return {};
}

std::string problem_with(const at::Tensor& tensor) {
  if (std::string problem = problem_with_type(tensor); !problem.empty()) return problem;
  if (!is_deferred(tensor)) return {};
  return "the tensor is a parameter of a kolo::deferred model, which has no elements on this rank "
         "before an optimizer of the model is wrapped. Wrap it in a DistributedOptimizer first.";
}

std::string problem_with(const std::vector<at::Tensor>& tensors) {
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::string problem = problem_with(tensors[i]);
    if (problem.empty()) continue;
    return tensors.size() == 1 ? problem : "tensor " + std::to_string(i) + ": " + problem;
  }
  return {};
}

std::string in_place_problem_with(const std::vector<at::Tensor>& tensors) {
  if (std::string problem = problem_with(tensors); !problem.empty()) return problem;
  for (const at::Tensor& tensor : tensors) {
    // A leaf, such as a parameter, just gets a new value.
    if (c10::GradMode::is_enabled() && tensor.requires_grad() && !tensor.is_leaf()) {
      return "the tensor was computed from tensors that need a gradient, and autograd would not "
             "see a collective in place. Use the form without the underscore, which is "
             "differentiable, or torch::NoGradGuard if no gradient shall flow through it.";
    }
    if (at::has_internal_overlap(tensor) == at::MemOverlap::Yes) {
      return "elements of the tensor share memory, so it cannot be written to. Use "
             "tensor.clone().";
    }
  }
  return {};
}

TensorView view_of(const at::Tensor& tensor, std::string_view operation) {
  TensorView view = extent_of(tensor, operation);
  view.data = tensor.data_ptr();
  return view;
}

TensorView extent_of(const at::Tensor& tensor, std::string_view operation) {
  if (const std::string problem = problem_with(tensor); !problem.empty()) {
    throw InvalidArgument(std::string(operation) + ": " + problem);
  }
  return {nullptr, *dtype_of(tensor.scalar_type()), tensor.sizes().vec(),
          device_of(tensor.device())};
}

void copy_bytes(const at::Tensor& tensor, std::size_t offset, std::span<std::byte> place) {
  if (place.empty()) return;
  if (tensor.is_cpu()) {
    std::memcpy(place.data(), static_cast<const std::byte*>(tensor.const_data_ptr()) + offset,
                place.size());
    return;
  }
  const at::NoGradGuard no_grad;
  const auto size = static_cast<std::int64_t>(place.size());
  at::from_blob(place.data(), {size}, at::kByte)
      .copy_(tensor.view({-1}).view(at::kByte).narrow(0, static_cast<std::int64_t>(offset), size));
}

SharedBuffer make_flat_memory(std::size_t size_bytes, const at::Device& device,
                              const OperationOptions& options) {
  if (device.is_cpu()) return SharedBuffer(size_bytes, options);
  const auto memory = std::make_shared<at::Tensor>(at::zeros(
      {static_cast<std::int64_t>(size_bytes)}, at::TensorOptions(at::kByte).device(device)));
  return {options.name, view_of(*memory, options.name), memory};
}

at::Tensor tensor_over(const SharedBuffer& memory, std::size_t offset_bytes, at::IntArrayRef shape,
                       const at::TensorOptions& type) {
  return at::from_blob(
      memory.data() + offset_bytes, shape, [owner = memory.owner()](void*) {},
      type.requires_grad(false), type.device());
}

c10::Storage storage_over(SharedBuffer buffer, std::size_t size_bytes) {
  auto owned = std::make_unique<SharedBuffer>(std::move(buffer));
  void* const data = owned->data();
  return {c10::Storage::use_byte_size_t(), size_bytes,
          c10::DataPtr(data, owned.release(), release, c10::kCPU),
          /*allocator=*/nullptr, /*resizable=*/false};
}

const SharedBuffer* shared_memory_of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) return nullptr;
  at::StorageImpl& storage = *tensor.storage().unsafeGetStorageImpl();
  const auto* const memory =
      storage._mutable_data_ptr_no_checks().cast_context<SharedBuffer>(release);
  const bool is_whole = memory != nullptr && tensor.numel() > 0 && tensor.is_contiguous() &&
                        !tensor.is_neg() && !tensor.is_conj() &&
                        tensor.nbytes() == tensor.storage().nbytes();
  return is_whole ? memory : nullptr;
}

const SharedBuffer* shared_memory_of(const std::vector<at::Tensor>& tensors) {
  return tensors.size() == 1 ? shared_memory_of(tensors.front()) : nullptr;
}

void require_alike_where_shared(const std::string& name, const at::Tensor& own,
                                const at::Tensor& values) {
  if (at::has_internal_overlap(own) != at::MemOverlap::Yes) return;
  const at::Tensor given = values.contiguous();
  const at::Tensor held = without_copies(given, own).expand_as(given).contiguous();
  if (std::memcmp(given.const_data_ptr(), held.const_data_ptr(), given.nbytes()) == 0) return;
  throw InvalidArgument("'" + name +
                        "' is expanded in the program, so that some of its elements share memory, "
                        "but their saved values differ. Use clone() in the program.");
}

void copy_values(const at::Tensor& own, const at::Tensor& values) {
  without_copies(own, own).copy_(without_copies(values, own));
}

}  // namespace kolo::train
