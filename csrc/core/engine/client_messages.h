// Messages of a group that an engine of the host carries out (docs/point-to-point.md).
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "base/counters.h"
#include "collective/messages.h"
#include "engine/client_feed.h"
#include "engine/client_link.h"
#include "engine/client_staging.h"

namespace mcast {

// Sends and receives of one group of a client. Thread-safe.
class ClientMessages {
 public:
  struct Params {
    std::string name;  // of the group
    Member self = 0;
    uint32_t size = 1;
    uint32_t handle = 0;  // the engine's
    ClientRoads roads;
    std::shared_ptr<Counters> counters;
  };
  ClientMessages(std::shared_ptr<ClientLink> link, Params params)
      : link_(std::move(link)), params_(std::move(params)) {}

  // In the order of the calls: of one thread at a time. Not ok: post.done is not called.
  Status post(MessagePost post);
  // Copies what can be read of sends and tells the engine. What cannot be read yet holds up no
  // other.
  void feed();
  void on_done(const ipc::MessageDoneRecord& record);
  // All end so, and later posts are refused. `may_run`: the engine may still copy.
  void end_all(const Status& why, bool may_run);
  // That the engine has not ended yet, as far as this process has heard.
  struct InFlight {
    size_t all = 0, sends = 0;
  };
  InFlight in_flight() const;

 private:
  struct Flight {
    MessagePost post;
    std::unique_ptr<ClientStaging> staging;
    ClientFeed feed;
  };
  static void end(Flight& flight, const Status& status);
  std::string text(const MessagePost& post) const;

  const std::shared_ptr<ClientLink> link_;
  const Params params_;
  mutable std::mutex mutex_;  // of what follows
  Status lost_;
  uint32_t next_ = 0;                                    // number
  std::map<uint32_t, std::shared_ptr<Flight>> flights_;  // by number
  size_t sends_ = 0;                                     // of these
  std::deque<uint32_t> to_feed_;
};

}  // namespace mcast
