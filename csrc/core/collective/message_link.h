// What the messages of a group (messages.h) need of it: the way to the other members, and one end
// for all that is under way. A network's streams are one such way, memory that ranks of a host
// share another.
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
  // What does not change.
  struct Facts {
    std::string group;  // its name
    Member self = 0;
    uint32_t size = 1;
    uint64_t piece = 1;   // bytes of a message in a frame, at most
    uint64_t incast = 1;  // that this member may have granted and not received
    // Silence that counts as death, of those that are waited for; kNever: the group looks for that.
    Nanos liveness_limit = kNever;
  };
  virtual ~MessageLink() = default;

  // A frame about messages: in the order of the calls, to one member. Nothing to who is gone.
  virtual void send_message(Member to, wire::FrameType type, uint32_t number, uint32_t argument,
                            ConstBytes body, ConstBytes payload = {}) = 0;
  // Whether a frame with so many bytes of a message may be sent now. False: ask on the next turn.
  virtual bool takes(Member to, size_t bytes) = 0;
  // "Are you there", whose answer is heard; false: it is gone.
  virtual bool ask(Member member) = 0;

  // Memory that the other member copies by itself: whether it would, of `memory`; that it may, as
  // message `number`; that `bytes` of it are copied (false: the group fails, or has failed); that
  // it was. Where one member would, all would.
  virtual bool lends(const Slice& /*memory*/) const { return false; }
  virtual void lend(Member /*to*/, uint32_t /*number*/, uint32_t /*tag*/, const Slice& /*memory*/) {
  }
  virtual bool copy(Member /*from*/, uint64_t /*place*/, std::byte* /*to*/, size_t /*bytes*/,
                    size_t /*whole*/) {
    return false;
  }
  virtual void copied(Member /*from*/, uint32_t /*number*/) {}

  // Ok: the member can be reached; else why not, for good.
  virtual const Status& end_of(Member member) const = 0;
  // The group fails at the end of this event: the first reason wins. `culprit`: for the others.
  virtual void fail_for(const Status& why, Member culprit) = 0;
  // Ok: it has not failed.
  virtual const Status& failed_for() const = 0;
  // A result on its way to its callback.
  virtual void end(std::function<void(const Status&)> done, const Status& status) = 0;
  virtual Counters& counts() = 0;
};

}  // namespace mcast
