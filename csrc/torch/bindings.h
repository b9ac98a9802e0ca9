// Parts of the Python module that have their own source files.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include "runtime/group.h"

namespace mcast::pg {

// Binds the name of process groups and the maker of their fallbacks. Call once.
void bind_groups(pybind11::module_& module);
// read_error().
void bind_errors(pybind11::module_& module);
// stats()["device"].
pybind11::dict device_dict();
// set_gate(), clear_failure().
void bind_devices(pybind11::module_& module);
// Binds refusals, the cost of sealing, the rows of metrics, the trace.
void bind_monitoring(pybind11::module_& module);
// stats()["security"].
pybind11::dict security_dict(const SecurityStats& stats);

}  // namespace mcast::pg
