// MessageLink: services that messages (messages.h) need from a group: sending to other members, and
// a single queue of ended posts. It is implemented by network streams, and by memory that ranks of
// one host share.
#pragma once

#include <functional>
#include <string>

#include "base/counters.h"
#include "base/region.h"
#include "base/status.h"
#include "wire/frame.h"

namespace mcast {

// Threads: those of the group.
class MessageLink {
 public:
  // Constants of the group.
  struct Facts {
    std::string group;  // its name
    Member self = 0;
    uint32_t size = 1;
    uint64_t piece = 1;   // most bytes of a message in one frame
    uint64_t incast = 1;  // most bytes that this member may have granted and not yet received
    // Silence after which an awaited member counts as dead. kNever: the group checks this itself.
    Nanos liveness_limit = kNever;
  };
  virtual ~MessageLink() = default;

  // Sends a frame of a message to one member, in the order of the calls. Ignored if it is gone.
  virtual void send_message(Member to, wire::FrameType type, uint32_t number, uint32_t argument,
                            ConstBytes body, ConstBytes payload = {}) = 0;
  // Whether a frame with this many bytes of a message may be sent now. If not, retry on the next
  // poll.
  virtual bool takes(Member to, size_t bytes) = 0;
  // Sends a ping, whose reply reaches heard(). Returns false if the member is gone.
  virtual bool ask(Member member) = 0;

  // Lent memory, which the receiving member copies by itself. lends(): whether members copy from
  // memory like this; the answer is the same for all. lend(): allows it, as message `number`.
  // copy(): copies `bytes`; returns false if the group fails or has failed. copied(): reports that
  // the copy is done.
  virtual bool lends(const Slice& /*memory*/) const { return false; }
  virtual void lend(Member /*to*/, uint32_t /*number*/, uint32_t /*tag*/, const Slice& /*memory*/) {
  }
  virtual bool copy(Member /*from*/, uint64_t /*place*/, std::byte* /*to*/, size_t /*bytes*/,
                    size_t /*whole*/) {
    return false;
  }
  virtual void copied(Member /*from*/, uint32_t /*number*/) {}

  // Ok if the member can be reached; otherwise why it is permanently unreachable.
  virtual const Status& end_of(Member member) const = 0;
  // Fails the group at the end of this event. The first reason wins. `culprit`: reported to others.
  virtual void fail_for(const Status& why, Member culprit) = 0;
  // Ok if the group has not failed.
  virtual const Status& failed_for() const = 0;
  // Queues a result for its callback.
  virtual void end(std::function<void(const Status&)> done, const Status& status) = 0;
  virtual Counters& counts() = 0;
};

}  // namespace mcast
