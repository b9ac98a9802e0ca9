// Options(nccl=...): a Python object that options carry to the fallback for CUDA tensors. With
// Python's lock. Errors: TypeError if it is not a ProcessGroupNCCL.Options.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include "options.h"

namespace mcast::pg {

void set_nccl_options(McastOptions& options, const pybind11::object& value);
pybind11::object nccl_options(const McastOptions& options);  // Returns None if there are none

}  // namespace mcast::pg
