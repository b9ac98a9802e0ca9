// send and receive over the streams between two ranks (docs/point-to-point.md).
//   1. A message begins with a head, which has its tag and its length; the first 32 KiB come
//      with it while the receiver is known to have room for such.
//   2. The receiver finds the receive that takes it, or keeps the head and what came with it.
//   3. Of what a receive has taken the receiver grants the rest, a window of it at a time, all
//      senders together at most `incast` bytes, those whose receive took first before others.
//   4. A send is over when all of it has left, a receive when all of it is here.
// Cost: every message crosses the network once, and is copied once more where it came before its
// receive. One step where it is short.
#include "collective/messages.h"

#include <algorithm>
#include <cstring>

#include "base/reach.h"
#include "base/streaming_copy.h"
#include "collective/membership.h"

namespace mcast {
namespace {

constexpr uint64_t kUnaskedMessage = 32u << 10;    // bytes with a head, at most
constexpr uint64_t kUnaskedMessages = 128u << 10;  // that a rank keeps for another, at most
constexpr uint64_t kMostHeads = 1u << 16;          // likewise, messages
constexpr size_t kPeerBacklog = 256u << 10;        // bytes waiting for one rank's connection
constexpr int kMostPieces = 64;                    // in a turn,
constexpr size_t kMostBytes = 512u << 10;          // then the receive side gets its turn
constexpr Nanos kLastWords = kSecond;

P2pParams params_for(size_t incast) {
  P2pParams params;
  params.unasked = kUnaskedMessage;
  params.account = kUnaskedMessages;
  params.heads = kMostHeads;
  params.piece = kMaxSegment;
  params.window = std::max<uint64_t>(incast / 2, kMaxSegment);
  return params;
}

// The first of `members` behind `last`, in a circle, of which `use` makes something; it may take
// that one out.
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

Messages::Messages(GroupContext& context, const IngressShare& ingress)
    : g_(context),
      ingress_(ingress),
      params_(params_for(context.params.agreed.incast)),
      awaited_(context.params.liveness_limit) {}

Messages::Peer& Messages::peer(Member member) {
  return peers_.try_emplace(member, params_).first->second;
}

void Messages::post(MessagePost p, Nanos now) {
  const uint64_t id = ids_++;
  const Member other = p.peer;
  const uint32_t tag = p.tag;
  const uint64_t total = p.memory.length;
  const bool receives = p.receives;
  if (p.timeout < kNever - p.posted) limits_.emplace(p.posted + p.timeout, id);
  if (posts_.empty()) awaited_.begin(now);
  posts_.emplace(id, std::move(p));
  if (g_.failed()) return finish(id, g_.failure());
  if (!receives) {
    peer(other).out.post(id, tag, total);
    sending_.insert(other);
    (void)pump();
  } else if (const auto message = queue_.post(id, other, tag)) {
    const auto held = peer(message->source).held.extract(message->number);
    take(message->source, message->number, id, held.mapped().total, held.mapped().bytes);
    grant();
  }
  // Of who has just closed in order what was sent before may still come.
  if (other != kNoMember && !g_.gone[other].ok() && peer(other).departed_until == kNever) {
    miss(other);
  }
  if (other == kNoMember && last_gone_ != kNoMember) miss(last_gone_);
}

void Messages::take(Member from, uint32_t number, uint64_t receive, uint64_t total,
                    ConstBytes bytes) {
  Peer& p = peer(from);
  const MessagePost& post = posts_.at(receive);
  if (post.memory.length != total) {
    g_.counters.add(Counter::mismatched);
    return g_.fail(Status(Code::kMismatch, "rank " + std::to_string(from) + " has sent " +
                                               std::to_string(total) + " bytes to " + text(post)),
                   from);
  }
  if (post.source) post.source->store(from, std::memory_order_release);
  place(receive, 0, bytes);
  const auto verdict = p.in.take(number);
  if (const auto credit = p.in.credit()) {
    wire::Writer body;
    wire::put_message_credit(body, {credit->heads, credit->bytes});
    g_.send_frame(from, Channel::kReduce, wire::FrameType::kMessageCredit, 0, 0, body.bytes());
  }
  if (verdict == P2pReceiver::Verdict::kComplete) return finish(receive, {});
  p.taken.emplace(number, receive);
  asking_.insert(from);
}

void Messages::place(uint64_t receive, uint64_t offset, ConstBytes bytes) {
  if (bytes.empty()) return;
  std::memcpy(posts_.at(receive).memory.data() + offset, bytes.data(), bytes.size());
}

// The memory is the caller's again.
void Messages::finish(uint64_t id, const Status& status) {
  auto node = posts_.extract(id);
  MessagePost& p = node.mapped();
  if (p.timeout < kNever - p.posted) limits_.erase({p.posted + p.timeout, id});
  if (posts_.empty()) awaited_.end();
  if (status.ok())
    g_.counters.add(p.receives ? Counter::messages_received : Counter::messages_sent);
  if (p.done) {
    g_.ended.emplace_back(std::move(p.done), status.ok() ? status : status.with_context(text(p)));
  }
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
    return broke(header, "a message that may not begin so");
  }
  g_.counters.add(Counter::message_bytes_received, head.payload.size());
  if (const auto receive = queue_.arrive({from, header.sequence}, header.argument)) {
    return take(from, header.sequence, *receive, head.total, head.payload);
  }
  g_.counters.add(Counter::messages_kept);
  p.held.emplace(header.sequence, Held{head.total, {head.payload.begin(), head.payload.end()}});
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
    return broke(header, "a piece of a message that was not asked for");
  }
  outstanding_ -= before - p.in.outstanding();
  g_.counters.add(Counter::message_bytes_received, data.payload.size());
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
  if (!taken) return broke(header, "news of a message that was not sent");
  sending_.insert(header.member);
}

void Messages::broke(const Frame& header, const char* what) {
  g_.counters.add(Counter::malformed);
  g_.fail(Status(Code::kInternal, "rank " + std::to_string(header.member) +
                                      " broke the protocol of message " +
                                      std::to_string(header.sequence) + ": " + what),
          header.member);
}

bool Messages::pump() {
  grant();
  return send_pieces();
}

void Messages::grant() {
  const uint64_t most = ingress_.window(std::max<uint64_t>(g_.params.agreed.incast, kMaxSegment));
  const auto one = [&](Member from) {
    P2pReceiver& in = peer(from).in;
    const auto grant = in.grant(most - outstanding_);
    if (!in.asking()) asking_.erase(from);
    if (!grant) return false;
    wire::Writer body;
    wire::put_message_grant(body, grant->end);
    g_.send_frame(from, Channel::kReduce, wire::FrameType::kMessageGrant, grant->number, 0,
                  body.bytes());
    asked_ = from;
    return true;
  };
  // Little by little only where nothing would come otherwise.
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
    if (g_.port.queued(to, Channel::kReduce) >= kPeerBacklog) {
      MCAST_REACH(message_queue_full);
      return false;
    }
    const auto readable = [&](uint64_t id) -> uint64_t {
      const Slice& memory = posts_.at(id).memory;
      if (!memory.region) return memory.length;
      const uint64_t ready = memory.region->readable();
      return std::min<uint64_t>(memory.length, ready - std::min<uint64_t>(ready, memory.offset));
    };
    const auto piece = out.next(readable);
    if (!piece) return false;
    bytes += piece->bytes;
    sent_ = to;
    send(to, *piece);
    return true;
  };
  while (!sending_.empty() && !g_.failed()) {
    if (pieces++ == kMostPieces || bytes >= kMostBytes) return true;
    if (!in_turn(sending_, sent_, use)) return false;
  }
  return false;
}

void Messages::send(Member to, const P2pSender::Piece& piece) {
  wire::Writer head;
  wire::put_message_head(head, piece.head ? piece.total : piece.offset);
  const ConstBytes payload = posts_.at(piece.id).memory.bytes().subspan(piece.offset, piece.bytes);
  g_.send_frame(to, Channel::kReduce,
                piece.head ? wire::FrameType::kMessage : wire::FrameType::kMessageData,
                piece.number, piece.head ? piece.tag : 0, head.bytes(), payload);
  g_.counters.add(Counter::message_bytes_sent, piece.bytes);
  if (peer(to).out.sent(piece)) finish(piece.id, {});
}

bool Messages::needs(Member member) const {
  const auto p = peers_.find(member);
  return (p != peers_.end() && (!p->second.out.idle() || p->second.in.incomplete() > 0)) ||
         queue_.awaits(member);
}

// A receive from any source is served as long as somebody is left, unless one was lost: what it
// waits for may have been that one's.
void Messages::miss(Member member) {
  const auto left =
      std::count_if(g_.gone.begin(), g_.gone.end(), [](const Status& why) { return why.ok(); });
  const bool any = queue_.awaits(MatchQueue::kAnySource) && (lost_ || left == 1);
  if (any || needs(member)) g_.fail(g_.gone[member], member);
}

void Messages::on_peer_down(Member member, bool graceful, Nanos now) {
  if (g_.failed() || g_.gone[member].ok()) return;
  awaited_.forget(member);
  if (!lost_) last_gone_ = member;
  if (graceful) {
    peer(member).departed_until = now + kLastWords;
    return;
  }
  lost_ = true;
  miss(member);
}

void Messages::drive(Nanos now, bool drained) {
  awaited_.on_poll(now);
  if (!limits_.empty() && limits_.begin()->first <= now) {
    const MessagePost& late = posts_.at(limits_.begin()->second);
    return g_.fail(timeout(late), late.peer);
  }
  for (auto& [member, p] : peers_) {
    if (now < p.departed_until) continue;
    p.departed_until = kNever;
    miss(member);
  }
  if (awaited_.due(now)) ask(now);
  const auto silent = drained ? awaited_.silent(now) : std::nullopt;
  if (silent && !g_.failed()) {
    g_.fail(silence_of(silent->first, silent->second, g_.params.liveness_limit), silent->first);
  }
}

void Messages::ask(Nanos now) {
  const bool all = queue_.awaits(MatchQueue::kAnySource);
  std::vector<Member> asked;
  for (uint32_t m = 0; m < g_.size; m++) {
    const auto member = static_cast<Member>(m);
    if (!g_.reachable(member) || !(all || needs(member))) continue;
    g_.counters.add(Counter::pings_sent);
    g_.send_frame(member, Channel::kControl, wire::FrameType::kPing, g_.ops.base(), 0);
    asked.push_back(member);
  }
  awaited_.ask_all(asked, now);
}

Nanos Messages::deadline() const {
  Nanos next = awaited_.deadline();
  if (!limits_.empty()) next = std::min(next, limits_.begin()->first);
  for (const auto& [member, p] : peers_) next = std::min(next, p.departed_until);
  return next;
}

void Messages::on_failure(const Status& why) {
  while (!posts_.empty()) finish(posts_.begin()->first, why);
  peers_.clear();
  sending_.clear();
  asking_.clear();
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
         " (group '" + g_.params.name + "', rank " + std::to_string(g_.self) + ")";
}

Status Messages::timeout(const MessagePost& p) const {
  return Status(Code::kTimeout,
                text(p) + " is not over after " + seconds_text(p.timeout) +
                    (p.receives ? ": no such message has come" : ": no receive has taken it"));
}

}  // namespace mcast
