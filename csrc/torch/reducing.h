// Converts a ReduceOp of c10d to the engine's. Errors: TypeError if the operator is not defined for
// the dtype.
#pragma once

#include <torch/csrc/distributed/c10d/Types.hpp>

#include "runtime/engine.h"

namespace mcast::pg {

// The engine sums; the sums are divided when the operation is over (CopyBacks::divide).
bool integer_average(at::ScalarType type, const c10d::ReduceOp& reduce);
Reducing reducing(const char* op, at::ScalarType type, const c10d::ReduceOp& reduce);

}  // namespace mcast::pg
