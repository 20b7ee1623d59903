#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <pybind11/functional.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include "bindings.hpp"
#include "kolo/runtime.hpp"
#include "kolo/torch/distributed_optimizer_options.hpp"
#include "python_optimizer.hpp"
#include "train/optimizer/training_engine.hpp"

namespace kolo::python {
namespace {

using train::TrainingEngine;

/// kolo::DistributedOptimizer over an optimizer of Python.
class OptimizerBinding {
 public:
  OptimizerBinding(const py::object& optimizer, const DistributedOptimizerOptions& options) {
    auto python = std::make_unique<PythonOptimizer>(optimizer);
    python_ = python.get();
    const py::gil_scoped_release without_lock;
    engine_.emplace(
        std::move(python), python_->groups(), [this] { return python_->model(); }, options, "");
  }
  OptimizerBinding(const OptimizerBinding&) = delete;  // the engine refers to it

  /// Calls `work` with the engine, without the lock of the interpreter.
  template <class Work>
  auto run(const Work& work) {
    python_->pull();
    const auto without_lock = [&] {
      const py::gil_scoped_release released;
      return work(*engine_);
    };
    if constexpr (std::is_void_v<decltype(without_lock())>) {
      without_lock();
      python_->push();
    } else {
      auto result = without_lock();
      python_->push();
      return result;
    }
  }

  void follow_options() { python_->follow_options(); }
  TrainingEngine& engine() { return *engine_; }

 private:
  PythonOptimizer* python_;
  std::optional<TrainingEngine> engine_;
};

/// A function of the engine as one of Python.
template <class Result, class... Arguments>
auto call(Result (TrainingEngine::*function)(Arguments...)) {
  return [function](OptimizerBinding& self, std::decay_t<Arguments>... arguments) {
    return self.run([&](TrainingEngine& engine) { return (engine.*function)(arguments...); });
  };
}
template <class Result, class... Arguments>
auto call(Result (TrainingEngine::*function)(Arguments...) const) {
  return [function](OptimizerBinding& self, std::decay_t<Arguments>... arguments) {
    return self.run([&](TrainingEngine& engine) { return (engine.*function)(arguments...); });
  };
}

using Depth = int& (TrainingEngine::*)();

auto add_to(Depth depth, int change) {
  return [=](OptimizerBinding& self) { (self.engine().*depth)() += change; };
}

void bind_optimizer_options(py::module_& module) {
  using Options = DistributedOptimizerOptions;
  py::class_<Options>(module, "DistributedOptimizerOptions")
      .def(py::init())
      .def_readwrite("op", &Options::op)
      .def_readwrite("gradient_predivide_factor", &Options::gradient_predivide_factor)
      .def_readwrite("sparse_as_dense", &Options::sparse_as_dense)
      .def_readwrite("reads_in_flight", &Options::reads_in_flight)
      .def_readwrite("backward_passes_per_step", &Options::backward_passes_per_step)
      .def_readwrite("error_feedback", &Options::error_feedback)
      .def_readwrite("bucket_bytes", &Options::bucket_bytes)
      .def_readwrite("groups", &Options::groups)
      .def_readwrite("master_weights", &Options::master_weights)
      .def_property(
          "reduce_dtype", nullptr,
          [](Options& options, std::optional<at::ScalarType> type) { options.reduce_dtype = type; })
      .def_property("compression", nullptr,
                    [](Options& options, std::string name) {
                      options.compression = Compression::named(std::move(name));
                    })
      .def_property("shard", nullptr,
                    [](Options& options, const std::optional<std::string>& name) {
                      options.shard.reset();
                      if (name) options.shard = shard_named(*name);
                    })
      .def_property("process_set", nullptr, [](Options& options, int number) {
        options.process_set = &Runtime::current().process_set(number);
      });
}

py::dict to_dict(const Loaded& loaded) {
  using py::arg;
  return py::dict(arg("path") = loaded.path.string(), arg("steps") = loaded.steps,
                  arg("extras") = loaded.extras, arg("optimizer") = loaded.optimizer,
                  arg("loaded") = loaded.loaded, arg("converted") = loaded.converted,
                  arg("left_out") = loaded.left_out, arg("unused") = loaded.unused,
                  arg("replaced") = loaded.replaced);
}

py::dict to_dict(const Saved& saved) {
  using py::arg;
  return py::dict(arg("path") = saved.path.string(), arg("saved") = saved.saved);
}

py::dict to_dict(const DistributedOptimizer::ParameterState& state) {
  py::dict all;
  for (const auto& [name, value] : state) {
    all[name.c_str()] = value.isTensor() ? py::cast(value.toTensor()) : py::cast(value.toScalar());
  }
  return all;
}

}  // namespace

void bind_optimizer(py::module_& module) {
  bind_optimizer_options(module);
  using Extras = std::map<std::string, std::string>;
  using Holder = std::unique_ptr<OptimizerBinding, DestroyWithoutLock<OptimizerBinding>>;
  py::class_<OptimizerBinding, Holder>(module, "DistributedOptimizer")
      .def(py::init<const py::object&, const DistributedOptimizerOptions&>())
      .def("backward", call(&TrainingEngine::backward))
      .def("synchronize", call(&TrainingEngine::synchronize))
      .def("discard", call(&TrainingEngine::discard))
      .def("clip_grad_norm_", call(&TrainingEngine::clip_grad_norm))
      .def("clip_grad_value_", call(&TrainingEngine::clip_grad_value))
      .def("join", call(&TrainingEngine::join))
      .def("is_sharded", call(&TrainingEngine::is_sharded))
      .def("require_state_map", call(&TrainingEngine::require_state_map))
      .def("parameter_state",
           [](OptimizerBinding& self, const at::Tensor& parameter) {
             return to_dict(self.run(
                 [&](TrainingEngine& engine) { return engine.parameter_state(parameter); }));
           })
      .def("for_each_gradient",
           [](OptimizerBinding& self,
              const std::function<void(const std::string&, const at::Tensor&)>& visit) {
             return self.run(
                 [&](TrainingEngine& engine) { return engine.for_each_gradient(visit); });
           })
      .def("full_parameters", call(&TrainingEngine::full_parameters))
      .def("check_replicas", call(&TrainingEngine::check_replicas))
      .def("reset_parameter_state", call(&TrainingEngine::reset_parameter_state))
      .def("step",
           [](OptimizerBinding& self, const std::optional<std::function<void()>>& closure) {
             self.run([&](TrainingEngine& engine) {
               if (!closure) return engine.step(nullptr);
               return engine.step([&] {
                 (*closure)();
                 return at::Tensor();
               });
             });
           })
      .def("add_no_sync", add_to(&TrainingEngine::no_sync_depth, 1))
      .def("remove_no_sync", add_to(&TrainingEngine::no_sync_depth, -1))
      .def("add_skip_synchronize", add_to(&TrainingEngine::skip_synchronize_depth, 1))
      .def("remove_skip_synchronize", add_to(&TrainingEngine::skip_synchronize_depth, -1))
      .def("save",
           [](OptimizerBinding& self, const std::string& folder, int keep_last,
              const Extras& extras, bool in_background) {
             self.follow_options();
             return to_dict(self.run([&](TrainingEngine& engine) {
               return engine.save(
                   folder,
                   {.keep_last = keep_last, .extras = extras, .in_background = in_background});
             }));
           })
      .def("finish_save",
           [](OptimizerBinding& self) {
             const py::gil_scoped_release released;
             self.engine().finish_save();
           })
      .def("wait_for_save",
           [](OptimizerBinding& self) -> py::object {
             const std::optional<Saved> saved =
                 self.run([](TrainingEngine& engine) { return engine.wait_for_save(); });
             return saved ? py::object(to_dict(*saved)) : py::none();
           })
      .def("load",
           [](OptimizerBinding& self, const std::string& path, bool strict, bool optimizer_state,
              bool random_state) {
             self.follow_options();
             return to_dict(self.run([&](TrainingEngine& engine) {
               return engine.load(path, {.strict = strict,
                                         .optimizer_state = optimizer_state,
                                         .random_state = random_state});
             }));
           })
      .def("save_full_state", [](OptimizerBinding& self, const std::string& file, int root) {
        self.follow_options();
        self.run([&](TrainingEngine& engine) { engine.save_full_state(file, root); });
      });
}

}  // namespace kolo::python
