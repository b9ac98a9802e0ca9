// 1. A frame becomes a record in the ring to its receiver. The sender then sets its mark on the
//   receiver's board, and wakes the receiver if that sleeps and waits: at the end of its turn, so
//   that a batch is one wake-up, or before it copies.
// 2. The receiver clears the marks, and reads the rings that had one, up to a limit for each.
// 3. If there is no room, the sender waits: it makes no more pieces of messages, and queues control
//   records (grants, credit, "copied") in order. It then wakes even a receiver that waits for
//   nothing, so that it makes room.
// 4. Long messages do not go through a ring if all ranks can read each other's memory: the record
//   contains only the head and the place of the data.
// Cost: through the ring a byte is copied twice, in pieces that stay in the cache; lent, once.
#include "shm/messages.h"

#include <algorithm>
#include <cstring>

#include "base/fence.h"
#include "base/streaming_copy.h"
#include "shm/failure_record.h"

namespace mcast {
namespace {

// Messages of this length and more are lent: below it a second copy costs less than a notification
// in each direction.
constexpr uint64_t kLent = 96u << 10;
// Bytes that a rank has requested and not received, if not lent.
constexpr uint64_t kWindow = 2u << 20;
constexpr int kRecords = 64;           // records read from one ring before the others are read
constexpr size_t kUntold = 64u << 10;  // bytes written in a turn before the receiver is woken

// Types of records besides those of frames.
enum Own : uint8_t { kLentMessage = 1, kCopiedMessage = 2 };
static_assert(static_cast<uint8_t>(wire::FrameType::kMessage) > kCopiedMessage);

struct LentBody {
  uint64_t total, place;
};

ConstBytes bytes_of(const auto& value) {
  return {reinterpret_cast<const std::byte*>(&value), sizeof value};
}

// A record starts with its body, an offset or a length.
MessageLink::Facts facts_of(const std::string& group, const LaneView& lane) {
  MessageLink::Facts facts;
  facts.group = group;
  facts.self = lane.self();
  facts.size = lane.size();
  facts.piece = std::min<uint64_t>(
      32u << 10, MessageRing::most(ControlBlock::ring_bytes(lane.size())) - wire::kMessageHead);
  facts.incast = kWindow;
  return facts;
}

}  // namespace

HostMessages::Peer::Peer(const ControlBlock& block, Member self, Member other)
    : out(block.ring(self, other), ControlBlock::ring_bytes(block.members())),
      in(block.ring(other, self), ControlBlock::ring_bytes(block.members())) {}

HostMessages::HostMessages(const std::string& group, const LaneView& lane, PeerMemory memory,
                           HostPort& port, Folder& folder, Counters& counters, Ended& ended)
    : lane_(lane),
      memory_(memory),
      port_(port),
      folder_(folder),
      counters_(counters),
      ended_(ended),
      peers_(lane.size()),
      messages_(*this, facts_of(group, lane), ingress_) {}

HostMessages::Peer& HostMessages::peer(Member member) {
  auto& peer = peers_[member];
  if (!peer) peer = std::make_unique<Peer>(lane_.block(), lane_.self(), member);
  return *peer;
}

void HostMessages::post(MessagePost post) { messages_.post(std::move(post), port_.now()); }

bool HostMessages::progress(bool large, bool& left_over) {
  const uint64_t before = moved_;
  bool moved = receive(left_over);
  moved = flush() || moved;
  // Rings that are still full are added again; a shorter record may have found room.
  full_ = backlogs_;
  more_ = messages_.pump(large);
  if (more_) left_over = true;
  wake_written();
  return moved || moved_ != before;
}

// --- receiving ---

bool HostMessages::quiet() const {
  const MessageBoard& board = lane_.board(lane_.self());
  for (uint32_t m = 0; m < lane_.size(); m += 64) {
    if (board.news[m / 64].load(std::memory_order_seq_cst) != 0) return false;
  }
  return true;
}

bool HostMessages::receive(bool& left_over) {
  MessageBoard& board = lane_.board(lane_.self());
  bool moved = false;
  for (uint32_t first = 0; first < lane_.size(); first += 64) {
    auto& word = board.news[first / 64];
    if (word.load(std::memory_order_seq_cst) == 0) continue;
    // Marks are cleared before the rings are read: data that is written afterwards sets its mark
    // again.
    uint64_t marks = word.exchange(0, std::memory_order_seq_cst);
    for (uint32_t m = first; marks != 0; marks >>= 1, m++) {
      if ((marks & 1) == 0) continue;
      if (!failure_.ok() || !receive_from(static_cast<Member>(m), left_over)) {
        word.fetch_or(uint64_t{1} << (m - first), std::memory_order_seq_cst);
      }
      moved = true;
    }
  }
  return moved;
}

// Returns false if there may be more.
bool HostMessages::receive_from(Member from, bool& left_over) {
  MessageRingReader& in = peer(from).in;
  for (int n = 0; n < kRecords; n++) {
    const auto read = in.next();
    if (!read) {
      if (in.broken()) {
        counters_.add(Counter::malformed);
        fail_for(Status(Code::kInternal, "rank " + std::to_string(from) +
                                             " broke the protocol of messages: a record goes "
                                             "beyond its ring"),
                 from);
      }
      return true;
    }
    on_record(from, *read);
    if (in.consume()) wake(from, false);
    if (!failure_.ok()) return false;
  }
  left_over = true;
  return false;
}

void HostMessages::on_record(Member from, const MessageRingReader::Read& read) {
  const RingRecord& r = read.record;
  LentBody lent;
  if (r.type == kCopiedMessage) return messages_.on_copied(from, r.number);
  if (r.type == kLentMessage && read.body.size() == sizeof lent) {
    std::memcpy(&lent, read.body.data(), sizeof lent);
    return messages_.on_lent(from, r.number, r.argument, lent.total, lent.place);
  }
  const auto type = static_cast<wire::FrameType>(r.type);
  if (wire::is_message(type)) {
    return messages_.on_frame({type, kMessageLane, from, 0, r.number, r.argument}, read.body);
  }
  counters_.add(Counter::malformed);
  fail_for(Status(Code::kInternal, "rank " + std::to_string(from) +
                                       " broke the protocol of messages: a record of unknown kind"),
           from);
}

// --- sending ---

void HostMessages::send_message(Member to, wire::FrameType type, uint32_t number, uint32_t argument,
                                ConstBytes body, ConstBytes payload) {
  RingRecord record;
  record.type = static_cast<uint8_t>(type);
  record.length = static_cast<uint32_t>(body.size() + payload.size());
  record.number = number;
  record.argument = argument;
  write(to, record, body, payload);
}

void HostMessages::write(Member to, const RingRecord& record, ConstBytes body, ConstBytes payload) {
  Peer& p = peer(to);
  if (!p.end.ok()) return;
  if (backlogs_.count(to) > 0 || !p.out.fits(record.length)) {
    std::vector<std::byte>& kept = p.backlog.emplace_back();
    for (const ConstBytes part : {bytes_of(record), body, payload}) {
      kept.insert(kept.end(), part.begin(), part.end());
    }
    backlogs_.insert(to);
    return no_room(to, p);
  }
  p.out.write(record, body, payload);
  p.told = false;
  moved_++;
  auto& word = lane_.board(to).news[lane_.self() / 64];
  const uint64_t mark = uint64_t{1} << (lane_.self() % 64);
  if ((word.load(std::memory_order_seq_cst) & mark) == 0) {
    word.fetch_or(mark, std::memory_order_seq_cst);
  }
  p.untold += record.length;
  written_.insert(to);
  if (p.untold < kUntold) return;
  p.untold = 0;
  wake(to, false);
}

void HostMessages::wake_written() {
  for (const Member to : written_) {
    peer(to).untold = 0;
    wake(to, false);
  }
  written_.clear();
}

bool HostMessages::takes(Member to, size_t bytes) {
  Peer& p = peer(to);
  if (!p.end.ok()) return true;
  const size_t length = std::max(bytes + wire::kMessageHead, sizeof(LentBody));
  if (backlogs_.count(to) == 0 && p.out.fits(length)) return true;
  no_room(to, p);
  return false;
}

void HostMessages::no_room(Member to, Peer& peer) {
  full_.insert(to);
  if (!std::exchange(peer.told, true)) wake(to, true);
}

// Sends queued records as far as there is room. Returns true if any was sent.
bool HostMessages::flush() {
  bool went = false;
  for (const Member to : std::vector<Member>(backlogs_.begin(), backlogs_.end())) {
    Peer& p = peer(to);
    std::deque<std::vector<std::byte>> kept = std::exchange(p.backlog, {});
    backlogs_.erase(to);
    while (!kept.empty()) {
      RingRecord record;
      std::memcpy(&record, kept.front().data(), sizeof record);
      if (p.end.ok() && !p.out.fits(record.length)) break;
      write(to, record, ConstBytes(kept.front()).subspan(sizeof record), {});
      kept.pop_front();
      went = true;
    }
    if (kept.empty()) continue;
    p.backlog = std::move(kept);
    backlogs_.insert(to);
    no_room(to, p);
  }
  return went;
}

// `full`: wakes it whatever it waits for, since this rank waits for room.
void HostMessages::wake(Member member, bool full) {
  auto& need = lane_.board(member).need;
  uint32_t seen = need.load(std::memory_order_seq_cst);
  if (seen == 0) {
    // Awake, or idle: in the second case its host thread reads the ring.
    if (full) port_.wake(member, HostWaiter::kThread);
    return;
  }
  if (!full && (seen & MessageBoard::kAny) == 0) return;
  if (need.compare_exchange_strong(seen, 0)) {
    port_.wake(member, static_cast<HostWaiter>(seen & ~MessageBoard::kAny));
  } else if (full) {
    port_.wake(member, HostWaiter::kThread);  // awake now, but may become idle in a moment
  }
}

bool HostMessages::arm(HostWaiter waiter) {
  wake_written();
  auto& need = lane_.board(lane_.self()).need;
  const uint32_t any = idle() ? 0 : MessageBoard::kAny;
  need.store(static_cast<uint32_t>(waiter) | any, std::memory_order_seq_cst);
  bool there = failure_readable(lane_.failure()) || !quiet();
  for (const Member to : full_) there = peer(to).out.wait() || there;
  if (there) disarm();
  return !there;
}

void HostMessages::disarm() {
  auto& need = lane_.board(lane_.self()).need;
  if (need.load(std::memory_order_relaxed) != 0) need.store(0, std::memory_order_relaxed);
}

// --- lending ---

bool HostMessages::lends(const Slice& memory) const {
  return memory_ != PeerMemory::kSlots && memory.length >= kLent &&
         memory.region->readable() >= memory.offset + memory.length;
}

void HostMessages::lend(Member to, uint32_t number, uint32_t tag, const Slice& memory) {
  const LentBody lent{memory.length, port_.place_of(memory)};
  RingRecord record;
  record.type = kLentMessage;
  record.length = sizeof lent;
  record.number = number;
  record.argument = tag;
  write(to, record, bytes_of(lent), {});
}

bool HostMessages::copy(Member from, uint64_t place, std::byte* to, size_t bytes, size_t whole) {
  wake_written();  // receivers with work must not wait for this copy
  const bool readable = folder_.pull(from, place, to, bytes, whole);
  streaming_fence();
  // After the read: a rank that returns memory early has claimed the failure record before.
  full_fence();
  if (!readable || failure_claimed(lane_.failure())) {
    unreadable_ = unreadable_ || !readable;
    return false;
  }
  moved_++;
  return true;
}

void HostMessages::copied(Member from, uint32_t number) {
  RingRecord record;
  record.type = kCopiedMessage;
  record.number = number;
  write(from, record, {}, {});
}

// --- the end ---

const Status& HostMessages::end_of(Member member) const {
  static const Status here;
  return peers_[member] ? peers_[member]->end : here;
}

std::vector<Member> HostMessages::awaited() const {
  if (unfinished() > 0) return messages_.awaited();
  return {backlogs_.begin(), backlogs_.end()};
}

void HostMessages::check() {
  const Nanos now = port_.now();
  for (uint32_t i = 0; i < lane_.size(); i++) {
    const auto m = static_cast<Member>(i);
    if (m == lane_.self() || !end_of(m).ok()) continue;
    if (lane_.state(m).left.load(std::memory_order_acquire) == 0) continue;
    Peer& p = peer(m);
    p.end = Status(Code::kPeerLost, "rank " + std::to_string(m) +
                                        " has left the group; look at its log for the first error");
    p.backlog.clear();
    backlogs_.erase(m);
    full_.erase(m);
    messages_.on_peer_down(m, true, now);
  }
  messages_.drive(now, true);
}

void HostMessages::fail_for(const Status& why, Member culprit) {
  if (!failure_.ok()) return;
  failure_ = why;
  culprit_ = culprit;
  news_ = true;
}

std::optional<std::pair<Status, Member>> HostMessages::take_failure() {
  if (!std::exchange(news_, false)) return std::nullopt;
  return std::pair(failure_, culprit_);
}

void HostMessages::end(std::function<void(const Status&)> done, const Status& status) {
  // The failure is claimed before the memory is written again: readers check in the opposite order.
  if (!status.ok()) full_fence();
  ended_.emplace_back(std::move(done), status);
}

void HostMessages::on_failure(const Status& why) {
  if (failure_.ok()) failure_ = why;
  news_ = more_ = false;
  messages_.on_failure(why);
  for (const Member to : backlogs_) peer(to).backlog.clear();
  backlogs_.clear();
  full_.clear();
  disarm();
}

}  // namespace mcast
