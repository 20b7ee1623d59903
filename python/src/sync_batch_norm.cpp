// Batch normalization over all ranks, with the tensors of a module of Python.
#include "kolo/extras/sync_batch_norm.hpp"

#include <memory>
#include <optional>

#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include "bindings.hpp"

namespace kolo::python {
void bind_sync_batch_norm(py::module_& module) {
  using MaybeTensor = const std::optional<at::Tensor>&;
  using Norm = SyncBatchNormImpl;
  py::class_<Norm, std::shared_ptr<Norm>>(module, "SyncBatchNorm")
      .def(py::init([](std::int64_t features) {
        return std::make_shared<Norm>(torch::nn::BatchNormOptions(features));
      }))
      .def(
          "forward",
          [](Norm& norm, const at::Tensor& input, double eps, std::optional<double> momentum,
             bool track_running_stats, MaybeTensor weight, MaybeTensor bias, MaybeTensor mean,
             MaybeTensor variance, MaybeTensor batches) {
            norm.options.eps(eps).momentum(momentum).track_running_stats(track_running_stats);
            norm.weight = weight.value_or(at::Tensor());
            norm.bias = bias.value_or(at::Tensor());
            norm.running_mean = mean.value_or(at::Tensor());
            norm.running_var = variance.value_or(at::Tensor());
            norm.num_batches_tracked = batches.value_or(at::Tensor());
            return norm.forward(input);
          },
          WithoutLock());
}

}  // namespace kolo::python
