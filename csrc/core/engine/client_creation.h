// One ask for a group of an engine: what the engine says of it, and what it is answered.
#pragma once

#include <sys/types.h>
#include <map>

#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <string>

#include "base/config.h"
#include "engine/group.h"
#include "ipc/control.h"

namespace mcast {

// Thread-safe: the link's thread pushes, who makes the group takes.
class ClientCreation {
 public:
  void push(ipc::Control message);
  // Nothing comes any more.
  void lose();
  // Nothing after `patience`, or once nothing comes any more.
  std::optional<ipc::Control> take(Nanos patience);

 private:
  std::mutex mutex_;
  std::condition_variable there_;
  std::deque<ipc::Control> messages_;
  bool lost_ = false;
};

// Ok: the engine, process `pid`, makes groups of this mode (setting `security`). Else kUnavailable,
// and what to do.
Status serves(const ipc::Welcome& engine, pid_t pid, const std::string& mode);
// What an engine is told of a group's settings: those that are not at their defaults. So an engine
// of another version, which lacks a new setting, serves all groups that do not use it. Not
// engine_user, which is about the way to it.
std::map<std::string, std::string> non_defaults(const Config& config);
// kMismatch: it does not know one of these.
Status knows(const ipc::Welcome& engine, pid_t pid, const std::map<std::string, std::string>& set);

// What `store` says to the engine's question; none: that is no question. Blocks as the store does.
std::optional<ipc::StoreAnswer> answer_of(const ipc::Control& question, KeyValueStore& store);

}  // namespace mcast
