#include "runtime/submit.hpp"

#include <chrono>
#include <string>

#include "runtime/lane.hpp"

namespace kolo::runtime {
namespace {

Operation::Clock::time_point deadline_after(std::chrono::nanoseconds timeout) {
  const auto now = Operation::Clock::now();
  return timeout < Operation::Clock::time_point::max() - now ? now + timeout
                                                             : Operation::Clock::time_point::max();
}

}  // namespace

ProcessSet& chosen(ProcessSet* set) { return set != nullptr ? *set : Runtime::current().world(); }

std::shared_ptr<Operation> make_operation(ProcessSet& set, Collective collective,
                                          const TensorView& tensor,
                                          const OperationOptions& options) {
  auto operation = std::make_shared<Operation>();
  Request& request = operation->request;
  request.collective = collective;
  request.name = options.name.empty() ? set.next_name(name_of(collective)) : options.name;
  request.dtype = tensor.dtype;
  request.shape = tensor.shape;
  request.device = tensor.device.kind;
  operation->deadline = deadline_after(options.timeout.value_or(set.runtime().config().timeout));
  operation->keep_alive = options.keep_alive;
  if (tensor.device.kind != DeviceKind::Cpu) {
    throw InvalidArgument(describe(request) +
                          ": memory of CUDA devices is not supported by this build of Kolo. Copy "
                          "it to the CPU.");
  }
  if (tensor.data == nullptr && tensor.size_bytes() > 0) {
    throw InvalidArgument(describe(request) + ": the tensor has elements but no memory");
  }
  return operation;
}

std::shared_ptr<Operation> make_all_reduce(ProcessSet& set, const TensorView& input,
                                           const TensorView& output,
                                           const AllreduceOptions& options) {
  auto operation =
      make_operation(set, Collective::AllReduce, input,
                     {options.name, options.timeout, options.process_set, options.keep_alive});
  Request& request = operation->request;
  request.op = options.op;
  request.prescale = options.prescale;
  request.postscale = options.postscale;
  request.compression = options.compression.name();
  if (input.dtype != output.dtype || input.shape != output.shape ||
      (output.data == nullptr && output.size_bytes() > 0)) {
    throw InvalidArgument(describe(request) +
                          ": input and output must have one dtype and one shape, and memory");
  }
  if (input.dtype == DType::Bool && request.op != ReduceOp::Min && request.op != ReduceOp::Max) {
    throw InvalidArgument(describe(request) + ": bool knows Min (and) and Max (or) only, not " +
                          std::string(name_of(request.op)));
  }
  operation->input = static_cast<const std::byte*>(input.data);
  operation->output = static_cast<std::byte*>(output.data);
  return operation;
}

Handle submit(ProcessSet& set, std::shared_ptr<Operation> operation) {
  set.lane()->submit(operation);
  return Handle(set.lane(), std::move(operation));
}

}  // namespace kolo::runtime
