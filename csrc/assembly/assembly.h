// The optional products of this build.
#pragma once

#include "runtime/products.h"

namespace mcast {

// For use_products().
Products assemble(const EngineContext& context);

}  // namespace mcast
