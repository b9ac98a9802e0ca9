// Dispatches datagrams and frames to the parts of the group. Frames about an operation that this
// rank has not posted yet are stored if a rank may be ahead, and dispatched again after the post.
#include <array>
#include <initializer_list>

#include "base/coverage.h"
#include "collective/group_core.h"

namespace mcast {

GroupCore::Handler GroupCore::handler(wire::FrameType type) {
  using T = wire::FrameType;
  static const auto table = [] {
    std::array<Handler, wire::kFrameTypeMax + 1> t{};
    const auto set = [&t](std::initializer_list<T> types, Handler h) {
      for (const T of : types) t[static_cast<size_t>(of)] = h;
    };
    using C = GroupCore;
    using F = const Frame;
    using B = ConstBytes;
    using N = Nanos;
    set({T::kCredit}, [](C& c, F& f, B b, N) { c.on_credit(f, b); });
    set({T::kLimit}, [](C& c, F& f, B b, N n) { c.multicast_.on_limit(f, b, n); });
    set({T::kPosition}, [](C& c, F& f, B b, N n) { c.multicast_.on_position_frame(f, b, n); });
    set({T::kSent}, [](C& c, F& f, B b, N n) { c.small_.on_sent_frame(f, b, n); });
    set({T::kFetch}, [](C& c, F& f, B b, N n) { c.repair_.on_fetch(f, b, n); });
    set({T::kFetchData}, [](C& c, F& f, B b, N n) { c.repair_.on_fetch_data(f, b, n); });
    set({T::kFetchGrant}, [](C& c, F& f, B b, N n) { c.repair_.on_fetch_grant(f, b, n); });
    set({T::kNotHave, T::kComing}, [](C& c, F& f, B b, N n) { c.repair_.on_not_have(f, b, n); });
    set({T::kEarlyFetch}, [](C& c, F& f, B b, N) { c.repair_.on_early_fetch(f, b); });
    set({T::kEarlyData}, [](C& c, F& f, B b, N n) { c.repair_.on_early_data(f, b, n); });
    set({T::kComplete}, [](C& c, F& f, B b, N n) { c.completion_.on_complete(f, b, n); });
    set({T::kReleased}, [](C& c, F& f, B, N) { c.completion_.on_released_frame(f); });
    set({T::kDescribe}, [](C& c, F& f, B b, N) { c.on_describe(f, b); });
    set({T::kAbort}, [](C& c, F& f, B b, N n) { c.on_abort(b, f.sequence, n); });
    set({T::kPing}, [](C& c, F& f, B b, N) { c.membership_.on_ping(f, b); });
    set({T::kPong}, [](C&, F&, B, N) {});
    set({T::kLeave}, [](C& c, F& f, B, N) { c.on_leave(f); });
    set({T::kLate}, [](C& c, F& f, B b, N n) { c.inquiry_.on_late(f, b, n); });
    set({T::kQuery}, [](C& c, F& f, B, N n) { c.inquiry_.on_query(f, n); });
    set({T::kWhere}, [](C& c, F& f, B, N n) { c.inquiry_.on_where(f, n); });
    set({T::kExcuse}, [](C& c, F& f, B b, N n) {
      if (auto stand_in = c.partial_.on_excuse(f, b, n)) c.post(std::move(*stand_in), n);
    });
    set({T::kExcused}, [](C& c, F& f, B, N n) { c.partial_.on_excused(f, n); });
    set({T::kPartial}, [](C& c, F& f, B b, N n) { c.partial_.on_partial(f, b, n); });
    set({T::kProbeJoined, T::kProbeStart, T::kProbeStatus, T::kProbeDone},
        [](C& c, F& f, B b, N n) { c.path_.on_probe_frame(f, b, n); });
    set({T::kRateTrain, T::kRate}, [](C& c, F& f, B b, N n) { c.path_.rates().on_frame(f, b, n); });
    set({T::kDeaf, T::kSwitch, T::kSwitchReady, T::kSwitchAt},
        [](C& c, F& f, B b, N n) { c.path_.on_switch_frame(f, b, n); });
    set({T::kRoster, T::kRosterReach, T::kRosterStop, T::kRosterReady, T::kRosterAt, T::kAggGone},
        [](C& c, F& f, B b, N n) {
          if (c.fold_) return c.fold_->on_rank_frame(f, b, n);
          c.g_.counters.add(Counter::malformed);
        });
    set({T::kRingData}, [](C& c, F& f, B b, N n) { c.ring_.on_data(f, b, n); });
    set({T::kRingReady}, to_movement<&C::ring_>);
    set({T::kBlockDigest}, [](C& c, F& f, B b, N) {
      if (const Operation* const op = c.operation_of(f, b)) c.sources_.on_digest(*op, f, b);
    });
    set({T::kReduceGrant, T::kReduceData, T::kReduceResult, T::kReduceOffer, T::kReduceTaken,
         T::kDivert},
        to_movement<&C::reductions_>);
    set({T::kExchangeGrant, T::kExchangeData}, to_movement<&C::exchanges_>);
    return t;
  }();
  return table[static_cast<size_t>(type)];
}

void GroupCore::on_frame(const Frame& header, ConstBytes body, Nanos now) {
  if (g_.is_station(header.member)) {
    if (!fold_) {
      g_.counters.add(Counter::malformed);
    } else if (!g_.failed()) {
      fold_->on_frame(header, body, now);
    }
    return settle(now);
  }
  if (header.member == g_.self) {
    g_.counters.add(Counter::malformed);
    return;
  }
  g_.counters.add(Counter::frames_received);
  g_.counters.add(Counter::frame_bytes_received, wire::kFrameHeader + body.size());
  membership_.heard(header.member, now);
  messages_.heard(header.member, now);
  if (g_.failed()) return answer_failed(header);
  if (wire::is_message(header.type)) {  // belongs to no operation
    messages_.on_frame(header, body);
    return settle(now);
  }
  const Handler handle = handler(header.type);
  if (handle == nullptr) {
    g_.counters.add(Counter::malformed);
    return;
  }
  handle(*this, header, body, now);
  settle(now);
}

// Passes a frame about an operation to a movement, which is a member of GroupCore.
template <auto kMovement>
void GroupCore::to_movement(GroupCore& core, const Frame& header, ConstBytes body, Nanos now) {
  Movement& movement = core.*kMovement;
  if (Operation* const op = core.operation_of(header, body, &movement)) {
    movement.on_frame(*op, header, body, now);
  }
}

// The operation in flight that the frame is about. Null if it is over, if it is not posted yet (the
// frame is stored until then, if `movement` allows that), or if the other rank has made a different
// call.
Operation* GroupCore::operation_of(const Frame& header, ConstBytes body, Movement* movement) {
  if (Operation* const op = g_.find(header.sequence)) {
    return g_.agrees(header.member, header.sequence, header.argument) ? op : nullptr;
  }
  const bool counted = wire::is_reduction(header.type) || wire::is_exchange(header.type);
  if (g_.ops.entry(header.sequence) != nullptr) {  // settled
    const bool ours = g_.agrees(header.member, header.sequence, header.argument);
    if (ours && counted) g_.counters.add(Counter::stale);
  } else if (header.sequence < g_.ops.base()) {
    g_.counters.add(Counter::stale);
  } else if ((movement == nullptr || movement->allowed_early(header)) && g_.early_allowed(header) &&
             !early_.keep(header, body)) {
    if (counted) return g_.broke(header, "more was sent ahead than is allowed"), nullptr;
    g_.fail(
        Status(Code::kResourceExhausted,
               "rank " + std::to_string(header.member) + " is so many operations ahead of rank " +
                   std::to_string(g_.self) + " that its messages about them fill " +
                   std::to_string(EarlyFrames::kMostControl >> 20) + " MiB"),
        header.member);
  }
  return nullptr;
}

// Handles the frames that arrived before the operation was posted.
void GroupCore::replay_early(Sequence sequence, Nanos now) {
  for (const EarlyFrames::Kept& kept : early_.take(sequence)) {
    if (!g_.failed()) handler(kept.header.type)(*this, kept.header, kept.body, now);
  }
}

// A member that leaves knows that all operations before are complete everywhere. No further change
// can be agreed on for later operations, because none of them can complete.
void GroupCore::on_leave(const Frame& header) {
  if (!membership_.on_leave(header)) return;
  completion_.on_released(header.sequence);
  path_.stop();
  if (fold_) fold_->stop();
}

void GroupCore::on_credit(const Frame& header, ConstBytes body) {
  std::vector<wire::CreditEntry> entries;
  if (!g_.tree.is_child(header.member, g_.self) || !wire::parse_credit(body, entries)) {
    g_.counters.add(Counter::malformed);
    return;
  }
  if (Operation* const op = operation_of(header, body)) {
    multicast_.on_credit(*op, header, entries);
  }
}

void GroupCore::on_describe(const Frame& header, ConstBytes body) {
  if (body.empty()) {
    if (header.argument < g_.size) {
      g_.describe_to(static_cast<Member>(header.argument), header.sequence);
    }
    return;
  }
  wire::Descriptor theirs;
  if (!wire::parse_descriptor(body, theirs)) {
    g_.counters.add(Counter::malformed);
    return;
  }
  if (const OperationQueue::Entry* const entry = g_.ops.entry(header.sequence)) {
    if (!theirs.same(entry->descriptor())) {
      g_.mismatch(header.sequence, header.member, theirs.to_string());
    }
  } else if (header.sequence >= g_.ops.next() && g_.early_allowed(header)) {
    // One of each rank is enough. It is dropped if there is no room.
    early_.keep(header, body);
  }
}

template <typename Verifier>
DatagramVerdict GroupCore::take_datagram(const wire::DatagramHeader& header, Verifier& datagram,
                                         size_t bytes, Nanos now) {
  g_.counters.add(Counter::datagrams_received);
  g_.counters.add(Counter::datagram_bytes_received, bytes);
  DatagramVerdict verdict = DatagramVerdict::kVerified;
  if (header.type == wire::DatagramType::kData) {
    verdict = reception_.on_data(header, datagram, now);
    // Most datagrams end here: they have not changed anything else that the end of the event
    // handles.
    if (!g_.has_notes()) return verdict;
  } else if (verdict = datagram.verify(g_.counters); verdict != DatagramVerdict::kVerified) {
    // The refusal is counted.
  } else if (header.type == wire::DatagramType::kPosition) {
    reception_.on_position_datagram(header, now);
  } else if (header.type == wire::DatagramType::kAbort) {
    MCAST_COVER(abort_by_datagram);
    on_abort(datagram.payload(), header.sequence, now);
  } else {
    const bool full = datagram.payload().size() >= g_.params.agreed.chunk;
    path_.on_probe(header.member, header.sequence, full);
  }
  settle(now);
  return verdict;
}

DatagramVerdict GroupCore::on_datagram(const wire::DatagramHeader& header, ConstBytes datagram,
                                       Nanos now) {
  if (g_.failed()) return DatagramVerdict::kUnread;
  if (header.member == g_.self) {
    g_.counters.add(Counter::own_echo);
    return DatagramVerdict::kOwn;
  }
  if (header.member >= g_.size || header.reserved != 0) {
    g_.counters.add(Counter::malformed);
    return DatagramVerdict::kMalformed;
  }
  ChecksumVerifier verifier(datagram);
  return take_datagram(header, verifier, datagram.size(), now);
}

DatagramVerdict GroupCore::on_guarded(const wire::GuardedHeader& header, ConstBytes datagram,
                                      Nanos now) {
  if (g_.failed()) return DatagramVerdict::kUnread;
  crypto::DatagramGuard& guard = *g_.params.multicast.guard;
  const DatagramVerdict verdict = guard.judge(header, datagram, now);
  if (verdict == DatagramVerdict::kOwn) g_.counters.add(Counter::own_echo);
  if (verdict == DatagramVerdict::kStale) g_.counters.add(Counter::stale);
  if (verdict == DatagramVerdict::kMalformed) g_.counters.add(Counter::malformed);
  if (verdict != DatagramVerdict::kVerified) return verdict;
  GuardVerifier verifier(guard, header, datagram, now);
  const DatagramVerdict taken = take_datagram(header.inner, verifier, datagram.size(), now);
  if (const Member worn = guard.worn_out(); worn != kNoMember && !g_.failed()) {
    g_.fail(
        Status(Code::kPeerLost, "too many datagrams were forged in the name of rank " +
                                    std::to_string(worn) + " for its keys to be used any longer"),
        worn);
    settle(now);
  }
  return taken;
}

size_t GroupCore::on_placed(const SliceName& name, uint32_t word, uint64_t bits, Nanos now) {
  Operation* const op = g_.failed() ? nullptr : g_.find(name.sequence);
  if (op == nullptr) return 0;
  const size_t bytes = reception_.on_placed(*op, name.member, word, bits, now);
  settle(now);
  return bytes;
}

void GroupCore::on_retired(const SliceName& name, const SliceCounts& counts, Nanos now) {
  g_.counters.add(Counter::duplicates, counts.duplicates);
  g_.counters.add(Counter::malformed, counts.misfits);
  placing_.on_retired(name);
  settle(now);
}

}  // namespace mcast
