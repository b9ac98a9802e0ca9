// The table is expanded from the list of names, so that a transport without a row does not link,
// and a row needs a name that is a choice of the setting.
#include "transport/registry.h"

#include <algorithm>

namespace mcast {

const std::vector<TransportType>& transport_types() {
  static const auto* const kTypes = new std::vector<TransportType>{
#define MCAST_TRANSPORT_ROW(name) name##_transport_type(),
      MCAST_TRANSPORTS(MCAST_TRANSPORT_ROW)
#undef MCAST_TRANSPORT_ROW
  };
  return *kTypes;
}

const TransportType* find_transport(std::string_view name) {
  const auto& types = transport_types();
  const auto it = std::find_if(types.begin(), types.end(),
                               [name](const TransportType& t) { return t.name == name; });
  return it == types.end() ? nullptr : &*it;
}

}  // namespace mcast
