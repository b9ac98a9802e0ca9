// The table of transports. The layers above use this table and the transport contract and do not
// name any transport. A new transport is a folder of its own, which defines its row, and a name in
// MCAST_TRANSPORTS (base/config.h).
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "base/config.h"
#include "base/lane_id.h"
#include "base/status.h"
#include "transport/own_address.h"
#include "transport/transport.h"

namespace mcast {

namespace crypto {
struct Identity;
}

struct TransportType {
  const char* name;    // the setting MCAST_TRANSPORT, Transport::name()
  const char* device;  // hardware that a host needs for it, as users read it: "an RDMA device"
  // Every connection takes a descriptor of the process.
  bool descriptor_per_connection;
  // Returns ok, or why it does not work on this host: kUnavailable with the reason. Opens the
  // device for a moment; any thread.
  Status (*problem)(const Config& config);
  // Returns the endpoints of one lane, or why they cannot be opened. `identity`: of guarded
  // endpoints, else null.
  Result<std::unique_ptr<Transport>> (*make)(const Config& config, LaneId lane,
                                             std::shared_ptr<const crypto::Identity> identity);
  // Returns addresses of this host among which a group may choose, if the settings leave a choice;
  // `store`: host of the job's store, may be empty. Null: `make` alone decides the endpoints'
  // addresses.
  std::vector<OwnAddress> (*addresses)(const Config& config, const std::string& store) = nullptr;
};

// In the order of MCAST_TRANSPORTS. The first one works on every host.
const std::vector<TransportType>& transport_types();
inline const TransportType& fallback_transport() { return transport_types().front(); }
// Returns null if there is no transport of this name.
const TransportType* find_transport(std::string_view name);

// The rows, each defined in the transport's folder.
#define MCAST_TRANSPORT_ROW(name) TransportType name##_transport_type();
MCAST_TRANSPORTS(MCAST_TRANSPORT_ROW)
#undef MCAST_TRANSPORT_ROW

}  // namespace mcast
