// What Python sees of Kolo: its calls, as they are.
#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <unistd.h>
#include <utility>
#include <vector>

#include <pybind11/chrono.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include "bindings.hpp"
#include "comm/mpi_environment.hpp"
#include "kolo/error.hpp"
#include "kolo/extras/c10d_backend.hpp"
#include "kolo/insight.hpp"
#include "kolo/preemption.hpp"
#include "kolo/runtime.hpp"

namespace kolo::python {
namespace {

template <class Exception>
py::object define_error(py::module_& module, const char* name, const py::handle& bases) {
  py::object error = py::register_exception<Exception>(module, name, bases);
  error.attr("__module__") = "kolo";
  return error;
}

void bind_errors(py::module_& module) {
  const py::object base = define_error<Error>(module, "Error", PyExc_RuntimeError);
  define_error<InvalidArgument>(module, "InvalidArgument",
                                py::make_tuple(base, py::handle(PyExc_ValueError)));
  define_error<MismatchError>(module, "MismatchError", base);
  define_error<TimeoutError>(module, "TimeoutError", base);
  define_error<PeerLostError>(module, "PeerLostError", base);
  define_error<ShutdownError>(module, "ShutdownError", base);
  define_error<BackendError>(module, "BackendError", base);
}

/// Python's handlers of signals, as that of Ctrl-C, run on the main thread, between calls.
void check_signals() {
  if (::gettid() != ::getpid()) return;
  const py::gil_scoped_acquire lock;
  if (PyErr_CheckSignals() != 0) throw py::error_already_set();
}

void unlock_while(const std::function<void()>& wait) {
  if (PyGILState_Check() == 0) return wait();
  const py::gil_scoped_release unlocked;
  wait();
}

/// A `with` block of the program.
class Span {
 public:
  explicit Span(std::string name) : name_(std::move(name)) {}
  void enter() { span_.emplace(name_); }
  void exit(const py::args&) { span_.reset(); }

 private:
  const std::string name_;
  std::optional<MarkedSpan> span_;
};

void bind_insight(py::module_& module) {
  module.def("dump_record", &dump_record, WithoutLock());
  module.def("start_timeline", &start_timeline, WithoutLock());
  module.def("stop_timeline", &stop_timeline, WithoutLock());
  module.def("mark", &mark);
  py::class_<Span>(module, "span")
      .def(py::init<std::string>())
      .def("__enter__", &Span::enter)
      .def("__exit__", &Span::exit);
  py::enum_<TrainingPhase>(module, "TrainingPhase")
      .value("FORWARD", TrainingPhase::Forward)
      .value("BACKWARD", TrainingPhase::Backward)
      .value("STEP", TrainingPhase::Step);
  module.def("enter_phase", &enter_phase);
  module.def("metrics", [] { return to_json(metrics()); });
  module.def("preempted", &preempted, WithoutLock());
  module.def("request_preemption", &request_preemption);
}

void init(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size) {
  InitOptions options;
  if (store != nullptr) options.store = extras::store_of(store, &check_signals);
  options.rank = rank;
  options.size = size;
  kolo::init(std::move(options));
}

c10::intrusive_ptr<c10d::Backend> make_backend(const c10::intrusive_ptr<c10d::Store>& store,
                                               std::vector<int> ranks,
                                               std::chrono::milliseconds timeout) {
  return extras::make_c10d_backend(Runtime::current(), store, std::move(ranks), timeout,
                                   {.check = &check_signals,
                                    .is_calling = [] { return PyGILState_Check() != 0; },
                                    .unlock_while = &unlock_while});
}

}  // namespace
}  // namespace kolo::python

PYBIND11_MODULE(_kolo, module) {
  using namespace kolo::python;
  bind_errors(module);
  module.def("init", &init, py::arg("store") = py::none(), py::arg("rank") = 0, py::arg("size") = 1,
             WithoutLock());
  module.def("start_timeout", [] { return kolo::Config::from_environment().start_timeout; });
  module.def("shutdown", &kolo::shutdown, WithoutLock());
  module.def(
      "fail",
      [](const std::string& how) {
        if (kolo::is_initialized()) kolo::Runtime::current().fail(how);
      },
      WithoutLock());
  module.def("is_initialized", &kolo::is_initialized);
  module.def("rank", &kolo::rank);
  module.def("size", &kolo::size);
  module.def("local_rank", &kolo::local_rank);
  module.def("local_size", &kolo::local_size);
  module.def("cross_rank", &kolo::cross_rank);
  module.def("cross_size", &kolo::cross_size);
  module.def("is_homogeneous", &kolo::is_homogeneous);
  module.def("build_info", &kolo::build_info);
  module.def("mpi_enabled", &kolo::comm::mpi_environment::is_running);
  module.def("mpi_threads_supported", &kolo::comm::mpi_environment::has_any_thread);
  module.def("make_c10d_backend", &make_backend, WithoutLock());
  bind_insight(module);
  bind_collectives(module);
  bind_optimizer(module);
  bind_sync_batch_norm(module);
}
