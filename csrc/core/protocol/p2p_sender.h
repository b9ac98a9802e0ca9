// Messages from this rank to one other: selects the next piece, and detects when a message has been
// sent completely. Each begins with a head, in the order of the posts, so that the receiver can
// match them in that order. The first bytes of a message, `unasked`, are sent with its head as long
// as the receiver's memory for them is within an account; the rest is sent as granted by the
// receiver, once a receive has taken the message. So a short message takes one step, and no
// receiver gets more than it has room for. Pure.
#pragma once

#include <algorithm>
#include <deque>
#include <optional>
#include <unordered_map>
#include <vector>

#include "base/types.h"

namespace mcast {

// Parameters, equal at both ends.
struct P2pParams {
  uint64_t unasked = 0;  // first bytes of a message that may leave with its head
  uint64_t account = 0;  // bytes of them that no receive is known to have taken, at most
  uint64_t heads = 1;    // messages that no receive is known to have taken, at most
  uint64_t piece = 1;    // bytes sent at once, at most; `unasked` or more
  uint64_t window = 1;   // bytes of a message that may be granted and not received
  uint32_t first = 0;    // number of the first message; the number after UINT32_MAX is 0
};

class P2pSender {
 public:
  explicit P2pSender(const P2pParams& params) : params_(params), next_(params.first) {}

  // Posts the next message; `id` is the caller's.
  void post(uint64_t id, uint32_t tag, uint64_t total);

  struct Piece {
    uint64_t id = 0;
    uint32_t number = 0, tag = 0;
    uint64_t total = 0, offset = 0, bytes = 0;
    bool head = false;
  };
  // The next piece, which sent() then records. readable(id): bytes of the message, from its start,
  // that can be read by now.
  template <typename Readable>
  std::optional<Piece> next(Readable&& readable) const {
    if (!posted_.empty() && heads_.out - heads_.taken < params_.heads) {
      return head(readable(posted_.front().id));
    }
    for (const uint32_t number : granted_) {
      if (const auto piece = rest(number, readable(open_.at(number).id))) return piece;
    }
    return std::nullopt;
  }
  // Returns true if the message has been sent completely; its memory is not needed any more.
  bool sent(const Piece& piece);

  // Each of these returns false if the receiver broke the protocol.
  // The receiver has room for bytes [0, end) of message `number`.
  bool on_grant(uint32_t number, uint64_t end);
  // Receives have taken this many messages so far, and this many of their unasked bytes.
  bool on_credit(uint64_t heads, uint64_t bytes);

  bool idle() const { return posted_.empty() && open_.empty(); }
  // Returns true if a head may be sent or bytes are granted: next() then depends only on
  // readable().
  bool may_send() const {
    return !granted_.empty() || (!posted_.empty() && heads_.out - heads_.taken < params_.heads);
  }
  // Messages that have not been sent completely, those without a sent head last. None of them is
  // sent any further.
  std::vector<uint64_t> abandon();

 private:
  struct Out {
    uint64_t id = 0;
    uint32_t tag = 0;
    uint64_t total = 0, sent = 0, granted = 0;
  };
  struct Account {
    uint64_t out = 0, taken = 0;  // since the beginning
  };
  Piece head(uint64_t readable) const;
  std::optional<Piece> rest(uint32_t number, uint64_t readable) const;

  const P2pParams params_;
  std::deque<Out> posted_;                  // the head has not been sent
  std::unordered_map<uint32_t, Out> open_;  // the head has been sent, but not all of the message
  std::deque<uint32_t> granted_;            // messages with granted bytes; oldest grant first
  uint32_t next_;
  Account heads_, bytes_;
};

}  // namespace mcast
