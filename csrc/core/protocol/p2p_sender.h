// Messages from this rank to one other: what is sent next, and when a message has left. Each begins
// with a head, in the order of the posts, so that the receiver can match them in that order. The
// first bytes of a message, `unasked`, leave with its head as long as what the receiver keeps of
// such is within an account; all else leaves as far as the receiver has granted, which it does when
// a receive has taken the message. So a short message takes one step, and nobody is sent more than
// it has room for. Pure.
#pragma once

#include <algorithm>
#include <deque>
#include <optional>
#include <unordered_map>
#include <vector>

#include "base/types.h"

namespace mcast {

// The same at both ends.
struct P2pParams {
  uint64_t unasked = 0;  // first bytes of a message that may leave with its head
  uint64_t account = 0;  // of those, bytes that no receive is known to have taken
  uint64_t heads = 1;    // messages that no receive is known to have taken
  uint64_t piece = 1;    // bytes sent at once, at most; `unasked` or more
  uint64_t window = 1;   // bytes of a message that may be granted and not here
  uint32_t first = 0;    // number of the first message; the number after UINT32_MAX is 0
};

class P2pSender {
 public:
  explicit P2pSender(const P2pParams& params) : params_(params), next_(params.first) {}

  // The next message, by its caller's name for it.
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
  // True: the message has left as a whole; its memory is not needed any more.
  bool sent(const Piece& piece);

  // False, for all of these: the receiver broke the protocol.
  // It has room for bytes [0, end) of message `number`.
  bool on_grant(uint32_t number, uint64_t end);
  // Receives have taken so many messages so far, and so many of their unasked bytes.
  bool on_credit(uint64_t heads, uint64_t bytes);

  bool idle() const { return posted_.empty() && open_.empty(); }
  // Whether a head may leave or something is granted: next() depends on readable() alone.
  bool may_send() const {
    return !granted_.empty() || (!posted_.empty() && heads_.out - heads_.taken < params_.heads);
  }
  // Messages that have not left as a whole, those whose head has not left last. None of them is
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
  std::deque<Out> posted_;                  // the head has not left
  std::unordered_map<uint32_t, Out> open_;  // the head has left, but not all of the message
  std::deque<uint32_t> granted_;            // of which something is granted; oldest grant first
  uint32_t next_;
  Account heads_, bytes_;
};

}  // namespace mcast
