// The optional products of this build. csrc/assembly knows which there are; programs and libraries
// pass its function to use_products() when they start.
#pragma once

#include <memory>

#include "runtime/aggregation.h"
#include "runtime/context.h"
#include "runtime/group_source.h"

namespace mcast {

struct Products {
  std::unique_ptr<Aggregation> aggregation;  // null: this build has none
  std::unique_ptr<GroupSource> source;       // null: all groups are made in this process
};
using Assemble = Products (*)(const EngineContext& context);

// Thread-safe; holds for GroupMakers that are made afterwards.
void use_products(Assemble assemble);
// None before use_products().
Products make_products(const EngineContext& context);

}  // namespace mcast
