#include "assembly/assembly.h"

#include "engine/client_source.h"
#include "engine/member_aggregation.h"

namespace mcast {

Products assemble(const EngineContext& context) {
  return {make_aggregation(context.may_reach), std::make_unique<ClientSource>()};
}

}  // namespace mcast
