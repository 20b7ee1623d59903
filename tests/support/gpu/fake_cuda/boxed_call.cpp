#include "support/gpu/fake_cuda/boxed_call.hpp"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>

#include "support/gpu/fake_cuda/byte_runs.hpp"
#include "support/gpu/fake_cuda/cpu_twins.hpp"
#include "support/gpu/fake_cuda/device.hpp"
#include "support/gpu/fake_cuda/operator_traits.hpp"

namespace kolo::test {
namespace {

/// Calls `visit` with each defined tensor in `value`.
template <class Visit>
void for_each_tensor(const c10::IValue& value, Visit&& visit) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) visit(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) {
      if (tensor.defined()) visit(tensor);
    }
  } else if (value.isOptionalTensorList()) {
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
      if (tensor && tensor->defined()) visit(*tensor);
    }
  }
}

/// Returns `value` with each defined tensor replaced by `exchange(tensor)`.
template <class Exchange>
c10::IValue exchanged(const c10::IValue& value, Exchange&& exchange) {
  const auto new_one = [&](const at::Tensor& tensor) {
    return tensor.defined() ? exchange(tensor) : tensor;
  };
  if (value.isTensor()) return new_one(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> tensors;
    for (const at::Tensor& tensor : value.toTensorVector()) tensors.push_back(new_one(tensor));
    return tensors;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> tensors;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
      tensors.push_back(tensor ? std::optional(new_one(*tensor)) : std::nullopt);
    }
    return tensors;
  }
  return value;
}

bool is_generator(const c10::Argument& argument) { return argument.type()->str() == "Generator?"; }

class Call {
 public:
  Call(const c10::OperatorHandle& op, torch::jit::Stack& stack)
      : op_(op),
        schema_(op.schema()),
        stack_(stack),
        device_(fake_cuda_device(find_device())),
        stream_(native_stream(current_cuda_stream(device_->device()))),
        twins_(device_->device()) {}

  void run() {
    const bool host_waits = blocks_host(schema_, arguments());
    device_->hub().drain(device_->rank(), stream_);
    note_accesses();
    exchange_arguments();
    {
      // A CUDA kernel's inner operators are not recorded either.
      const at::DisableRecordFunctionGuard unseen;
      op_.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack_);
    }
    twins_.copy_sizes_back();
    exchange_results();
    enqueue_kernel();
    if (host_waits) device_->synchronize(stream_);
  }

 private:
  c10::ArrayRef<c10::IValue> arguments() const {
    return torch::jit::last(stack_, schema_.arguments().size());
  }
  c10::IValue& argument(std::size_t i) {
    return torch::jit::peek(stack_, i, schema_.arguments().size());
  }

  /// The device of the CUDA tensors; without any, the new tensor's device.
  c10::Device find_device() const {
    std::optional<c10::Device> found;
    for (const c10::IValue& value : arguments()) {
      for_each_tensor(value, [&](const at::Tensor& tensor) {
        if (!tensor.is_cuda()) return check_cpu_tensor(tensor);
        TORCH_CHECK(!found || *found == tensor.device(), schema_.name(),
                    ": expected all tensors to be on one device, got ", *found, " and ",
                    tensor.device());
        found = tensor.device();
      });
    }
    if (found) return *found;
    for (const c10::IValue& value : arguments()) {
      if (value.isDevice()) return value.toDevice();
    }
    return current_cuda_device();
  }
  void check_cpu_tensor(const at::Tensor& tensor) const {
    TORCH_CHECK(tensor.dim() == 0 || takes_cpu_tensors(schema_), schema_.name(),
                ": expected all tensors to be on the GPU, got one on ", tensor.device());
  }

  void note_accesses() {
    for (std::size_t i = 0; i < schema_.arguments().size(); ++i) {
      auto& accessed = is_written(schema_, schema_.arguments()[i]) ? written_ : read_;
      for_each_tensor(argument(i), [&](const at::Tensor& tensor) {
        (tensor.is_cuda() ? accessed : on_cpu_).push_back(tensor);
      });
    }
  }

  void exchange_arguments() {
    for (std::size_t i = 0; i < schema_.arguments().size(); ++i) {
      c10::IValue& value = argument(i);
      if (value.isDevice()) {
        value = c10::Device(c10::kCPU);
      } else if (value.isNone() && is_generator(schema_.arguments()[i])) {
        value = cuda_generator(device_->device().index());
      } else {
        value = exchanged(value, [&](const at::Tensor& tensor) {
          return tensor.is_cuda() ? twins_.twin_of(tensor) : tensor;
        });
      }
    }
  }

  void exchange_results() {
    const std::size_t results = schema_.returns().size();
    for (std::size_t i = 0; i < results; ++i) {
      c10::IValue& value = torch::jit::peek(stack_, i, results);
      value = exchanged(value, [&](const at::Tensor& tensor) {
        if (is_cpu_argument(tensor)) return tensor;
        if (std::optional<at::Tensor> original = twins_.original_of(tensor)) return *original;
        results_.push_back(twins_.copy_on_gpu(tensor));
        return results_.back();
      });
    }
  }

  bool is_cpu_argument(const at::Tensor& tensor) const {
    return std::any_of(on_cpu_.begin(), on_cpu_.end(),
                       [&](const at::Tensor& known) { return known.is_same(tensor); });
  }

  void enqueue_kernel() {
    FakeKernel kernel{.name = schema_.operator_name().name};
    const auto add = [](std::vector<ByteRange>& all, const std::vector<at::Tensor>& tensors) {
      for (const at::Tensor& tensor : tensors) {
        const std::vector<ByteRange> runs = byte_runs(tensor);
        all.insert(all.end(), runs.begin(), runs.end());
      }
    };
    add(kernel.reads, read_);
    add(kernel.writes, written_);
    add(kernel.writes, results_);
    device_->hub().kernel(device_->rank(), stream_, std::move(kernel));
  }

  const c10::OperatorHandle& op_;
  const c10::FunctionSchema& schema_;
  torch::jit::Stack& stack_;
  std::shared_ptr<FakeCudaDevice> device_;
  comm::DeviceStream stream_;
  CpuTwins twins_;
  std::vector<at::Tensor> on_cpu_;
  std::vector<at::Tensor> read_;
  std::vector<at::Tensor> written_;
  std::vector<at::Tensor> results_;  // in new memory
};

}  // namespace

void call_on_cpu(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  Call(op, *stack).run();
}

}  // namespace kolo::test
