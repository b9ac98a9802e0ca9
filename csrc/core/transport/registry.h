// The transports that there are. What is above asks this table, and the transport contract; it
// names none of them. A new transport is a folder of its own, which defines its row, and its name
// in MCAST_TRANSPORTS (base/config.h).
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
  const char* device;  // what a host needs for it, for people: "an RDMA device"
  // Every connection takes a descriptor of the process.
  bool descriptor_per_connection;
  // Ok, or why it does not work on this host: kUnavailable with the reason. Opens the device for a
  // moment; any thread.
  Status (*problem)(const Config& config);
  // The endpoints of one lane, or why they cannot be had. `identity`: of guarded ones; null: they
  // are none.
  Result<std::unique_ptr<Transport>> (*make)(const Config& config, LaneId lane,
                                             std::shared_ptr<const crypto::Identity> identity);
  // Addresses of this host among which a group may choose, where the settings leave that open;
  // `store`: host of the job's store, may be empty. Null: the endpoints are where `make` puts them.
  std::vector<OwnAddress> (*addresses)(const Config& config, const std::string& store) = nullptr;
};

// In the order of MCAST_TRANSPORTS. The first one is there on every host.
const std::vector<TransportType>& transport_types();
inline const TransportType& fallback_transport() { return transport_types().front(); }
// Null: there is none of this name.
const TransportType* find_transport(std::string_view name);

// The rows, each defined in the transport's folder.
#define MCAST_TRANSPORT_ROW(name) TransportType name##_transport_type();
MCAST_TRANSPORTS(MCAST_TRANSPORT_ROW)
#undef MCAST_TRANSPORT_ROW

}  // namespace mcast
