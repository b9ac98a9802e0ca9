// Interface through which a station sends to its ranks. The station's thread makes the calls, from
// within calls to the station; none of them calls back.
#pragma once

#include <span>

#include "base/types.h"
#include "transport/transport.h"

namespace mcast::aggregation {

class Outlet {
 public:
  virtual ~Outlet() = default;
  // Queues a frame made of `parts`; copies them unless the medium takes them at once. A frame for a
  // rank whose stream has ended is dropped.
  virtual void send(Member to, Channel channel, std::span<const ConstBytes> parts) = 0;
  // Bytes of earlier frames that the medium has not taken.
  virtual size_t queued(Member to, Channel channel) const = 0;
  // Jobs of the process that currently move data, including this one: they share its link.
  virtual uint32_t busy_jobs() const = 0;
};

}  // namespace mcast::aggregation
