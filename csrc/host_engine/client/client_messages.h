// Messages of a group that an engine of the host carries out (docs/point-to-point.md).
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "base/counters.h"
#include "collective/messages.h"
#include "host_engine/client/client_feed.h"
#include "host_engine/client/client_link.h"
#include "host_engine/client/client_staging.h"

namespace mcast {

// Sends and receives of one group of a client. Thread-safe.
class ClientMessages {
 public:
  struct Params {
    std::string name;  // of the group
    Member self = 0;
    uint32_t size = 1;
    uint32_t handle = 0;  // in the engine
    ClientAccess access;
    std::shared_ptr<Counters> counters;
  };
  ClientMessages(std::shared_ptr<ClientLink> link, Params params)
      : link_(std::move(link)), params_(std::move(params)) {}

  // Call in order, from one thread at a time. On an error post.done is not called.
  Status post(MessagePost post);
  // Copies the data of sends that can be read and informs the engine. A send that cannot be read
  // yet delays no other.
  void feed();
  void on_done(const ipc::MessageDoneRecord& record);
  // Ends all messages with `why`; later posts are refused. `may_run`: the engine may still be
  // copying.
  void end_all(const Status& why, bool may_run);
  // Messages whose end the engine has not reported yet.
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
  mutable std::mutex mutex_;  // guards the members below
  Status lost_;
  uint32_t next_ = 0;                                    // next number
  std::map<uint32_t, std::shared_ptr<Flight>> flights_;  // by number
  size_t sends_ = 0;                                     // sends among flights_
  std::deque<uint32_t> to_feed_;
};

}  // namespace mcast
