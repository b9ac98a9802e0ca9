// Port: sending and other services that a group needs from its lane. Called by the lane's thread.
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
  // Memory for the group's next multicast datagram. Empty if the medium is full; retry on the next
  // poll.
  virtual Bytes lend(size_t size) = 0;
  virtual void commit(size_t size) = 0;
  // Whether the group may send data now, if jobs share a link. If not, retry on the next poll.
  // Small data that other ranks wait for is sent without this check.
  virtual bool has_share() { return true; }
  // As in Datagram.
  virtual size_t gather_from() const { return SIZE_MAX; }
  virtual bool commit_gather(size_t /*header*/, const Slice& /*block*/, size_t /*offset*/,
                             size_t /*length*/) {
    return false;
  }
  // Null: chunks arrive as datagrams.
  virtual Placer* placer() { return nullptr; }
  // Queues a frame made of `parts`.
  virtual void send(Member to, Channel channel, std::span<const ConstBytes> parts) = 0;
  // Bytes of earlier frames that the medium has not accepted. SIZE_MAX for data while has_share()
  // is false.
  virtual size_t queued(Member to, Channel channel) const = 0;

  // meet(): a station of an aggregator (aggregation/plan/station_table.h) is at this address. From
  // then on it is member `station` (group size or above) in the calls above, and its frames and its
  // loss are reported as that member's. Its loss affects neither the lane nor the lane's other
  // groups. part(): the number is no longer used; frames that still arrive are dropped.
  virtual void meet(Member /*station*/, const StreamAddress& /*address*/) {}
  virtual void part(Member /*station*/) {}

  // Datagrams that the lane has received since it was created, without its own ones.
  struct Received {
    uint64_t verified = 0;
    uint64_t useless = 0;  // refused or not needed: repeated, late
    // Part of `useless`: datagrams that other groups may have sent to the same address.
    uint64_t foreign = 0;
    // Not part of `useless`: datagrams of the whole host for ports that nobody listens on.
    uint64_t ignored = 0;
  };
  virtual Received received() const { return {}; }
  // Whether to receive the group's multicast. False leaves the address because it is flooded, and
  // notifies other groups that use it (GroupCore::on_flood()). Returns an error if the address
  // cannot be joined again.
  virtual Status receive_multicast(bool /*wanted*/) { return {}; }

  // Groups of this lane that move large operations now, including this one: they share the budget.
  virtual uint32_t busy_groups() const = 0;

  // reach_known(): another live group has recently found that all members receive each other's
  // multicast, with datagrams as large as ours. reach_proven(): this group has found it.
  // reach_lost(): some members no longer receive others.
  virtual bool reach_known(Nanos /*now*/) const { return false; }
  virtual void reach_proven(Nanos /*now*/) {}
  virtual void reach_lost() {}

  // One-sided reads, if the transport has them (RemoteMemory). expose(): data that other members
  // need to read `block` around `offset`; nullopt if they cannot.
  virtual std::optional<RemoteGrant> expose(const Slice& /*block*/, size_t /*offset*/) {
    return std::nullopt;
  }
  // Keeps a grant alive for about the liveness limit, because a member may still be reading.
  virtual void linger(std::shared_ptr<void> /*hold*/) {}
  virtual size_t max_read() const { return 0; }
  // The port's driver passes the bytes to GroupCore::on_read() with `token`. Returns false if not
  // possible now.
  virtual bool read(Member /*from*/, uint64_t /*address*/, uint32_t /*key*/, size_t /*length*/,
                    uint32_t /*token*/) {
    return false;
  }
};

}  // namespace mcast
