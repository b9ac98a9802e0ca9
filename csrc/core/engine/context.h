// What an engine of the host gives to the groups of a client. Empty in a training process, which
// has all of this machine's memory and link that it can get.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/quota.h"
#include "base/status.h"
#include "engine/egress_share.h"
#include "host/directory.h"

namespace mcast {

// Whether something may be sent there: numeric IPv4, as a StreamAddress has it. Thread-safe. Null:
// anywhere.
using MayReach = std::function<Status(const std::string& host, uint16_t port)>;

struct EngineContext {
  std::shared_ptr<HostDirectory> directory;  // where ranks of the engine find each other's memory
  std::shared_ptr<EgressShare> share;        // of the link
  std::shared_ptr<Quota> threads;            // of the client's user
  // Of the group's members and aggregators: addresses come from the client.
  MayReach may_reach;
};

}  // namespace mcast
