// Messages: what one rank sends to one other, by send and receive, beside the group's operations.
// They are no operations: not all ranks call them, so they have numbers of their own for each
// ordered pair of ranks, and nothing of them is reported up the tree. They travel between the two
// alone: by streams, or among ranks of one host by shared memory (message_link.h).
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

// What a send or a receive hands to the group.
struct MessagePost {
  bool receives = false;
  Member peer = kNoMember;  // the other rank; of a receive kNoMember: any
  uint32_t tag = 0;
  Slice memory;      // that is sent; that is received, of the message's length exactly
  Nanos posted = 0;  // when
  Nanos timeout = kNever;
  std::shared_ptr<std::atomic<Member>> source;  // of a receive: who has sent it. May be null
  // Of a receive: so many bytes from its start are there, about every `completed_step` bytes; that
  // all are `done` says. May be empty.
  std::function<void(uint64_t bytes)> on_completed;
  size_t completed_step = 1;
  std::function<void(const Status&)> done;
};

class Messages {
 public:
  // `link`, `ingress` (the lane's) outlive this.
  Messages(MessageLink& link, const MessageLink::Facts& facts, const IngressShare& ingress);

  // Always ends in exactly one call of post.done (MessageLink::end).
  void post(MessagePost post, Nanos now);
  using Frame = wire::FrameHeader;
  void on_frame(const Frame& header, ConstBytes body);
  // A message whose memory may be copied from `place` (MessageLink::lend); one that was copied.
  void on_lent(Member from, uint32_t number, uint32_t tag, uint64_t total, uint64_t place);
  void on_copied(Member from, uint32_t number);
  // Grants and sends what may be, and copies what is lent unless `copies` is false. True: more can
  // be done at once.
  bool pump(bool copies = true);
  // Nothing comes from this member any more: who waits for it fails the group.
  void on_peer_down(Member peer, bool graceful, Nanos now);
  // A frame has come from this member.
  void heard(Member member, Nanos now) { watch_.heard(member, now); }
  // Limits of time; words to those that are waited for, so that their end is noticed. Who is silent
  // for too long fails the group; `drained`: all that has come was read.
  void drive(Nanos now, bool drained);
  Nanos deadline() const;
  // The group has failed: all end with its reason.
  void on_failure(const Status& why);

  // Sends and receives that are not over.
  size_t unfinished() const { return posts_.size(); }
  // The oldest of them, as in errors; empty if there is none.
  std::string unfinished_text() const;
  // The ranks that one of them waits for, and that are not gone; ascending.
  std::vector<Member> awaited() const;

 private:
  // A message that has come, as far as it is here.
  struct Come {
    uint32_t number = 0;
    uint64_t total = 0;
    ConstBytes bytes;               // that came with the head
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
    std::unordered_map<uint32_t, Held> held;       // by number: no receive has taken it
    std::unordered_map<uint32_t, uint64_t> taken;  // by which receive: some of it is to come
    std::unordered_map<uint32_t, uint64_t> lent;   // by which send: it is not copied yet
    std::deque<Copy> copies;                       // to make, in the order of the receives
    Nanos departed_until = kNever;  // it closed in order; its last words may still be on their way
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
  // Fails the group if a send or a receive can never end, now that this member is gone.
  void miss(Member member);
  std::string text(const MessagePost& post) const;
  Status timeout(const MessagePost& post) const;

  MessageLink& link_;
  const MessageLink::Facts facts_;
  const IngressShare& ingress_;
  const P2pParams params_;
  MatchQueue queue_;
  std::map<Member, Peer> peers_;                 // that there was something for or from
  std::map<uint64_t, MessagePost> posts_;        // by id: not over
  std::set<std::pair<Nanos, uint64_t>> limits_;  // of those: when, id
  std::set<Member> sending_, asking_, copying_;  // peers to look at
  // Who had the last piece, the last grant, the last piece that was copied.
  Member sent_ = kNoMember, asked_ = kNoMember, copied_ = kNoMember;
  uint64_t outstanding_ = 0;  // granted and not here, of all peers
  uint64_t ids_ = 0;
  bool lost_ = false;             // somebody, not in order
  Member last_gone_ = kNoMember;  // who; else who closed last
  // Members that are waited for, as of the last look. Each quarter of the limit, while there are
  // posts, these are found anew and asked for a word.
  Liveness watch_;
  Nanos look_ = kNever;
};

}  // namespace mcast
