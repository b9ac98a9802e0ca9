// Parts of the Python module that have a file of their own.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include "engine/group.h"

namespace mcast::pg {

// What process groups need of Python: their name, and their fallbacks. Once.
void bind_groups(pybind11::module_& module);
// read_error().
void bind_errors(pybind11::module_& module);
// stats()["device"].
pybind11::dict device_dict();
// set_gate(), clear_failure().
void bind_devices(pybind11::module_& module);
// What is refused here, what sealing costs, the rows of metrics, the trace.
void bind_monitoring(pybind11::module_& module);
// stats()["security"].
pybind11::dict security_dict(const SecurityStats& stats);

}  // namespace mcast::pg
