// Reception: puts multicast datagrams into the memory of operations or into staging.
//
// Threads: the lane's.
#pragma once

#include "collective/datagram_verifier.h"
#include "collective/group_context.h"
#include "collective/movements/placing.h"
#include "collective/path_switch.h"
#include "collective/small_operations.h"
#include "collective/source_auth.h"
#include "protocol/staging.h"

namespace mcast {

class Reception {
 public:
  Reception(GroupContext& context, SmallOperations& small, PathSwitch& path, Placing& placing,
            SourceAuth& sources)
      : g_(context),
        small_(small),
        path_(path),
        placing_(placing),
        sources_(sources),
        staging_(context.params.staging) {}

  // Handles a data datagram and verifies it once it is known to be needed. Instantiated for both
  // verifiers of collective/datagram_verifier.h.
  template <typename Verifier>
  DatagramVerdict on_data(const wire::DatagramHeader& header, Verifier& datagram, Nanos now);
  // Handles chunks that a device has written to the operation's memory. Returns their bytes.
  size_t on_placed(Operation& op, Member root, uint32_t word, uint64_t bits, Nanos now);
  // Handles a verified datagram with the position of a root, in its small operations or in one
  // block.
  void on_position_datagram(const wire::DatagramHeader& header, Nanos now);
  void on_position(Sequence sequence, Member root, uint32_t descriptor, Chunk sent, Nanos now);

  // Puts a verified chunk into the operation's memory. Returns false if it is there already.
  // `live`: received by multicast.
  bool place(Operation& op, uint32_t stream, Chunk chunk, ConstBytes payload, bool live, Nanos now);
  // Keeps a chunk of an operation that is not posted here. Returns false if there is no room or the
  // chunk is already kept.
  bool stage(Sequence sequence, Staging::Key key, uint32_t descriptor, bool live,
             ConstBytes payload);
  bool staged(Sequence sequence, Member root) const { return staging_.holds(sequence, root); }
  // The operation has been posted: places its staged chunks.
  void replay_staged(Operation& op, Nanos now);

  // Bytes staged for operations that are not posted here.
  size_t staged_bytes() const { return staging_.bytes(); }
  size_t take_staged_peak() { return staging_.take_peak(); }
  // Bytes of multicast that may queue here before any sender must wait for this member. 0 unless
  // much more than that is still to come.
  size_t headroom() const;

 private:
  // Copies a new chunk into the operation's memory.
  void enter(Operation& op, uint32_t stream, Chunk chunk, ConstBytes payload, bool live, Nanos now);
  // Accounts for a chunk that is in the operation's memory.
  void arrived(Operation& op, uint32_t stream, Chunk chunk, bool live, Nanos now);
  template <typename Verifier>
  DatagramVerdict on_other_data(const wire::DatagramHeader& header, Verifier& datagram, Nanos now);

  GroupContext& g_;
  SmallOperations& small_;
  PathSwitch& path_;
  Placing& placing_;
  SourceAuth& sources_;
  Staging staging_;
};

}  // namespace mcast
