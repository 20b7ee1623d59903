#include <memory>
#include <numeric>
#include <string>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/sparse_coo_tensor.h>
#include <c10/core/GradMode.h>

#include "kolo/torch/tensor_collectives.hpp"
#include "torch/tensors/tensor_memory.hpp"
#include "torch/tensors/tensor_operation.hpp"

namespace kolo {
namespace {

using runtime::Operation;
using tensors::Tensors;

std::string problem_with(const at::Tensor& tensor, const AllreduceOptions& options) {
  if (!tensor.defined()) return "the tensor is undefined";
  if (tensor.layout() != at::kSparse) {
    return "the tensor is not a sparse COO tensor. Use tensor.to_sparse(), or allreduce.";
  }
  if (std::string problem = tensors::problem_with(tensor._values()); !problem.empty())
    return problem;
  if (c10::GradMode::is_enabled() && tensor.requires_grad()) {
    return "sparse_allreduce has no gradient. Use tensor.detach(), or "
           "allreduce(tensor.to_dense()).";
  }
  if (options.op != ReduceOp::Sum && options.op != ReduceOp::Average) {
    return "sparse tensors support Sum and Average only, not " + std::string(name_of(options.op));
  }
  if (options.compression != Compression::none()) {
    return "sparse tensors support no compression";
  }
  const bool is_scaled =
      options.op == ReduceOp::Average || options.prescale != 1.0 || options.postscale != 1.0;
  if (is_scaled && !tensor.is_floating_point() && !tensor.is_complex()) {
    return "sparse tensors of integers support plain Sum only";
  }
  if (tensor.scalar_type() == at::kBool) return "bool cannot be summed";
  return {};
}

/// Gathers the rows of a tensor, which the operation keeps alive, into `output`.
void add_gather(Operation& operation, const at::Tensor& input,
                const std::shared_ptr<at::Tensor>& output) {
  const AllocateRows allocate = [output, shape = input.sizes().vec(), options = input.options(),
                                 stream = tensors::ProgramStream::current(input.device())](
                                    const std::vector<std::int64_t>& rows) mutable {
    const auto guard = stream.make_current();
    shape.front() = std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
    *output = at::empty(shape, options);
    return output->data_ptr();
  };
  runtime::add_rows(operation, tensors::view_of(input, "sparse_allreduce"), allocate);
}

/// Adds two gathers without data. The first gathers no rows of `shape`, so all ranks must agree on
/// it. The second gathers one empty row per rank: `ranks` becomes the number of participants.
void add_agreement(Operation& operation, std::vector<std::int64_t> shape, Device device,
                   const std::shared_ptr<std::int64_t>& ranks) {
  shape.insert(shape.begin(), 0);
  const TensorView no_rows{nullptr, DType::UInt8, std::move(shape), device};
  runtime::add_rows(operation, no_rows, [](const auto&) { return nullptr; });
  const TensorView empty_row{nullptr, DType::UInt8, {1, 0}, device};
  runtime::add_rows(operation, empty_row, [ranks](const auto& rows) {
    *ranks = std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
    return nullptr;
  });
}

struct Gathered {
  std::shared_ptr<std::int64_t> ranks = std::make_shared<std::int64_t>();
  std::shared_ptr<at::Tensor> indices = std::make_shared<at::Tensor>();
  std::shared_ptr<at::Tensor> values = std::make_shared<at::Tensor>();
};

}  // namespace

// An all-gather of indices and values whose request has the fields of a reduction, so that ranks
// that disagree about those get an error.
TensorHandle sparse_allreduce_async(const at::Tensor& tensor, const AllreduceOptions& options) {
  ProcessSet& set = tensors::member_set(options.process_set);
  OperationOptions common{options.name, options.timeout, &set, options.keep_alive};
  if (common.name.empty()) common.name = set.next_name("sparse_allreduce");
  if (std::string problem = problem_with(tensor, options); !problem.empty()) {
    return tensors::refused<at::Tensor>(Collective::AllGather, std::move(problem), common);
  }
  const at::Tensor own = tensor.detach().coalesce();
  const at::Tensor indices = own.indices().t().contiguous();  // one row for each entry, like values
  const at::Tensor values = own.values().contiguous();
  const std::vector<std::int64_t> shape = own.sizes().vec();
  runtime::Submission submission =
      runtime::make_operation(Collective::AllGather, tensors::keeping(common, {indices, values}));
  const auto& operation = submission.operation;
  operation->request.op = options.op;
  operation->request.prescale = options.prescale;
  operation->request.postscale = options.postscale;
  operation->request.join_divisor = options.join_divisor;
  const Gathered all;
  add_agreement(*operation, shape, tensors::device_of(values.device()), all.ranks);
  add_gather(*operation, indices, all.indices);
  add_gather(*operation, values, all.values);

  auto finish = [all, options, shape, size = set.size()] {
    double factor = options.prescale * options.postscale;
    if (options.op == ReduceOp::Average) {
      const bool is_world = options.join_divisor == JoinDivisor::World;
      factor /= static_cast<double>(is_world ? size : *all.ranks);
    }
    if (factor != 1.0) all.values->mul_(factor);
    return at::sparse_coo_tensor(all.indices->t(), *all.values, shape);
  };
  Handle handle = runtime::submit(std::move(submission));
  return {std::move(handle), tensors::after_operation({values}, std::move(finish))};
}

at::Tensor sparse_allreduce(const at::Tensor& tensor, const AllreduceOptions& options) {
  return sparse_allreduce_async(tensor, options).result();
}

}  // namespace kolo
