// One request to an engine for a group: messages of the engine, and replies to it.
#pragma once

#include <sys/types.h>
#include <map>

#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <string>

#include "base/config.h"
#include "host_engine/ipc/control.h"
#include "runtime/group.h"

namespace mcast {

// Thread-safe: the link's thread pushes, the thread that creates the group takes.
class ClientCreation {
 public:
  void push(ipc::Control message);
  // No further message will arrive.
  void lose();
  // Nullopt after `patience`, or once no further message will arrive.
  std::optional<ipc::Control> take(Nanos patience);

 private:
  std::mutex mutex_;
  std::condition_variable there_;
  std::deque<ipc::Control> messages_;
  bool lost_ = false;
};

// Ok if the engine, process `pid`, makes groups of this mode (setting `security`). Otherwise
// kUnavailable, with the remedy.
Status serves(const ipc::Welcome& engine, pid_t pid, const std::string& mode);
// The group's settings that are sent to the engine: those that differ from their defaults. So an
// engine of another version, which lacks a new setting, serves all groups that do not use it.
// Without engine_user, which only concerns the connection to the engine.
std::map<std::string, std::string> non_defaults(const Config& config);
// kMismatch if the engine does not know one of these settings.
Status knows(const ipc::Welcome& engine, pid_t pid, const std::map<std::string, std::string>& set);

// The reply of `store` to the engine's question; nullopt if the message is not a question. Blocks
// as the store does.
std::optional<ipc::StoreAnswer> answer_of(const ipc::Control& question, KeyValueStore& store);

}  // namespace mcast
