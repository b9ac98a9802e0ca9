// What a ReduceOp of c10d is to the engine. Errors: TypeError where operator and dtype have no
// meaning together.
#pragma once

#include <torch/csrc/distributed/c10d/Types.hpp>

#include "engine/engine.h"

namespace mcast::pg {

// The engine sums; the sums are divided when the operation is over (CopyBacks::divide).
bool integer_average(at::ScalarType type, const c10d::ReduceOp& reduce);
Reducing reducing(const char* op, at::ScalarType type, const c10d::ReduceOp& reduce);

}  // namespace mcast::pg
