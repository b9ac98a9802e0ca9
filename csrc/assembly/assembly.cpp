// The one place that knows which optional products this build has (cmake/Products.cmake).
#include "assembly/assembly.h"

#ifdef MCAST_AGGREGATION
#include "aggregation/member/member_aggregation.h"
#endif
#ifdef MCAST_HOST_ENGINE
#include "host_engine/client/client_source.h"
#endif

namespace mcast {

Products assemble([[maybe_unused]] const EngineContext& context) {
  Products products;
#ifdef MCAST_AGGREGATION
  products.aggregation = make_aggregation(context.may_reach);
#endif
#ifdef MCAST_HOST_ENGINE
  products.source = std::make_unique<ClientSource>();
#endif
  return products;
}

}  // namespace mcast
