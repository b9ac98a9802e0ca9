// The RDMA transport: datagrams by unreliable-datagram multicast, streams by reliable connections,
// one completion queue each. libibverbs and librdmacm are loaded on first use; this header neither
// needs their headers nor links to them. See docs/verbs.md.
#pragma once

#include <memory>

#include "transport/transport.h"
#include "transport/verbs/options.h"

namespace mcast {

// Returns the endpoints of one lane; kUnavailable with the reason if there is no library, no
// device, or no active port with an IP address, or too little memory may be locked.
Result<std::unique_ptr<Transport>> make_verbs_transport(const VerbsOptions& options);
// The same check without keeping anything open.
Status verbs_viable(const VerbsOptions& options);

}  // namespace mcast
