// What a station needs of the world: the way out to its ranks. Calls are made by the station's
// thread, from within calls to the station; none calls it back.
#pragma once

#include <span>

#include "base/types.h"
#include "transport/transport.h"

namespace mcast::aggregation {

class Outlet {
 public:
  virtual ~Outlet() = default;
  // Queues a frame made of `parts`; copied unless the medium takes them at once. What is for a rank
  // whose stream has ended is dropped.
  virtual void send(Member to, Channel channel, std::span<const ConstBytes> parts) = 0;
  // Bytes of earlier frames that the medium has not taken.
  virtual size_t queued(Member to, Channel channel) const = 0;
  // Jobs of the process that move data now, this one included: they share its link.
  virtual uint32_t busy_jobs() const = 0;
};

}  // namespace mcast::aggregation
