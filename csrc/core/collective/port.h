// What a group needs of the lane that drives it: the way out. Calls are made by the lane's thread.
#pragma once

#include <memory>
#include <optional>

#include "base/region.h"
#include "base/types.h"
#include "transport/transport.h"

namespace mcast {

class Port {
 public:
  virtual ~Port() = default;
  // Memory of the group's next multicast datagram; empty: the medium is full, try on the next poll.
  virtual Bytes lend(size_t size) = 0;
  virtual void commit(size_t size) = 0;
  // Whether the group may send data now, where jobs share a link; false: try on the next poll. What
  // is small and keeps others from waiting does not ask.
  virtual bool has_share() { return true; }
  // As in Datagram.
  virtual size_t gather_from() const { return SIZE_MAX; }
  virtual bool commit_gather(size_t /*header*/, const Slice& /*block*/, size_t /*offset*/,
                             size_t /*length*/) {
    return false;
  }
  // Null: chunks come as datagrams.
  virtual Placer* placer() { return nullptr; }
  // Queues a frame made of `parts`.
  virtual void send(Member to, Channel channel, std::span<const ConstBytes> parts) = 0;
  // Bytes of earlier frames that the medium has not taken. Of data: SIZE_MAX without a share.
  virtual size_t queued(Member to, Channel channel) const = 0;

  // A station of an aggregator (collective/station_table.h) is at this address: from now on it is
  // member `station`, size or more, of the calls above, and its frames and its end come as that
  // member's. Its loss harms neither the lane nor its other groups. part(): it is nobody's any
  // more; what still comes from it is dropped.
  virtual void meet(Member /*station*/, const StreamAddress& /*address*/) {}
  virtual void part(Member /*station*/) {}

  // Datagrams that the lane has received since it was made, the own ones apart.
  struct Received {
    uint64_t verified = 0;
    uint64_t useless = 0;  // refused, or not wanted: repeated, late
    uint64_t foreign = 0;  // of those, what other groups may have sent at the same address
    uint64_t ignored = 0;  // besides: of the whole host, at ports where nobody listens
  };
  virtual Received received() const { return {}; }
  // Whether the group receives what is multicast to it. False leaves the address, because it is
  // flooded: other groups that use it are told (GroupCore::on_flood()). Not ok: it cannot be joined
  // again.
  virtual Status receive_multicast(bool /*wanted*/) { return {}; }

  // Groups of this lane that move large operations now, this one included: they share the budget.
  virtual uint32_t busy_groups() const = 0;

  // Whether another group that lives has lately found that all members hear each other by
  // multicast, with datagrams as large; that this group has found it; that some do not hear others
  // any more.
  virtual bool reach_known(Nanos /*now*/) const { return false; }
  virtual void reach_proven(Nanos /*now*/) {}
  virtual void reach_lost() {}

  // One-sided reads, where the transport has them (RemoteMemory). expose(): what other members need
  // to read `block` around `offset`; nothing: they cannot.
  virtual std::optional<RemoteGrant> expose(const Slice& /*block*/, size_t /*offset*/) {
    return std::nullopt;
  }
  // Keeps a grant alive for about the liveness limit: somebody may still be reading.
  virtual void linger(std::shared_ptr<void> /*hold*/) {}
  virtual size_t max_read() const { return 0; }
  // Whoever drives the port brings the bytes to GroupCore::on_read() with `token`. False: not now.
  virtual bool read(Member /*from*/, uint64_t /*address*/, uint32_t /*key*/, size_t /*length*/,
                    uint32_t /*token*/) {
    return false;
  }
};

}  // namespace mcast
