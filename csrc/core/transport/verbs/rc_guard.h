// The additional state of a guarded connection of an RcStream: its end of the handshake, then the
// records.
#pragma once

#include <optional>
#include <vector>

#include "transport/guarded/handshake.h"
#include "transport/guarded/records.h"
#include "transport/verbs/rc_wire.h"

namespace mcast::verbs {

struct RcGuard {
  // The next message expected from the other end. kProof: the Hello; kEnd: none, the other end was
  // told that its attempt is not used.
  enum class Awaits { kChallenge, kAck, kProof, kConfirm, kEnd, kRecords };
  Awaits awaits = Awaits::kChallenge;
  std::optional<guarded::Connector> connector;
  std::optional<guarded::Acceptor> acceptor;
  // Acceptor only: the uid that the request claims. It is not authenticated; anybody can send it.
  uint64_t claimed = 0;        // uid
  IpAddress listen_address{};  // address at which it can be reached; from the Hello
  uint16_t listen_port = 0;
  Source from;
  Nanos since = kNever;  // start of the wait; set by the next check of the timers
  guarded::Records records;
  bool used_up = false;  // the keys for sending
  std::array<std::byte, kEntry> opened{};

  // Returns the contents of a message, which is one record: its length repeats the message's,
  // authenticated. Valid until the next call. An empty optional means that the record is forged and
  // the connection is over.
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
