// What a group needs of the lane that drives it: the way out. Calls are made by the lane's thread.
#pragma once

#include "base/types.h"
#include "transport/transport.h"

namespace mcast {

class Port {
 public:
  virtual ~Port() = default;
  // Memory of the group's next multicast datagram; empty: the medium is full, try on the next poll.
  virtual Bytes lend(size_t size) = 0;
  virtual void commit(size_t size) = 0;
  // Queues a frame made of `parts`.
  virtual void send(Member to, Channel channel, std::span<const ConstBytes> parts) = 0;
  // Bytes of earlier frames that the medium has not taken.
  virtual size_t queued(Member to, Channel channel) const = 0;
  // Groups of this lane that move large operations now, this one included: they share the budget.
  virtual uint32_t busy_groups() const = 0;
};

}  // namespace mcast
