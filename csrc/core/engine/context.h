// What an engine of the host gives to the groups of a client. Empty in a training process, which
// has all of this machine's memory and link that it can get.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/quota.h"
#include "base/status.h"
#include "crypto/secret.h"
#include "engine/egress_share.h"
#include "host/directory.h"

namespace mcast {

// Whether something may be sent there: numeric IPv4, as a StreamAddress has it. Thread-safe. Null:
// anywhere.
using MayReach = std::function<Status(const std::string& host, uint16_t port)>;

// How an engine guards the groups of its clients: with its own secret, whatever theirs is.
struct EngineSecurity {
  std::vector<std::string> modes = {"off"};         // values of the setting `security` it serves
  std::shared_ptr<const crypto::JobSecret> secret;  // null: of `off` alone

  bool serves(const std::string& mode) const {
    return std::find(modes.begin(), modes.end(), mode) != modes.end();
  }
  // With commas between them.
  std::string modes_text() const {
    std::string text;
    for (const std::string& mode : modes) text += (text.empty() ? "" : ",") + mode;
    return text;
  }
};

struct EngineContext {
  std::shared_ptr<HostDirectory> directory;  // where ranks of the engine find each other's memory
  std::shared_ptr<EgressShare> share;        // of the link
  std::shared_ptr<Quota> threads;            // of the client's user
  // Of the group's members and aggregators: addresses come from the client.
  MayReach may_reach;
  // Null in a training process, whose groups have the secret of their own settings.
  std::shared_ptr<const EngineSecurity> security = nullptr;
};

}  // namespace mcast
