#include "kolo/tensor_collectives.hpp"

#include <memory>
#include <numeric>
#include <utility>

#include <ATen/Functions.h>
#include <c10/core/InferenceMode.h>

#include "kolo/error.hpp"
#include "torch/tensor_memory.hpp"

namespace kolo {
namespace {

using tensors::view_of;

/// The options with an owner of the tensors: an operation goes on when its handle is dropped.
template <class Options>
Options keeping(const Options& options, std::vector<at::Tensor> tensors) {
  Options with_owner = options;
  with_owner.keep_alive = std::make_shared<std::vector<at::Tensor>>(std::move(tensors));
  return with_owner;
}

/// Memory to work in place on `tensor`: its own where that is contiguous, else a copy.
struct InPlace {
  InPlace(const at::Tensor& tensor, std::string_view operation) {
    view_of(tensor, operation);  // for the checks
    work = tensor.detach().contiguous();
    if (work.data_ptr() != tensor.data_ptr()) copy_to = tensor;
  }

  at::Tensor work;
  at::Tensor copy_to;  // undefined: `work` is the tensor itself
};

}  // namespace

TensorHandle::TensorHandle(Handle handle, at::Tensor output, at::Tensor copy_to)
    : handle_(std::move(handle)), output_(std::move(output)), copy_to_(std::move(copy_to)) {}

void TensorHandle::wait() {
  handle_.wait();
  deliver();
}

bool TensorHandle::wait_for(std::chrono::nanoseconds duration) {
  if (!handle_.wait_for(duration)) return false;
  deliver();
  return true;
}

at::Tensor TensorHandle::result() {
  wait();
  return output_;
}

void TensorHandle::deliver() {
  if (!copy_to_.defined()) return;
  copy_to_.detach().copy_(output_);
  output_ = std::exchange(copy_to_, {});
}

TensorHandle allreduce_async(const at::Tensor& tensor, const AllreduceOptions& options) {
  view_of(tensor, "allreduce");
  const at::Tensor input = tensor.detach().contiguous();
  at::Tensor output = at::empty_like(input);
  Handle handle = allreduce_async(view_of(input, "allreduce"), view_of(output, "allreduce"),
                                  keeping(options, {input, output}));
  return {std::move(handle), std::move(output)};
}

TensorHandle allreduce_async_(at::Tensor& tensor, const AllreduceOptions& options) {
  InPlace place(tensor, "allreduce_");
  const TensorView view = view_of(place.work, "allreduce_");
  Handle handle = allreduce_async(view, view, keeping(options, {place.work}));
  if (!place.copy_to.defined()) return {std::move(handle), tensor};
  return {std::move(handle), std::move(place.work), std::move(place.copy_to)};
}

at::Tensor allreduce(const at::Tensor& tensor, const AllreduceOptions& options) {
  return allreduce_async(tensor, options).result();
}

at::Tensor& allreduce_(at::Tensor& tensor, const AllreduceOptions& options) {
  allreduce_async_(tensor, options).wait();
  return tensor;
}

TensorHandle allgather_async(const at::Tensor& tensor, const OperationOptions& options) {
  view_of(tensor, "allgather");
  const at::Tensor input = tensor.detach().contiguous();
  // Its memory comes once the number of rows is known.
  at::Tensor output = at::empty({0}, input.options());
  auto allocate = [output, shape = input.sizes().vec()](
                      const std::vector<std::int64_t>& rows) mutable -> void* {
    const c10::InferenceMode guard(false);
    shape.front() = std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
    output.resize_(shape);
    return output.data_ptr();
  };
  Handle handle = allgather_async(view_of(input, "allgather"), std::move(allocate),
                                  keeping(options, {input, output}));
  return {std::move(handle), std::move(output)};
}

at::Tensor allgather(const at::Tensor& tensor, const OperationOptions& options) {
  return allgather_async(tensor, options).result();
}

TensorHandle broadcast_async(const at::Tensor& tensor, int root, const OperationOptions& options) {
  view_of(tensor, "broadcast");
  at::Tensor output = tensor.detach().clone(at::MemoryFormat::Contiguous);
  Handle handle = broadcast_async(view_of(output, "broadcast"), root, keeping(options, {output}));
  return {std::move(handle), std::move(output)};
}

TensorHandle broadcast_async_(at::Tensor& tensor, int root, const OperationOptions& options) {
  InPlace place(tensor, "broadcast_");
  Handle handle =
      broadcast_async(view_of(place.work, "broadcast_"), root, keeping(options, {place.work}));
  if (!place.copy_to.defined()) return {std::move(handle), tensor};
  return {std::move(handle), std::move(place.work), std::move(place.copy_to)};
}

at::Tensor broadcast(const at::Tensor& tensor, int root, const OperationOptions& options) {
  return broadcast_async(tensor, root, options).result();
}

at::Tensor& broadcast_(at::Tensor& tensor, int root, const OperationOptions& options) {
  broadcast_async_(tensor, root, options).wait();
  return tensor;
}

}  // namespace kolo
