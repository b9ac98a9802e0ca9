// The RDMA transport: datagrams by unreliable-datagram multicast, streams by reliable connections,
// one completion queue each. libibverbs and librdmacm are loaded when first asked for; nothing here
// needs their headers or links to them. See docs/verbs.md.
#pragma once

#include <memory>

#include "transport/transport.h"
#include "transport/verbs/options.h"

namespace mcast {

// kUnavailable with the reason where there is no library, no device, no active port with an IP
// address, or too little memory may be locked. The endpoints of one lane.
Result<std::unique_ptr<Transport>> make_verbs_transport(const VerbsOptions& options);
// The same question without keeping anything open.
Status verbs_viable(const VerbsOptions& options);

}  // namespace mcast
