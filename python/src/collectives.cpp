// Kolo's collectives for kolo/torch/operations.py, in the forms that return a handle: Python waits
// for what it calls a blocking form. A process set is its number.
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include "bindings.hpp"
#include "kolo/objects.hpp"
#include "kolo/runtime.hpp"
#include "kolo/torch/parameter_sync.hpp"
#include "kolo/torch/tensor_collectives.hpp"

namespace kolo::python {
namespace {

using Tensors = std::vector<at::Tensor>;
using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

ProcessSet* set_of(int number) { return &Runtime::current().process_set(number); }

AllreduceOptions allreduce_options(ReduceOp op, double prescale, double postscale,
                                   std::string compression, std::string name, int set) {
  return {.op = op,
          .prescale = prescale,
          .postscale = postscale,
          .compression = Compression::named(std::move(compression)),
          .name = std::move(name),
          .process_set = set_of(set)};
}

template <class Options>
Options options(std::string name, int set) {
  return {.name = std::move(name), .process_set = set_of(set)};
}

void bind_options(py::module_& module) {
  py::enum_<ReduceOp>(module, "ReduceOp")
      .value("Average", ReduceOp::Average)
      .value("Sum", ReduceOp::Sum)
      .value("Adasum", ReduceOp::Adasum)
      .value("Min", ReduceOp::Min)
      .value("Max", ReduceOp::Max)
      .value("Product", ReduceOp::Product);
  py::class_<AllreduceOptions>(module, "AllreduceOptions").def(py::init(&allreduce_options));
  py::class_<GatherOptions>(module, "GatherOptions").def(py::init(&options<GatherOptions>));
  py::class_<OperationOptions>(module, "OperationOptions")
      .def(py::init(&options<OperationOptions>));
}

/// Waits in turns, so that Ctrl-C ends it.
template <class Handle>
void wait(Handle& handle) {
  constexpr std::chrono::milliseconds kTurn{100};
  const auto is_over = [&] {
    const py::gil_scoped_release unlocked;
    return handle.wait_for(kTurn);
  };
  while (!is_over()) {
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
  }
}

template <class Handle>
auto bind_handle(py::module_& module, const char* name) {
  using Holder = std::unique_ptr<Handle, DestroyWithoutLock<Handle>>;
  return py::class_<Handle, Holder>(module, name).def("is_ready", &Handle::is_ready, WithoutLock());
}

template <class Result>
void bind_result_handle(py::module_& module, const char* name) {
  using Waited = ResultHandle<Result>;
  bind_handle<Waited>(module, name).def("result", [](Waited& handle) {
    wait(handle);
    const py::gil_scoped_release unlocked;
    return handle.result();
  });
}

using OutputAndSplits = std::pair<at::Tensor, std::vector<std::int64_t>>;

ResultHandle<OutputAndSplits> start_alltoall(const at::Tensor& tensor,
                                             const std::vector<std::int64_t>& splits,
                                             const OperationOptions& options) {
  return alltoall_async(tensor, splits, options).then([](AlltoallResult result) {
    return OutputAndSplits(std::move(result.output), std::move(result.received_splits));
  });
}

void bind_operations(py::module_& module) {
  using Allreduced = const AllreduceOptions&;
  using Gathered = const GatherOptions&;
  using Options = const OperationOptions&;
  using Input = const at::Tensor&;
  using Inputs = const Tensors&;
  bind_handle<Handle>(module, "Handle").def("result", &wait<Handle>);
  bind_result_handle<at::Tensor>(module, "TensorHandle");
  bind_result_handle<Tensors>(module, "TensorsHandle");
  bind_result_handle<OutputAndSplits>(module, "AlltoallHandle");
  const auto define = [&](const char* name, auto function) {
    module.def(name, function, WithoutLock());
  };
  define("allreduce_async", py::overload_cast<Input, Allreduced>(&allreduce_async));
  define("allreduce_async_", &allreduce_async_);
  define("grouped_allreduce_async",
         py::overload_cast<Inputs, Allreduced>(&grouped_allreduce_async));
  define("grouped_allreduce_async_", &grouped_allreduce_async_);
  define("reduce_scatter_async", py::overload_cast<Input, Allreduced>(&reduce_scatter_async));
  define("grouped_reduce_scatter_async",
         py::overload_cast<Inputs, Allreduced>(&grouped_reduce_scatter_async));
  define("sparse_allreduce_async", &sparse_allreduce_async);
  define("allgather_async", py::overload_cast<Input, Gathered>(&allgather_async));
  define("grouped_allgather_async", py::overload_cast<Inputs, Gathered>(&grouped_allgather_async));
  define("broadcast_async", py::overload_cast<Input, int, Options>(&broadcast_async));
  define("broadcast_async_", &broadcast_async_);
  define("alltoall_async", &start_alltoall);
  define("barrier_async", &barrier_async);
  define("join", [](int set) { return join(set_of(set)); });
}

py::bytes broadcast_bytes(std::string bytes, int root, const OperationOptions& options) {
  {
    const py::gil_scoped_release unlocked;
    bytes = broadcast_object(std::move(bytes), root, options);
  }
  return bytes;
}

std::vector<py::bytes> allgather_bytes(const std::string& bytes, const OperationOptions& options) {
  std::vector<std::string> all;
  {
    const py::gil_scoped_release unlocked;
    all = allgather_object(bytes, options);
  }
  return {all.begin(), all.end()};
}

}  // namespace

void bind_collectives(py::module_& module) {
  bind_options(module);
  bind_operations(module);
  module.def("broadcast_object", &broadcast_bytes);
  module.def("allgather_object", &allgather_bytes);
  module.def(
      "broadcast_parameters",
      [](const NamedTensors& tensors, int root, int set) {
        broadcast_parameters(tensors, root, set_of(set));
      },
      WithoutLock());
  module.def(
      "add_process_set",
      [](std::vector<int> ranks) { return add_process_set(std::move(ranks)).number(); },
      WithoutLock());
  module.def(
      "remove_process_set", [](int number) { remove_process_set(*set_of(number)); }, WithoutLock());
}

}  // namespace kolo::python
