// What a guarded connection of an RcStream has besides: its end of the handshake, then the records.
#pragma once

#include <optional>
#include <vector>

#include "transport/guarded/handshake.h"
#include "transport/guarded/records.h"
#include "transport/verbs/rc_wire.h"

namespace mcast::verbs {

struct RcGuard {
  // What the other end has to say next. kProof: the Hello; kEnd: nothing, it was told that its
  // attempt is not used.
  enum class Awaits { kChallenge, kAck, kProof, kConfirm, kEnd, kRecords };
  Awaits awaits = Awaits::kChallenge;
  std::optional<guarded::Connector> connector;
  std::optional<guarded::Acceptor> acceptor;
  // Of an acceptor: what the request says, which anybody can.
  uint64_t claimed = 0;      // uid
  in_addr listen_address{};  // where it can be reached; from the Hello
  uint16_t listen_port = 0;
  Source from;
  Nanos since = kNever;  // it awaits that; set by the next look at the timers, which has a clock
  guarded::Records records;
  bool used_up = false;  // the keys of our direction
  std::array<std::byte, kEntry> opened{};

  // What a message carries, which is one record: its length says the message's again,
  // authenticated. Valid until the next call. Nothing: forged, and the connection is over.
  std::optional<ConstBytes> open(ConstBytes message) {
    constexpr size_t kMostBody = kEntry - crypto::record_size(0, false);
    const bool whole = message.size() >= crypto::record_size(0, false) &&
                       crypto::record_length(decode_prefix(message.data())) ==
                           message.size() - crypto::kRecordLength &&
                       crypto::record_length_allowed(
                           crypto::record_length(decode_prefix(message.data())), kMostBody, false);
    return whole ? records.open(false, message, opened) : std::nullopt;
  }
};

}  // namespace mcast::verbs
