// What the files of the extension share.
#pragma once

#include <pybind11/pybind11.h>

namespace kolo::python {

namespace py = pybind11;

/// Everything that may block, or wait for a thread of Kolo's, runs without Python's lock: such a
/// thread takes it where it drops the last reference to a tensor.
using WithoutLock = py::call_guard<py::gil_scoped_release>;

/// For objects whose destruction may wait, as that of a handle.
template <class Object>
struct DestroyWithoutLock {
  void operator()(Object* object) const {
    const py::gil_scoped_release unlocked;
    delete object;
  }
};

void bind_collectives(py::module_& module);
void bind_optimizer(py::module_& module);
void bind_sync_batch_norm(py::module_& module);

}  // namespace kolo::python
