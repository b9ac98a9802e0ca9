// What an engine of the host gives to the groups of a client. Empty in a training process, which
// has all of this machine's memory and link that it can get.
#pragma once

#include <memory>

#include "base/quota.h"
#include "engine/egress_share.h"
#include "host/directory.h"

namespace mcast {

struct EngineContext {
  std::shared_ptr<HostDirectory> directory;  // where ranks of the engine find each other's memory
  std::shared_ptr<EgressShare> share;        // of the link
  std::shared_ptr<Quota> threads;            // of the client's user
};

}  // namespace mcast
