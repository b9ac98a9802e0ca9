// Reception: what comes by multicast, into the memory of operations or into staging.
//
// Threads: the lane's.
#pragma once

#include "collective/datagram_verifier.h"
#include "collective/group_context.h"
#include "collective/path_switch.h"
#include "collective/placing.h"
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

  // A datagram of data; it is verified here, once it is known to be wanted. For both verifiers of
  // collective/datagram_verifier.h.
  template <typename Verifier>
  Judged on_data(const wire::DatagramHeader& header, Verifier& datagram, Nanos now);
  // Chunks that a device has written to the operation's memory; returns their bytes.
  size_t on_placed(Operation& op, Member root, uint32_t word, uint64_t bits, Nanos now);
  // A verified one that says how far a root has got: with its small operations, or with one.
  void on_position_datagram(const wire::DatagramHeader& header, Nanos now);
  void on_position(Sequence sequence, Member root, uint32_t descriptor, Chunk sent, Nanos now);

  // Puts a verified chunk into the operation's memory; false: it is there already. `live`: by
  // multicast.
  bool place(Operation& op, uint32_t stream, Chunk chunk, ConstBytes payload, bool live, Nanos now);
  // Keeps one of an operation that is not posted here. False: there is no room, or it was kept.
  bool stage(Sequence sequence, Staging::Key key, uint32_t descriptor, bool live,
             ConstBytes payload);
  bool staged(Sequence sequence, Member root) const { return staging_.holds(sequence, root); }
  // The operation has been posted: what came before takes its place.
  void replay_staged(Operation& op, Nanos now);

  // Bytes of memory for what came before its operation was posted.
  size_t staged_bytes() const { return staging_.bytes(); }
  size_t take_staged_peak() { return staging_.take_peak(); }
  // Bytes of multicast that may pile up before anybody has to wait for this member to take them; 0
  // unless much more than that is still to come.
  size_t headroom() const;

 private:
  // The bytes of a chunk that is new.
  void enter(Operation& op, uint32_t stream, Chunk chunk, ConstBytes payload, bool live, Nanos now);
  // They are in the operation's memory.
  void arrived(Operation& op, uint32_t stream, Chunk chunk, bool live, Nanos now);
  template <typename Verifier>
  Judged on_other_data(const wire::DatagramHeader& header, Verifier& datagram, Nanos now);

  GroupContext& g_;
  SmallOperations& small_;
  PathSwitch& path_;
  Placing& placing_;
  SourceAuth& sources_;
  Staging staging_;
};

}  // namespace mcast
