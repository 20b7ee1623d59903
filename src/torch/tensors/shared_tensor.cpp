#include "kolo/torch/shared_tensor.hpp"

#include <algorithm>
#include <cstddef>
#include <string>

#include <ATen/ops/empty.h>

#include "kolo/shared_buffer.hpp"
#include "runtime/api/collectives.hpp"
#include "torch/tensors/tensor_memory.hpp"

namespace kolo {
namespace {

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
  const c10::Storage storage =
      tensors::storage_over(SharedBuffer(std::max(bytes, std::size_t{1}), operation), bytes);
  return tensor.set_(storage, 0, sizes).requires_grad_(options.requires_grad());
}

bool is_shared(const at::Tensor& tensor) {
  const SharedBuffer* const memory = tensors::shared_memory_of(tensor);
  return memory != nullptr && memory->is_shared();
}

}  // namespace kolo
