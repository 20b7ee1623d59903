#include "kolo/shared_tensor.hpp"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>

#include <ATen/ops/empty.h>
#include <c10/core/Storage.h>

#include "kolo/shared_buffer.hpp"
#include "runtime/api/submit.hpp"
#include "torch/tensors/shared_memory.hpp"
#include "torch/tensors/tensor_memory.hpp"

namespace kolo {
namespace {

/// The deleter of storages over a SharedBuffer, by which they are recognized.
void release(void* buffer) { delete static_cast<SharedBuffer*>(buffer); }

std::string problem_with(at::IntArrayRef sizes, const at::TensorOptions& options) {
  if (!options.device().is_cpu()) {
    return "shared memory is that of the CPU, not that of " + options.device().str();
  }
  if (std::any_of(sizes.begin(), sizes.end(), [](std::int64_t size) { return size < 0; })) {
    return "a dimension of the tensor is negative";
  }
  return tensors::problem_with(at::empty({0}, options.requires_grad(false)));
}

}  // namespace

at::Tensor shared_empty(at::IntArrayRef sizes, const at::TensorOptions& options,
                        const OperationOptions& operation) {
  if (std::string problem = problem_with(sizes, options); !problem.empty()) {
    runtime::submit_invalid(Collective::ShareMemory, std::move(problem), operation).wait();
  }
  const at::Tensor tensor = at::empty({0}, options.requires_grad(false));
  const auto bytes =
      static_cast<std::size_t>(c10::multiply_integers(sizes) * tensor.element_size());
  auto buffer = std::make_unique<SharedBuffer>(std::max(bytes, std::size_t{1}), operation);
  void* const data = buffer->data();
  const c10::Storage storage(c10::Storage::use_byte_size_t(), bytes,
                             c10::DataPtr(data, buffer.release(), release, c10::kCPU),
                             /*allocator=*/nullptr, /*resizable=*/false);
  return tensor.set_(storage, 0, sizes).requires_grad_(options.requires_grad());
}

bool is_shared(const at::Tensor& tensor) {
  const SharedBuffer* const memory = tensors::shared_memory_of(tensor);
  return memory != nullptr && memory->is_shared();
}

namespace tensors {

const SharedBuffer* shared_memory_of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) return nullptr;
  const auto* const memory = tensor.storage().data_ptr().cast_context<SharedBuffer>(release);
  const bool is_whole = memory != nullptr && tensor.numel() > 0 && tensor.is_contiguous() &&
                        !tensor.is_neg() && tensor.nbytes() == tensor.storage().nbytes();
  return is_whole ? memory : nullptr;
}

const SharedBuffer* shared_memory_of(const std::vector<at::Tensor>& tensors) {
  return tensors.size() == 1 ? shared_memory_of(tensors.front()) : nullptr;
}

}  // namespace tensors
}  // namespace kolo
