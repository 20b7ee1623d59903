#include "torch/reduction/sparse_gradients.hpp"

#include <cstdint>
#include <utility>
#include <vector>

#include <ATen/Functions.h>

#include "kolo/tensor_collectives.hpp"

namespace kolo::tensors {
namespace {

at::Tensor no_rows(const at::Tensor& parameter) {
  std::vector<std::int64_t> shape = parameter.sizes().vec();
  shape.front() = 0;
  const at::TensorOptions type = parameter.options().requires_grad(false);
  return at::sparse_coo_tensor(at::empty({1, 0}, type.dtype(at::kLong)), at::empty(shape, type),
                               parameter.sizes());
}

}  // namespace

TensorHandle reduce_sparse_gradient(const at::Tensor& parameter,
                                    const DistributedOptimizerOptions& options, std::string name) {
  at::Tensor gradient = parameter.grad();
  if (!gradient.defined()) {
    gradient = no_rows(parameter);
  } else if (!gradient.is_sparse() || gradient.sparse_dim() != 1) {
    gradient = gradient.to_dense().to_sparse(1);  // rows, as on all ranks
  }
  AllreduceOptions reduction;
  reduction.op = options.op;
  reduction.join_divisor = options.join_divisor;
  reduction.process_set = options.process_set;
  reduction.name = std::move(name);
  return sparse_allreduce_async(gradient, reduction);
}

}  // namespace kolo::tensors
