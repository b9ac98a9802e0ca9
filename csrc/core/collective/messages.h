// Messages: data that one rank sends to one other by send and receive, independent of the group's
// operations. Not all ranks make these calls, so messages have their own numbers for each ordered
// pair of ranks, and completion reports do not cover them. They travel directly between the two
// ranks: by streams, or by shared memory between ranks of one host (message_link.h).
//
// Threads: the lane's.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/region.h"
#include "collective/message_link.h"
#include "protocol/ingress_share.h"
#include "protocol/liveness.h"
#include "protocol/match_queue.h"
#include "protocol/p2p_receiver.h"
#include "protocol/p2p_sender.h"

namespace mcast {

// Arguments of a send or a receive.
struct MessagePost {
  bool receives = false;
  Member peer = kNoMember;  // the other rank; for a receive, kNoMember accepts any
  uint32_t tag = 0;
  Slice memory;      // to send; or to receive into, of exactly the message's length
  Nanos posted = 0;  // time of the call
  Nanos timeout = kNever;
  std::shared_ptr<std::atomic<Member>> source;  // receive: set to the sender; may be null
  // Receive only: called about every `completed_step` bytes with the number of bytes that are here,
  // from the start. `done` reports the complete message. May be empty.
  std::function<void(uint64_t bytes)> on_completed;
  size_t completed_step = 1;
  std::function<void(const Status&)> done;
};

class Messages {
 public:
  // `link` and `ingress` (the lane's) outlive this.
  Messages(MessageLink& link, const MessageLink::Facts& facts, const IngressShare& ingress);

  // Always ends in exactly one call of post.done (MessageLink::end).
  void post(MessagePost post, Nanos now);
  using Frame = wire::FrameHeader;
  void on_frame(const Frame& header, ConstBytes body);
  // on_lent: the message may be copied from `place` (MessageLink::lend). on_copied: its copy is
  // done.
  void on_lent(Member from, uint32_t number, uint32_t tag, uint64_t total, uint64_t place);
  void on_copied(Member from, uint32_t number);
  // Grants and sends as much as the limits allow, and copies lent messages unless `copies` is
  // false. Returns true if more can be done at once.
  bool pump(bool copies = true);
  // The member will send nothing more: the group fails if a send or receive needs it.
  void on_peer_down(Member peer, bool graceful, Nanos now);
  // A frame of this member has arrived.
  void heard(Member member, Nanos now) { watch_.heard(member, now); }
  // Checks time limits, and pings awaited members so that their death is noticed. Fails the group
  // if one is silent for too long. `drained`: everything that had arrived was read.
  void drive(Nanos now, bool drained);
  Nanos deadline() const;
  // The group has failed: ends all sends and receives with its reason.
  void on_failure(const Status& why);

  // Number of unfinished sends and receives.
  size_t unfinished() const { return posts_.size(); }
  // Describes the oldest of them for errors; empty if there is none.
  std::string unfinished_text() const;
  // Ranks that an unfinished send or receive needs and that are not gone, ascending.
  std::vector<Member> awaited() const;

 private:
  // A message that arrives, as far as its data is here.
  struct Come {
    uint32_t number = 0;
    uint64_t total = 0;
    ConstBytes bytes;               // received with the head
    std::optional<uint64_t> place;  // where it may be copied from
  };
  struct Held {
    uint64_t total = 0;
    std::vector<std::byte> bytes;
    std::optional<uint64_t> place;
  };
  struct Copy {
    uint32_t number = 0;
    uint64_t receive = 0, place = 0, here = 0;
  };
  struct Peer {
    explicit Peer(const P2pParams& params) : out(params), in(params) {}
    P2pSender out;
    P2pReceiver in;
    std::unordered_map<uint32_t, Held> held;       // by number: messages that no receive has taken
    std::unordered_map<uint32_t, uint64_t> taken;  // by number: the receive; incomplete
    std::unordered_map<uint32_t, uint64_t> lent;   // by number: the send; not copied yet
    std::deque<Copy> copies;                       // to be made, in the order of the receives
    Nanos departed_until = kNever;  // it closed in order; news from it may still arrive
  };

  Peer& peer(Member member);
  void arrive(Member from, uint32_t tag, const Come& message);
  void take(Member from, uint64_t receive, const Come& message);
  void place(uint64_t receive, uint64_t offset, ConstBytes bytes);
  static void raise_completed(const MessagePost& post, uint64_t before, uint64_t after);
  void finish(uint64_t id, const Status& status);
  void on_head(const Frame& header, ConstBytes body);
  void on_data(const Frame& header, ConstBytes body);
  void on_news(const Frame& header, ConstBytes body);
  void broke(Member from, uint32_t number, const char* what);
  void grant();
  bool send_pieces();
  bool copy_pieces();
  void send(Member to, const P2pSender::Piece& piece);
  void ask(Nanos now);
  bool needs(Member member) const;
  // Fails the group if a send or a receive can never end because this member is gone.
  void miss(Member member);
  std::string text(const MessagePost& post) const;
  Status timeout(const MessagePost& post) const;

  MessageLink& link_;
  const MessageLink::Facts facts_;
  const IngressShare& ingress_;
  const P2pParams params_;
  MatchQueue queue_;
  std::map<Member, Peer> peers_;                 // peers of past and present messages
  std::map<uint64_t, MessagePost> posts_;        // by id: unfinished
  std::set<std::pair<Nanos, uint64_t>> limits_;  // of posts_: time limit, id
  std::set<Member> sending_, asking_, copying_;  // peers that have work to do
  // Peers served last: by a piece, by a grant, by copying a piece.
  Member sent_ = kNoMember, asked_ = kNoMember, copied_ = kNoMember;
  uint64_t outstanding_ = 0;  // granted and not yet received, over all peers
  uint64_t ids_ = 0;
  bool lost_ = false;             // some member is gone without closing in order
  Member last_gone_ = kNoMember;  // that member; otherwise the last that closed
  // Awaited members, as of the last check. While there are posts, each quarter of the limit
  // determines them anew and pings them.
  Liveness watch_;
  Nanos look_ = kNever;
};

}  // namespace mcast
