// A lane: one transport and the groups that use it, advanced by poll(now). A LaneThread runs it on
// a separate thread; under the simulator the test calls poll() with virtual time. Not thread-safe:
// its driver owns it.
#pragma once

#include <algorithm>
#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/monitor.h"
#include "collective/group_core.h"
#include "runtime/context.h"
#include "runtime/egress_share.h"
#include "runtime/ignored_meter.h"
#include "runtime/other_groups.h"
#include "transport/transport.h"

namespace mcast {

class Lane;

// Destination of a group's datagrams.
struct GroupAddress {
  MulticastAddress multicast;
  bool joined = false;  // by whoever adds the group; the address is left when it is removed
  Echo echo = Echo::kOn;
  // Where members' datagrams come from (Datagram::sources_of()); of a guarded group also by member.
  std::vector<IpAddress> hosts{};
  std::vector<std::vector<IpAddress>> sources{};
};

// One group on one lane: its state machine, its port, its counters.
class LaneGroup final : public Port {
 public:
  LaneGroup(Lane& lane, GroupParams params, const GroupAddress& address, std::vector<PeerId> peers,
            std::shared_ptr<Counters> counters);

  // Schedules the group for the next poll, whatever the caller does with the core.
  GroupCore& core();
  const Counters& counters() const { return *counters_; }
  const MulticastAddress& address() const { return address_.multicast; }

 private:
  friend class Lane;
  Bytes lend(size_t size) override;
  void commit(size_t size) override;
  bool has_share() override;
  size_t gather_from() const override;
  bool commit_gather(size_t header, const Slice& block, size_t offset, size_t length) override;
  Placer* placer() override;
  void send(Member to, Channel channel, std::span<const ConstBytes> parts) override;
  size_t queued(Member to, Channel channel) const override;
  void meet(Member station, const StreamAddress& address) override;
  void part(Member station) override;
  uint32_t busy_groups() const override;
  std::optional<RemoteGrant> expose(const Slice& block, size_t offset) override;
  void linger(std::shared_ptr<void> hold) override;
  bool reach_known(Nanos now) const override;
  void reach_proven(Nanos now) override;
  void reach_lost() override;
  Received received() const override;
  Status receive_multicast(bool wanted) override;
  size_t max_read() const override;
  bool read(Member from, uint64_t address, uint32_t key, size_t length, uint32_t token) override;

  // kNoPeer if there is no such member or station.
  PeerId peer(Member member) const;
  // Member number of `peer` in this group; kNoMember if it has none.
  Member member_of(PeerId peer) const;
  Member station_of(PeerId peer) const;
  void tell_met_down();
  // Whether the current datagram, of this member, comes from an address that the member does not
  // send from, as far as both are known. Checked for useless datagrams, to detect replays.
  bool is_moved(Member member) const;

  Lane& lane_;
  const uint64_t number_;  // of the lane's groups, in order of creation
  GroupAddress address_;
  Nanos keep_trying_ = 0;  // Lane::keep_trying()
  bool awake_ = false;     // in Lane::Turns::awake
  Nanos due_ = kNever;     // in Lane::Turns::asleep, unless kNever
  // Another group has left this address because of a flood; the core must be notified.
  bool flooded_ = false;
  std::vector<PeerId> peers_;  // by member; our own entry is kNoPeer
  std::map<Member, PeerId> stations_;
  std::map<Member, Status> out_of_reach_;  // stations that were met, and the reasons
  std::vector<Member> met_down_;           // lost before they were met, or out of reach
  // Sorted peers that received each other's multicast at proven_at_. Empty: unknown.
  std::vector<PeerId> proven_;
  Nanos proven_at_ = 0;
  std::shared_ptr<Counters> counters_;
  GroupCore core_;
};

// State that a lane shares with others of its process. Each pointer may be null.
struct LaneAccounts {
  // Counts the bytes of datagrams that were received and verified.
  std::shared_ptr<std::atomic<uint64_t>> arrived;
  std::shared_ptr<EgressShare> share;  // of the link
  std::shared_ptr<void> hold;          // its place in a quota
  bool watch = false;                  // count refusals by source, too
  MayReach may_reach;                  // checks stations, which others propose
};

// A lane is guarded or not as a whole: from the first group with a guard on, it accepts no datagram
// of version 1.
class Lane final : private DatagramSink, private StreamSink {
 public:
  explicit Lane(std::unique_ptr<Transport> transport, LaneAccounts accounts = {});
  ~Lane() override;

  Transport& transport() { return *transport_; }

  // The group receives from now on. Frames that arrived before it existed are replayed.
  LaneGroup& add_group(GroupParams params, const GroupAddress& address, std::vector<PeerId> peers,
                       Nanos now,
                       std::shared_ptr<Counters> counters = std::make_shared<Counters>());
  void remove_group(uint64_t tag);
  LaneGroup* find_group(uint64_t tag);
  // While the group is being created, attempts to connect to its members continue until `until`
  // (Stream::keep_trying()). 0: the group is made.
  void keep_trying(uint64_t tag, Nanos until);

  // Receives, replies, runs timers, sends. Returns true if it must be called again at once, false
  // if the lane is idle until deadline().
  bool poll(Nanos now);
  Nanos deadline(Nanos now) const;
  // Runs the callbacks of operations that have ended; poll() calls it. Returns true if others still
  // wait.
  bool deliver();
  // Call when poll() has left nothing to do. Returns how long the lane may sleep regardless of
  // arrivals; 0: not at all.
  Nanos coalesce(Nanos now);

  // Most bytes of early frames that are kept of one peer, bookkeeping included.
  static constexpr size_t kEarlyBytes = 64u << 10;

  // Datagrams and frames that matched no local group, or failed to parse.
  uint64_t foreign() const { return monitor_.count(Cause::foreign); }
  // neighbour(): those of other groups, from hosts of this lane's groups. late(): of groups that
  // were removed here.
  uint64_t neighbour() const { return seen_.neighbour; }
  uint64_t late() const { return seen_.late; }
  uint64_t malformed() const { return seen_.malformed; }
  // Counts of all refusals, including those within groups.
  const Monitor& monitor() const { return monitor_; }
  uint32_t busy_groups() const { return turns_.busy; }
  // Number of times that a group was progressed; measures the cost of having groups.
  uint64_t visits() const { return turns_.visits; }
  // A peer's connections broke, so it can never be reached from this lane again; or they may still
  // break. Any thread.
  bool poisoned() const { return poisoned_.load(std::memory_order_relaxed); }
  void poison() { poisoned_.store(true, std::memory_order_relaxed); }

 private:
  friend class LaneGroup;
  // A frame for a group that does not exist yet.
  struct Orphan {
    uint64_t tag;
    std::vector<std::byte> frame;
    Nanos at;
  };
  // Frames that one peer has sent too early.
  struct Early {
    std::deque<Orphan> frames;   // oldest first
    size_t bytes = 0;            // of the frames, bookkeeping included
    Nanos dropped = kNever;      // last time that a frame was dropped for lack of room
    std::vector<uint64_t> lost;  // tags of dropped frames, as many as are kept
  };

  // Whether the lane may send now, given that others want to as well. If not, it is polled soon.
  bool has_share();
  void sent(size_t bytes, bool by_multicast) {
    if (by_multicast) seen_.echoes += bytes;
    if (accounts_.share) accounts_.share->sent(bytes);
  }
  void on_datagram(ConstBytes datagram) override;
  void on_guarded(ConstBytes datagram);
  // The group with this tag. Null, and counted, if there is none here.
  LaneGroup* group_of_datagram(uint64_t tag);
  LaneGroup* look_up(uint64_t tag);
  void on_judged(DatagramVerdict verdict, size_t bytes);
  void on_unverified(DatagramVerdict verdict, size_t bytes);
  void on_placed(const SliceName& name, uint32_t word, uint64_t bits) override;
  void on_retired(const SliceName& name, const SliceCounts& counts) override;
  void note_received(size_t bytes);
  void refuse_datagram(Cause cause);
  void on_frame(PeerId peer, Channel channel, ConstBytes frame) override;
  void on_peer_down(PeerId peer, const Status& why, bool graceful) override;
  void on_stranger_gone(PeerId peer) override;
  void on_refused(Cause cause, Source source) override { monitor_.note(cause, source, now_); }
  void on_read(PeerId peer, uint64_t token, ConstBytes bytes) override;
  void on_corrupt_frame(PeerId peer, ConstBytes frame);
  void dispatch(LaneGroup& group, PeerId peer, const wire::FrameHeader& header, ConstBytes frame);
  // lane_early.cpp:
  void keep_orphan(uint64_t tag, PeerId peer, ConstBytes frame);
  void age(Early& early);
  void replay_orphans();
  void fail_overrun(LaneGroup& group);

  struct Down {
    Status why;
    bool graceful;
  };
  void tell_down(PeerId peer, const Down& down);

  // A separate sink per format: no check is needed for each datagram.
  class GuardedSink final : public DatagramSink {
   public:
    explicit GuardedSink(Lane& lane) : lane_(lane) {}
    void on_datagram(ConstBytes datagram) override { lane_.on_guarded(datagram); }

   private:
    Lane& lane_;
  };

  std::unique_ptr<Transport> transport_;
  const LaneAccounts accounts_;
  std::unordered_map<uint64_t, std::unique_ptr<LaneGroup>> groups_;
  // Groups that are progressed in every poll: work is in flight in them, or an event has just
  // occurred. An idle group is not visited until an event or its deadline.
  struct Turns {
    std::vector<LaneGroup*> awake;
    std::map<std::pair<Nanos, uint64_t>, LaneGroup*> asleep;  // by deadline and number
    uint64_t made = 0, visits = 0;                            // groups made, groups progressed
    uint32_t busy = 0;                                        // of `awake`
    void wake(LaneGroup& group);
    // Puts idle groups to sleep.
    void rest(Nanos now);
  } turns_;
  LaneGroup* last_ = nullptr;  // the group of the last datagram: usually also of the next
  std::unordered_map<PeerId, Early> early_;
  std::vector<uint64_t> fresh_;  // tags of groups that were added since the last poll
  OtherGroups others_;
  std::unordered_map<PeerId, Down> down_;
  // All stations ever met: their loss does not poison the lane.
  std::unordered_set<PeerId> station_peers_;
  // The read that a transport's token belongs to.
  struct Reader {
    uint64_t tag;
    uint32_t token;
  };
  std::unordered_map<uint64_t, Reader> readers_;
  uint64_t next_reader_ = 0;
  // Memory that peers may still be reading although its operation has failed.
  struct Grant {
    std::shared_ptr<void> hold;
    Nanos until;
  };
  std::deque<Grant> grants_;
  std::atomic<bool> poisoned_{false};
  Nanos now_ = 0;
  std::unique_ptr<GuardedSink> guarded_;  // null: the lane is not guarded
  bool waits_ = false;                    // in this poll: waits for its share of the link
  struct {
    uint64_t bytes = 0;  // of verified datagrams since the last coalesce(),
    Nanos since = 0;     // time of that call
  } taken_;
  // Datagrams since the lane was made.
  struct {
    uint64_t all = 0, own = 0, verified = 0;
    uint64_t malformed = 0, foreign = 0;
    uint64_t neighbour = 0, late = 0;  // for which no alarm is raised
    IgnoredMeter ignored;              // for ports of this host that nobody listens on
    size_t noise = 0;                  // useless bytes since the lane was drained
    size_t echoes = 0;                 // bytes that this lane sent, and may receive itself
  } seen_;
  Monitor monitor_;
};

inline GroupCore& LaneGroup::core() {
  if (!awake_) lane_.turns_.wake(*this);
  return core_;
}

inline bool LaneGroup::is_moved(Member member) const {
  const IpAddress from = lane_.transport_->datagram().source().address;
  if (!from.known() || member >= address_.sources.size()) return false;
  if (core_.failed()) return false;  // it does not look at headers any more
  const std::vector<IpAddress>& its = address_.sources[member];
  return !its.empty() && std::find(its.begin(), its.end(), from) == its.end();
}

}  // namespace mcast
