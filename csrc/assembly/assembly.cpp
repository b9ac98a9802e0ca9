#include "assembly/assembly.h"

#include "aggregation/member/member_aggregation.h"
#include "host_engine/client/client_source.h"

namespace mcast {

Products assemble(const EngineContext& context) {
  return {make_aggregation(context.may_reach), std::make_unique<ClientSource>()};
}

}  // namespace mcast
