// Options(nccl=...): a Python object that options carry to the fallback for CUDA tensors. With
// Python's lock. Errors: TypeError if it is no ProcessGroupNCCL.Options.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include "options.h"

namespace mcast::pg {

void set_nccl_options(McastOptions& options, const pybind11::object& value);
pybind11::object nccl_options(const McastOptions& options);  // None: there are none

}  // namespace mcast::pg
