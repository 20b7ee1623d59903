// What Python sees of Kolo: its calls, as they are.
#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include <pybind11/chrono.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include "kolo/extras/c10d_backend.hpp"
#include "kolo/objects.hpp"
#include "kolo/runtime.hpp"

namespace {

namespace py = pybind11;
using WithoutLock = py::call_guard<py::gil_scoped_release>;

c10::intrusive_ptr<c10d::Backend> make_backend(const c10::intrusive_ptr<c10d::Store>& store,
                                               std::vector<int> ranks,
                                               std::chrono::milliseconds timeout) {
  return kolo::extras::make_c10d_backend(kolo::Runtime::current(), store, std::move(ranks),
                                         timeout);
}

}  // namespace

PYBIND11_MODULE(_kolo, module) {
  module.def("init", &kolo::init, WithoutLock());
  module.def("shutdown", &kolo::shutdown, WithoutLock());
  module.def("rank", &kolo::rank);
  module.def("size", &kolo::size);
  module.def("local_rank", &kolo::local_rank);
  module.def("local_size", &kolo::local_size);
  module.def("cross_size", &kolo::cross_size);
  module.def(
      "broadcast_text",
      [](std::string text) { return kolo::broadcast_object(std::move(text), 0); }, WithoutLock());
  module.def("make_c10d_backend", &make_backend, WithoutLock());
}
