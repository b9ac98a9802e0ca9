// send and receive between two ranks (docs/point-to-point.md).
//   1. A message begins with a head that has its tag and its length. Its first 32 KiB follow the
//      head while the receiver is known to have room for them.
//   2. The receiver matches the head with a receive, or stores the head and the data sent with it.
//   3. The receiver grants the rest of a matched message, a window at a time. All senders together
//      have at most `incast` bytes; messages that were matched first are served first.
//   4. A send is complete when all data has been sent, a receive when all data is here.
// If members can read each other's memory, a long message is lent instead:
//   1. Its head gives its address; no data is sent with it.
//   2. The matching receive copies it, in pieces, alternating between senders, and reports that to
//      the sender.
//   3. The send is complete when that report arrives.
// Cost: every message crosses the network once, and is copied once more if it arrives before its
// receive. One step if it is short; a lent message takes one frame in each direction.
#include "collective/messages.h"

#include <algorithm>
#include <cstring>

#include "collective/membership.h"

namespace mcast {
namespace {

constexpr uint64_t kUnaskedMessage = 32u << 10;    // most bytes sent with a head
constexpr uint64_t kUnaskedMessages = 128u << 10;  // most bytes that a rank stores for another
constexpr uint64_t kMostHeads = 1u << 16;          // most messages that a rank stores for another
constexpr int kMostPieces = 64;                    // in a poll,
constexpr size_t kMostBytes = 512u << 10;          // then the receive side is polled
constexpr size_t kCopied = 512u << 10;  // bytes of a lent message that are copied at once
constexpr Nanos kLastWords = kSecond;

P2pParams params_for(const MessageLink::Facts& facts) {
  P2pParams params;
  params.unasked = std::min(kUnaskedMessage, facts.piece);
  params.account = kUnaskedMessages;
  params.heads = kMostHeads;
  params.piece = facts.piece;
  params.window = std::max(facts.incast / 2, facts.piece);
  return params;
}

// Applies `use` to the first of `members` behind `last`, in circular order, for which it returns
// true. `use` may remove that member.
template <typename Use>
bool in_turn(const std::set<Member>& members, Member last, Use&& use) {
  for (size_t left = members.size(); left > 0; left--) {
    auto next = members.upper_bound(last);
    if (next == members.end()) next = members.begin();
    last = *next;
    if (use(last)) return true;
  }
  return false;
}

}  // namespace

Messages::Messages(MessageLink& link, const MessageLink::Facts& facts, const IngressShare& ingress)
    : link_(link),
      facts_(facts),
      ingress_(ingress),
      params_(params_for(facts)),
      watch_({}, facts.liveness_limit, facts.liveness_limit / 4) {}

Messages::Peer& Messages::peer(Member member) {
  return peers_.try_emplace(member, params_).first->second;
}

void Messages::post(MessagePost p, Nanos now) {
  const uint64_t id = ids_++;
  const Member other = p.peer;
  const uint32_t tag = p.tag;
  const bool receives = p.receives;
  // A lent message counts as one without bytes in the order of the heads.
  const uint64_t bytes = !receives && link_.lends(p.memory) ? 0 : p.memory.length;
  if (p.timeout < kNever - p.posted) limits_.emplace(p.posted + p.timeout, id);
  if (posts_.empty()) {
    watch_.set_active(true, now);
    look_ = now + facts_.liveness_limit / 4;
  }
  posts_.emplace(id, std::move(p));
  if (!link_.failed_for().ok()) return finish(id, link_.failed_for());
  if (!receives) {
    peer(other).out.post(id, tag, bytes);
    sending_.insert(other);
    (void)pump(false);
  } else if (const auto message = queue_.post(id, other, tag)) {
    const auto node = peer(message->source).held.extract(message->number);
    const Held& held = node.mapped();
    take(message->source, id, {message->number, held.total, held.bytes, held.place});
    grant();
  }
  // Data that a peer sent before it closed in order may still arrive.
  if (other != kNoMember && !link_.end_of(other).ok() && peer(other).departed_until == kNever) {
    miss(other);
  }
  const bool gone = other == kNoMember && last_gone_ != kNoMember;
  if (gone && peer(last_gone_).departed_until == kNever) miss(last_gone_);
}

void Messages::arrive(Member from, uint32_t tag, const Come& message) {
  if (const auto receive = queue_.arrive({from, message.number}, tag)) {
    return take(from, *receive, message);
  }
  link_.counts().add(Counter::messages_kept);
  const ConstBytes bytes = message.bytes;
  peer(from).held.emplace(message.number,
                          Held{message.total, {bytes.begin(), bytes.end()}, message.place});
}

void Messages::take(Member from, uint64_t receive, const Come& message) {
  Peer& p = peer(from);
  const MessagePost& post = posts_.at(receive);
  if (post.memory.length != message.total) {
    link_.counts().add(Counter::mismatched);
    return link_.fail_for(
        Status(Code::kMismatch, "rank " + std::to_string(from) + " has sent " +
                                    std::to_string(message.total) + " bytes to " + text(post)),
        from);
  }
  if (post.source) post.source->store(from, std::memory_order_release);
  place(receive, 0, message.bytes);
  const auto verdict = p.in.take(message.number);
  if (const auto credit = p.in.credit()) {
    wire::Writer body;
    wire::put_message_credit(body, {credit->heads, credit->bytes});
    link_.send_message(from, wire::FrameType::kMessageCredit, 0, 0, body.bytes());
  }
  if (message.place) {
    p.copies.push_back({message.number, receive, *message.place, 0});
    copying_.insert(from);
    return;
  }
  if (verdict == P2pReceiver::Verdict::kComplete) return finish(receive, {});
  p.taken.emplace(message.number, receive);
  asking_.insert(from);
}

void Messages::place(uint64_t receive, uint64_t offset, ConstBytes bytes) {
  if (bytes.empty()) return;
  const MessagePost& post = posts_.at(receive);
  std::memcpy(post.memory.data() + offset, bytes.data(), bytes.size());
  raise_completed(post, offset, offset + bytes.size());
}

// Bytes received in order (P2pReceiver), or copied in order.
void Messages::raise_completed(const MessagePost& post, uint64_t before, uint64_t after) {
  if (!post.on_completed || after == post.memory.length) return;
  const size_t step = std::max<size_t>(1, post.completed_step);
  if (after / step > before / step) post.on_completed(after);
}

// The memory is the caller's again.
void Messages::finish(uint64_t id, const Status& status) {
  auto node = posts_.extract(id);
  MessagePost& p = node.mapped();
  if (p.timeout < kNever - p.posted) limits_.erase({p.posted + p.timeout, id});
  if (posts_.empty()) {
    watch_.set_active(false, 0);
    look_ = kNever;
  }
  if (status.ok())
    link_.counts().add(p.receives ? Counter::messages_received : Counter::messages_sent);
  if (p.done) link_.end(std::move(p.done), status.ok() ? status : status.with_context(text(p)));
}

void Messages::on_frame(const Frame& header, ConstBytes body) {
  using T = wire::FrameType;
  if (header.type == T::kMessage) return on_head(header, body);
  if (header.type == T::kMessageData) return on_data(header, body);
  on_news(header, body);
}

void Messages::on_head(const Frame& header, ConstBytes body) {
  const Member from = header.member;
  Peer& p = peer(from);
  wire::MessageHead head;
  if (!wire::parse_message_head(body, head) ||
      p.in.on_head(header.sequence, head.total, head.payload.size()) ==
          P2pReceiver::Verdict::kBroken) {
    return broke(from, header.sequence, "a message with an invalid beginning");
  }
  link_.counts().add(Counter::message_bytes_received, head.payload.size());
  arrive(from, header.argument, {header.sequence, head.total, head.payload, std::nullopt});
}

void Messages::on_lent(Member from, uint32_t number, uint32_t tag, uint64_t total, uint64_t place) {
  if (peer(from).in.on_head(number, 0, 0) == P2pReceiver::Verdict::kBroken) {
    return broke(from, number, "a message with an invalid beginning");
  }
  arrive(from, tag, {number, total, {}, place});
}

void Messages::on_copied(Member from, uint32_t number) {
  const auto send = peer(from).lent.extract(number);
  if (send.empty()) return broke(from, number, "a reply to a message that was not sent");
  link_.counts().add(Counter::message_bytes_sent, posts_.at(send.mapped()).memory.length);
  finish(send.mapped(), {});
}

void Messages::on_data(const Frame& header, ConstBytes body) {
  Peer& p = peer(header.member);
  wire::MessageData data;
  const uint64_t before = p.in.outstanding();
  const auto receive = p.taken.find(header.sequence);
  const auto verdict = wire::parse_message_data(body, data) && receive != p.taken.end()
                           ? p.in.on_data(header.sequence, data.offset, data.payload.size())
                           : P2pReceiver::Verdict::kBroken;
  if (verdict == P2pReceiver::Verdict::kBroken) {
    return broke(header.member, header.sequence, "a piece of a message that was not asked for");
  }
  outstanding_ -= before - p.in.outstanding();
  link_.counts().add(Counter::message_bytes_received, data.payload.size());
  place(receive->second, data.offset, data.payload);
  if (verdict != P2pReceiver::Verdict::kComplete) return;
  const uint64_t id = receive->second;
  p.taken.erase(receive);
  finish(id, {});
}

void Messages::on_news(const Frame& header, ConstBytes body) {
  Peer& p = peer(header.member);
  wire::MessageCredit credit;
  uint64_t end = 0;
  const bool taken =
      header.type == wire::FrameType::kMessageGrant
          ? wire::parse_message_grant(body, end) && p.out.on_grant(header.sequence, end)
          : wire::parse_message_credit(body, credit) && p.out.on_credit(credit.heads, credit.bytes);
  if (!taken)
    return broke(header.member, header.sequence, "a reply to a message that was not sent");
  sending_.insert(header.member);
}

void Messages::broke(Member from, uint32_t number, const char* what) {
  link_.counts().add(Counter::malformed);
  link_.fail_for(
      Status(Code::kInternal, "rank " + std::to_string(from) + " broke the protocol of message " +
                                  std::to_string(number) + ": " + what),
      from);
}

bool Messages::pump(bool copies) {
  grant();
  const bool more = send_pieces();
  if (copying_.empty()) return more;
  return !copies || copy_pieces() || more;
}

void Messages::grant() {
  const uint64_t most = ingress_.window(std::max(facts_.incast, facts_.piece));
  const auto one = [&](Member from) {
    P2pReceiver& in = peer(from).in;
    const auto grant = in.grant(most - outstanding_);
    if (!in.asking()) asking_.erase(from);
    if (!grant) return false;
    wire::Writer body;
    wire::put_message_grant(body, grant->end);
    link_.send_message(from, wire::FrameType::kMessageGrant, grant->number, 0, body.bytes());
    asked_ = from;
    return true;
  };
  // Grants partial pieces only if nothing would arrive otherwise.
  const auto room = [&] { return outstanding_ == 0 || outstanding_ + params_.piece <= most; };
  while (!asking_.empty() && room()) {
    const auto use = [&](Member from) {
      const uint64_t before = peer(from).in.outstanding();
      const bool granted = one(from);
      outstanding_ += peer(from).in.outstanding() - before;
      return granted;
    };
    if (!in_turn(asking_, asked_, use)) return;
  }
}

bool Messages::send_pieces() {
  int pieces = 0;
  size_t bytes = 0;
  const auto use = [&](Member to) {
    P2pSender& out = peer(to).out;
    if (!out.may_send()) {
      sending_.erase(to);
      return false;
    }
    const auto readable = [&](uint64_t id) -> uint64_t {
      const Slice& memory = posts_.at(id).memory;
      if (!memory.region) return memory.length;
      const uint64_t ready = memory.region->readable();
      return std::min<uint64_t>(memory.length, ready - std::min<uint64_t>(ready, memory.offset));
    };
    const auto piece = out.next(readable);
    if (!piece || !link_.takes(to, piece->bytes)) return false;
    bytes += piece->bytes;
    sent_ = to;
    send(to, *piece);
    return true;
  };
  while (!sending_.empty() && link_.failed_for().ok()) {
    if (pieces++ == kMostPieces || bytes >= kMostBytes) return true;
    if (!in_turn(sending_, sent_, use)) return false;
  }
  return false;
}

void Messages::send(Member to, const P2pSender::Piece& piece) {
  const Slice& memory = posts_.at(piece.id).memory;
  if (piece.head && piece.total != memory.length) {
    link_.lend(to, piece.number, piece.tag, memory);
    peer(to).lent.emplace(piece.number, piece.id);
    (void)peer(to).out.sent(piece);
    return;
  }
  wire::Writer head;
  wire::put_message_head(head, piece.head ? piece.total : piece.offset);
  link_.send_message(to, piece.head ? wire::FrameType::kMessage : wire::FrameType::kMessageData,
                     piece.number, piece.head ? piece.tag : 0, head.bytes(),
                     memory.bytes().subspan(piece.offset, piece.bytes));
  link_.counts().add(Counter::message_bytes_sent, piece.bytes);
  if (peer(to).out.sent(piece)) finish(piece.id, {});
}

// Copies one piece. The next one, of the same or another sender, is left for the next poll.
bool Messages::copy_pieces() {
  const auto use = [&](Member from) {
    std::deque<Copy>& copies = peer(from).copies;
    Copy& copy = copies.front();
    const MessagePost& post = posts_.at(copy.receive);
    const Slice& memory = post.memory;
    const size_t bytes = std::min<uint64_t>(kCopied, memory.length - copy.here);
    copied_ = from;
    if (!link_.copy(from, copy.place + copy.here, memory.data() + copy.here, bytes, memory.length))
      return true;
    link_.counts().add(Counter::message_bytes_received, bytes);
    copy.here += bytes;
    raise_completed(post, copy.here - bytes, copy.here);
    if (copy.here < memory.length) return true;
    link_.copied(from, copy.number);
    finish(copy.receive, {});
    copies.pop_front();
    if (copies.empty()) copying_.erase(from);
    return true;
  };
  if (link_.failed_for().ok()) (void)in_turn(copying_, copied_, use);
  return !copying_.empty();
}

bool Messages::needs(Member member) const {
  const auto p = peers_.find(member);
  const auto busy = [](const Peer& other) {
    return !other.out.idle() || other.in.incomplete() > 0 || !other.lent.empty() ||
           !other.copies.empty();
  };
  return (p != peers_.end() && busy(p->second)) || queue_.awaits(member);
}

// A receive from any source can still complete while any peer is left, unless one was lost: the
// awaited message may have been from that peer.
void Messages::miss(Member member) {
  uint32_t left = 0;
  for (uint32_t m = 0; m < facts_.size; m++) left += link_.end_of(static_cast<Member>(m)).ok();
  const bool any = queue_.awaits(MatchQueue::kAnySource) && (lost_ || left == 1);
  if (any || needs(member)) link_.fail_for(link_.end_of(member), member);
}

void Messages::on_peer_down(Member member, bool graceful, Nanos now) {
  if (!link_.failed_for().ok() || link_.end_of(member).ok()) return;
  watch_.forget(member);
  if (!lost_) last_gone_ = member;
  if (graceful) {
    peer(member).departed_until = now + kLastWords;
    return;
  }
  lost_ = true;
  miss(member);
}

void Messages::drive(Nanos now, bool drained) {
  watch_.on_poll(now);
  if (!limits_.empty() && limits_.begin()->first <= now) {
    const MessagePost& late = posts_.at(limits_.begin()->second);
    return link_.fail_for(timeout(late), late.peer);
  }
  for (auto& [member, p] : peers_) {
    if (now < p.departed_until) continue;
    p.departed_until = kNever;
    miss(member);
  }
  if (now >= look_) ask(now);
  const Member silent = drained ? watch_.silent(now) : kNoMember;
  if (silent != kNoMember && link_.failed_for().ok()) {
    link_.fail_for(silence_of(silent, watch_.silence(silent, now), facts_.liveness_limit), silent);
  }
}

std::vector<Member> Messages::awaited() const {
  std::vector<Member> members;
  const bool all = queue_.awaits(MatchQueue::kAnySource);
  for (uint32_t m = 0; m < facts_.size; m++) {
    const auto member = static_cast<Member>(m);
    const bool there = member != facts_.self && link_.end_of(member).ok();
    if (there && (all || needs(member))) members.push_back(member);
  }
  return members;
}

void Messages::ask(Nanos now) {
  std::vector<Member> asked = awaited();
  std::erase_if(asked, [&](Member member) { return !link_.ask(member); });
  watch_.watch_only(std::move(asked), now);
  look_ = now + facts_.liveness_limit / 4;
}

Nanos Messages::deadline() const {
  Nanos next = std::min(look_, watch_.deadline());
  if (!limits_.empty()) next = std::min(next, limits_.begin()->first);
  for (const auto& [member, p] : peers_) next = std::min(next, p.departed_until);
  return next;
}

void Messages::on_failure(const Status& why) {
  while (!posts_.empty()) finish(posts_.begin()->first, why);
  peers_.clear();
  sending_.clear();
  asking_.clear();
  copying_.clear();
  queue_ = {};
  outstanding_ = 0;
}

std::string Messages::unfinished_text() const {
  return posts_.empty() ? "" : text(posts_.begin()->second);
}

// "recv of 100 bytes with tag 3 from rank 2 (group 'job', rank 0)"
std::string Messages::text(const MessagePost& p) const {
  const std::string other = p.peer == kNoMember ? "any rank" : "rank " + std::to_string(p.peer);
  return std::string(p.receives ? "recv" : "send") + " of " + std::to_string(p.memory.length) +
         " bytes with tag " + std::to_string(p.tag) + (p.receives ? " from " : " to ") + other +
         " (group '" + facts_.group + "', rank " + std::to_string(facts_.self) + ")";
}

Status Messages::timeout(const MessagePost& p) const {
  return Status(Code::kTimeout,
                text(p) + " did not finish within " + seconds_text(p.timeout) +
                    (p.receives ? ": no such message has arrived" : ": no receive has taken it"));
}

}  // namespace mcast
