// One poll of a lane: first datagrams (limited), then streams, then timers and sending of every
// group that is not idle, then the send batch is flushed. Callbacks of ended operations run twice
// in a poll, outside of all events: after receiving, and before the flush. A timer that could
// declare a loss or a death only gets `drained` if this poll found the datagram socket empty, or if
// as many useless bytes have been read as a socket holds: under a flood it is never empty.
// lane_early.cpp keeps frames for a group that this rank has not made yet.
//
// Receive coalescing. Every super-packet that finds the thread asleep costs a wake-up here and, if
// there are few cores, takes the core from the sender. So the thread sleeps for a fixed time while
// much data is arriving, short enough that the data that arrives meanwhile is a small part of the
// window.
#include "runtime/lane.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/random.h"

namespace mcast {
namespace {
constexpr size_t kReceivePerTurn = 512u << 10;  // bytes
// Pauses: the longest; the shortest, because timers are late by 50 us; and the bytes that must
// arrive in a pause to make it worthwhile.
constexpr Nanos kLongestPause = 200 * kMicro, kShortestPause = 50 * kMicro;
constexpr uint64_t kPauseBytes = 128u << 10;
// Interval of checks whether other jobs have caught up.
constexpr Nanos kSharePause = 500 * kMicro;
}  // namespace

Lane::Lane(std::unique_ptr<Transport> transport, LaneAccounts accounts)
    : transport_(std::move(transport)), accounts_(std::move(accounts)) {
  if (accounts_.watch) monitor_.watch_sources(secure_random64());
}

Lane::~Lane() {
  while (!groups_.empty()) remove_group(groups_.begin()->first);
}

LaneGroup& Lane::add_group(GroupParams params, const GroupAddress& address,
                           std::vector<PeerId> peers, Nanos now,
                           std::shared_ptr<Counters> counters) {
  now_ = std::max(now_, now);
  const uint64_t tag = params.tag;
  if (params.multicast.guard && !guarded_) guarded_ = std::make_unique<GuardedSink>(*this);
  auto owned = std::make_unique<LaneGroup>(*this, std::move(params), address, std::move(peers),
                                           std::move(counters));
  LaneGroup& group = *owned;
  groups_[tag] = std::move(owned);
  turns_.wake(group);
  for (size_t m = 0; m < group.peers_.size(); m++) {
    const auto it = down_.find(group.peers_[m]);
    if (it != down_.end()) {
      group.core_.on_peer_down(static_cast<Member>(m), it->second.why, it->second.graceful, now);
    }
  }
  if (!early_.empty()) {
    fail_overrun(group);
    fresh_.push_back(tag);
  }
  return group;
}

LaneGroup* Lane::find_group(uint64_t tag) {
  const auto it = groups_.find(tag);
  return it == groups_.end() ? nullptr : it->second.get();
}

void Lane::remove_group(uint64_t tag) {
  const auto it = groups_.find(tag);
  if (it == groups_.end()) return;
  it->second->core_.abandon();
  while (it->second->core_.deliver()) {
  }
  const GroupAddress& address = it->second->address_;
  if (address.joined) transport_->datagram().leave(address.multicast);
  if (last_ == it->second.get()) last_ = nullptr;
  keep_trying(tag, 0);
  others_.retire(tag, it->second->address_.hosts);
  turns_.wake(*it->second);
  turns_.awake.erase(std::find(turns_.awake.begin(), turns_.awake.end(), it->second.get()));
  groups_.erase(it);
}

void Lane::keep_trying(uint64_t tag, Nanos until) {
  LaneGroup* const group = find_group(tag);
  if (group == nullptr || group->keep_trying_ == until) return;
  group->keep_trying_ = until;
  for (const PeerId peer : group->peers_) {
    if (peer == kNoPeer) continue;
    Nanos latest = 0;
    for (const auto& [other_tag, other] : groups_) {
      if (other->keep_trying_ <= latest) continue;
      const std::vector<PeerId>& its = other->peers_;
      if (std::find(its.begin(), its.end(), peer) != its.end()) latest = other->keep_trying_;
    }
    transport_->stream().keep_trying(peer, latest);
  }
}

void Lane::Turns::wake(LaneGroup& group) {
  if (group.awake_) return;
  asleep.erase({group.due_, group.number_});
  group.due_ = kNever;
  group.awake_ = true;
  awake.push_back(&group);
}

void Lane::Turns::rest(Nanos now) {
  const auto rests = [&](LaneGroup* group) {
    if (!group->core_.idle() || !group->met_down_.empty() || group->flooded_) return false;
    group->awake_ = false;
    group->due_ = group->core_.deadline(now);
    if (group->due_ != kNever) asleep[{group->due_, group->number_}] = group;
    return true;
  };
  awake.erase(std::remove_if(awake.begin(), awake.end(), rests), awake.end());
}

// Only the other jobs' accounts show what they have sent, so this lane checks again soon.
bool Lane::has_share() {
  if (!waits_) waits_ = accounts_.share && !accounts_.share->may_send(now_);
  return !waits_;
}

bool Lane::poll(Nanos now) {
  now_ = now;
  waits_ = false;
  while (!grants_.empty() && grants_.front().until <= now) grants_.pop_front();
  replay_orphans();
  DatagramSink* const sink = guarded_ ? static_cast<DatagramSink*>(guarded_.get()) : this;
  const size_t datagrams = transport_->datagram().receive(*sink, kReceivePerTurn);
  const size_t events = transport_->stream().poll(*this, now);
  // All datagrams that had arrived before the last check have been read.
  const bool read_out = datagrams == 0 || seen_.noise >= transport_->datagram().receive_budget();
  if (read_out) seen_.noise = 0;
  // Lost echoes must not accumulate: no more than a socket can hold are expected.
  seen_.echoes = std::min(seen_.echoes, transport_->datagram().receive_budget());
  while (!turns_.asleep.empty() && turns_.asleep.begin()->first.first <= now)
    turns_.wake(*turns_.asleep.begin()->second);
  deliver();
  turns_.busy = 0;
  for (const LaneGroup* group : turns_.awake) turns_.busy += group->core_.busy() ? 1 : 0;
  bool more = false;
  // (One group may wake others.)
  for (size_t i = 0; i < turns_.awake.size(); i++) {
    LaneGroup& group = *turns_.awake[i];
    turns_.visits++;
    group.tell_met_down();
    if (std::exchange(group.flooded_, false)) group.core_.on_flood(now);
    more = group.core_.progress(now, read_out) || more;
  }
  // Before the flush: a caller that continues has waited longest.
  const bool ended = deliver();
  turns_.rest(now);
  const bool flushed = transport_->datagram().flush();
  return datagrams > 0 || events > 0 || ended || (more && flushed && !waits_);
}

bool Lane::deliver() {
  bool ended = false;
  for (size_t i = 0; i < turns_.awake.size(); i++)
    ended = turns_.awake[i]->core_.deliver() || ended;
  return ended;
}

Nanos Lane::deadline(Nanos now) const {
  Nanos next = waits_ ? now + kSharePause : kNever;
  if (!turns_.asleep.empty())
    next = std::min(next, std::max(now, turns_.asleep.begin()->first.first));
  for (const LaneGroup* group : turns_.awake) next = std::min(next, group->core_.deadline(now));
  return next;
}

Nanos Lane::coalesce(Nanos now) {
  const auto [taken, since] = std::exchange(taken_, {0, now});
  const Nanos time = now - since;
  if (taken == 0 || time <= 0) return 0;
  size_t headroom = 0;
  for (const LaneGroup* group : turns_.awake) {
    if (!group->core_.busy()) continue;
    const size_t s = group->core_.headroom();
    if (s == 0) return 0;
    headroom = headroom == 0 ? s : std::min(headroom, s);
  }
  const double rate = static_cast<double>(taken) / static_cast<double>(time);
  const Nanos pause =
      std::min(kLongestPause, static_cast<Nanos>(static_cast<double>(headroom) / rate));
  const bool pays = static_cast<double>(pause) * rate >= static_cast<double>(kPauseBytes);
  return pays && pause >= kShortestPause ? pause : 0;
}

inline void Lane::note_received(size_t bytes) {
  taken_.bytes += bytes;
  if (!accounts_.arrived) return;
  // No locked instruction: readers only check whether it changes, and other lanes seldom write at
  // the same time.
  std::atomic<uint64_t>& arrived = *accounts_.arrived;
  arrived.store(arrived.load(std::memory_order_relaxed) + bytes, std::memory_order_relaxed);
}

void Lane::on_placed(const SliceName& name, uint32_t word, uint64_t bits) {
  if (LaneGroup* const group = find_group(name.tag)) {
    turns_.wake(*group);
    seen_.all += static_cast<uint64_t>(std::popcount(bits));
    seen_.verified += static_cast<uint64_t>(std::popcount(bits));
    note_received(group->core_.on_placed(name, word, bits, now_));
  }
}

void Lane::on_retired(const SliceName& name, const SliceCounts& counts) {
  if (LaneGroup* const group = find_group(name.tag)) group->core().on_retired(name, counts, now_);
}

void Lane::refuse_datagram(Cause cause) {
  monitor_.note(cause, transport_->datagram().source(), now_);
}

LaneGroup* Lane::look_up(uint64_t tag) {
  const auto it = groups_.find(tag);
  if (it == groups_.end()) {
    using Whose = OtherGroups::Whose;
    seen_.foreign++;
    switch (others_.whose(tag, transport_->datagram().source().address)) {
      case Whose::kClosed:
        seen_.late++;
        break;
      case Whose::kNeighbour:
        seen_.neighbour++;
        break;
      case Whose::kForeign:
        refuse_datagram(Cause::foreign);
    }
    return nullptr;
  }
  return last_ = it->second.get();
}

inline LaneGroup* Lane::group_of_datagram(uint64_t tag) {
  return last_ != nullptr && last_->core_.params().tag == tag ? last_ : look_up(tag);
}

void Lane::on_unverified(DatagramVerdict verdict, size_t bytes) {
  // Receiving more of our own datagrams than we sent means somebody is replaying them; count the
  // excess as noise.
  if (verdict == DatagramVerdict::kOwn && bytes <= seen_.echoes) {
    seen_.echoes -= bytes;
    seen_.noise -= bytes;
    seen_.own++;
  }
  if (const auto cause = cause_of(verdict)) refuse_datagram(*cause);
}

// Inline, as it runs for every datagram; the handling of unexpected ones is separate.
inline void Lane::on_judged(DatagramVerdict verdict, size_t bytes) {
  if (verdict != DatagramVerdict::kVerified) return on_unverified(verdict, bytes);
  seen_.noise -= bytes;
  seen_.verified++;
  note_received(bytes);
}

void Lane::on_datagram(ConstBytes datagram) {
  seen_.all++;
  seen_.noise += datagram.size();
  wire::DatagramHeader header;
  if (wire::parse_datagram(datagram, header) != wire::ParseError::kNone) {
    seen_.malformed++;
    refuse_datagram(Cause::malformed);
    return;
  }
  LaneGroup* const group = group_of_datagram(header.group_tag);
  if (group == nullptr) return;
  turns_.wake(*group);
  if (header.lane != group->core_.params().lane) {
    seen_.foreign++;
    return refuse_datagram(Cause::foreign);
  }
  on_judged(group->core_.on_datagram(header, datagram, now_), datagram.size());
}

void Lane::on_guarded(ConstBytes datagram) {
  seen_.all++;
  seen_.noise += datagram.size();
  wire::GuardedHeader header;
  if (const auto error = wire::parse_guarded(datagram, header); error != wire::ParseError::kNone) {
    if (error == wire::ParseError::kVersion) return refuse_datagram(Cause::downgraded);
    seen_.malformed++;
    return refuse_datagram(Cause::malformed);
  }
  LaneGroup* const group = group_of_datagram(header.inner.group_tag);
  if (group == nullptr) return;
  turns_.wake(*group);
  if (group->core_.params().multicast.guard == nullptr) {
    seen_.foreign++;
    return refuse_datagram(Cause::foreign);
  }
  const DatagramVerdict verdict = group->core_.on_guarded(header, datagram, now_);
  on_judged(verdict, datagram.size());
  if (is_unread(verdict) && group->is_moved(header.inner.member)) {
    refuse_datagram(Cause::source_moved);
  }
}

void Lane::on_frame(PeerId peer, Channel, ConstBytes frame) {
  wire::FrameHeader header;
  if (frame.size() >= wire::kFrameHeader && !wire::verify_frame(frame)) {
    on_corrupt_frame(peer, frame);
    return;
  }
  if (!wire::parse_frame(frame, header)) {
    seen_.malformed++;
    monitor_.note(Cause::malformed, {}, now_);
    // (From a rank it may be a frame of a later version; the operation that lacks it reports an
    // error.)
    if (station_peers_.count(peer) > 0)
      tell_down(peer, {Status(Code::kPeerLost, "a frame from it does not parse"), false});
    return;
  }
  const auto it = groups_.find(header.group_tag);
  if (it == groups_.end()) {
    keep_orphan(header.group_tag, peer, frame);
    return;
  }
  dispatch(*it->second, peer, header, frame);
}

void Lane::on_corrupt_frame(PeerId peer, ConstBytes frame) {
  // A stream with a corrupt frame has lost its place in the protocol, so later frames are not safe
  // to use. The damage may be in the header: a tag that belongs to no group may mean any group of
  // the peer.
  wire::FrameHeader header;
  const bool named = wire::parse_frame(frame, header) && groups_.count(header.group_tag) > 0;
  for (const auto& [tag, group] : groups_) {
    if (named && tag != header.group_tag) continue;
    const Member member = group->member_of(peer);
    if (member == kNoMember) continue;
    group->counters_->add(Counter::corrupt);
    if (member >= group->peers_.size()) {
      group->core().on_peer_down(
          member, Status(Code::kPeerLost, "a frame from it arrived corrupt (CRC-32C)"), false,
          now_);
    } else {
      group->core().fail(Status(Code::kPeerLost, "a frame from rank " + std::to_string(member) +
                                                     " arrived corrupt (CRC-32C)"),
                         member, now_);
    }
  }
}

void Lane::dispatch(LaneGroup& group, PeerId peer, const wire::FrameHeader& header,
                    ConstBytes frame) {
  // The stream proves the identity of the sender; a member id that does not belong to it is a
  // forgery or a bug. A station does not know the number that the ranks have given it, only that it
  // is not a rank's.
  wire::FrameHeader from = header;
  if (header.member >= group.peers_.size()) from.member = group.station_of(peer);
  // Final frames of a station that the group has parted from.
  if (from.member == kNoMember && station_peers_.count(peer) > 0) {
    return group.counters_->add(Counter::agg_stale);
  }
  if (from.member == kNoMember ||
      (header.member < group.peers_.size() && group.peers_[header.member] != peer)) {
    group.counters_->add(Counter::malformed);
    return;
  }
  group.core().on_frame(from, frame.subspan(wire::kFrameHeader), now_);
}

void Lane::on_read(PeerId, uint64_t token, ConstBytes bytes) {
  const auto reader = readers_.find(token);
  if (reader == readers_.end()) return;
  const Reader r = reader->second;
  readers_.erase(reader);
  if (const auto group = groups_.find(r.tag); group != groups_.end()) {
    group->second->core().on_read(r.token, bytes, now_);
  }
}

// This peer never joined a group, so no current or future group is affected.
void Lane::on_stranger_gone(PeerId peer) { early_.erase(peer); }

void Lane::on_peer_down(PeerId peer, const Status& why, bool graceful) {
  down_[peer] = {why, graceful};
  if (!graceful && station_peers_.count(peer) == 0) poison();
  tell_down(peer, down_[peer]);
}

void Lane::tell_down(PeerId peer, const Down& down) {
  for (const auto& [tag, group] : groups_) {
    if (const Member member = group->member_of(peer); member != kNoMember) {
      group->core().on_peer_down(member, down.why, down.graceful, now_);
    }
  }
}

}  // namespace mcast
