// Resources that an engine of the host gives to the groups of a client. Empty in a training
// process, which uses all memory and bandwidth of its machine that it can get.
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
#include "runtime/egress_share.h"
#include "shm/directory.h"

namespace mcast {

// Whether something may be sent there: numeric, as a StreamAddress has it. Thread-safe. Null:
// anywhere.
using MayReach = std::function<Status(const std::string& host, uint16_t port)>;

// Security of the groups of an engine's clients: it uses the engine's own secret, not theirs.
struct EngineSecurity {
  std::vector<std::string> modes = {"off"};         // supported values of the setting `security`
  std::shared_ptr<const crypto::JobSecret> secret;  // null: only mode `off`

  bool serves(const std::string& mode) const {
    return std::find(modes.begin(), modes.end(), mode) != modes.end();
  }
  // The modes, separated by commas.
  std::string modes_text() const {
    std::string text;
    for (const std::string& mode : modes) text += (text.empty() ? "" : ",") + mode;
    return text;
  }
};

struct EngineContext {
  std::shared_ptr<HostDirectory> directory;  // where ranks of the engine find each other's memory
  std::shared_ptr<EgressShare> share;        // of the link
  std::shared_ptr<Quota> threads;            // limit of the client's user
  // For addresses of the group's members and aggregators, which the client provides.
  MayReach may_reach;
  // Null in a training process, whose groups use the secret of their own settings.
  std::shared_ptr<const EngineSecurity> security = nullptr;
};

}  // namespace mcast
