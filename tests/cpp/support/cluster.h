// A cluster in virtual time: N lanes over one simulated network, driven by one loop. Every op's
// memory is checked byte for byte, with guard bytes around each region.
#pragma once

#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "crypto/datagram_guard.h"
#include "engine/lane.h"
#include "simulation/content.h"
#include "simulation/expected.h"
#include "support/lent_memory.h"
#include "support/station_node.h"
#include "transport/sim/sim_network.h"

namespace mcast::test {

using sim::check_pattern, sim::factor_of, sim::fill_pattern, sim::Folding;

// Bytes that rank `from` has for rank `to` in an exchange of blocks of `block` bytes; of an
// all_to_all that many at most, different for every pair.
size_t exchange_bytes(wire::Kind kind, uint64_t id, size_t block, Member root, uint32_t from,
                      uint32_t to);

// One op at one rank: its memory and its result.
struct OpRun {
  wire::Kind kind = wire::Kind::kBarrier;
  uint64_t id = 0;  // seeds the pattern
  Member root = 0;
  Member rank = 0;
  size_t block = 0;
  std::shared_ptr<Guarded> memory;
  std::shared_ptr<Guarded> input;  // of a reduction that is not in place, of an exchange
  Element element = Element::kFloat32;
  Reduction reduction = Reduction::kSum;
  Folding folding;  // its `absent` once it is done
  Sequence sequence = 0;
  int calls = 0;
  Status status;
  Nanos done_at = 0;
  bool guards_intact = true;  // and what compare() said, when it was done
  std::string verdict;

  bool done() const { return calls > 0; }
  // "" or what was wrong with the bytes when the operation was done.
  std::string check(uint32_t) const { return done() ? verdict : "not done"; }
  // "" or what is wrong with the bytes now, if it was to end well.
  std::string compare(uint32_t size) const;
  std::string compare_exchange(uint32_t size) const;
  // Of a reduction: the bytes that there must be.
  std::vector<std::byte> expected(uint32_t size) const {
    return sim::expected_result(kind, id, size, rank, element, reduction, block, folding);
  }
};

// MCAST_TEST_SECURITY, auth or sealed, else off: so that tests of groups run in all modes.
crypto::Mode security_of_environment();

struct ClusterOptions {
  uint32_t ranks = 4;
  SimOptions net;
  GroupParams group;               // self, tag and agreed.members are filled in
  bool one_address = false;        // for the multicast of all groups, which have ports of their own
  std::vector<std::string> racks;  // by rank; the same for ranks of one host
  std::function<void(SimNetwork&)> prepare;  // before the first group is made
  // Another medium than the simulated network, which then stands idle.
  std::function<std::unique_ptr<Transport>()> transport;
  // What stands between a rank and the simulated network.
  std::function<std::unique_ptr<Transport>(std::unique_ptr<Transport>)> wrap;
  // What a rank's lane has in common with others.
  std::function<LaneAccounts(Member)> accounts;
  // How far a rank's clock is ahead of the cluster's.
  std::function<Nanos(Member)> clock;
  // Why a rank cannot receive multicast at all; empty: it can.
  std::function<std::string(Member)> problem;
  // How long after the others a rank joins its groups; kNever: it never does (and has no group).
  std::function<Nanos(Member)> join_delay;
  // A lane gets turns only for what has come, is due or was left over, as its thread would give it;
  // else all of them whenever anything happens, and every 10 ms.
  bool sleepy = false;
  // How datagrams and streams are guarded, with keys that epochs and windows as small as these go
  // through.
  crypto::Mode security = security_of_environment();
  crypto::Suite suite = crypto::Suite::kAes128Gcm;
  crypto::EpochLimits epochs{200, uint64_t{1} << 20, 1u << 24};
  crypto::BudgetLimits budget;
  std::function<uint64_t(Member)> secret;  // its number; null: all have the same
};

// What stands between all ranks and the simulated network, whatever the options say: a program may
// run the tests of another with another receiver. One for each cluster.
class Surroundings {
 public:
  virtual ~Surroundings() = default;
  virtual std::unique_ptr<Transport> wrap(std::unique_ptr<Transport> medium, size_t endpoint) = 0;
  // Whether something is there that the endpoint's lane has not taken yet.
  virtual bool waiting(size_t endpoint) const = 0;
};
// What makes them, of this program; empty: nobody.
std::function<std::unique_ptr<Surroundings>(SimNetwork&)>& surround();

class Cluster {
 public:
  explicit Cluster(const ClusterOptions& options);
  ~Cluster();  // what its groups have counted goes into support/reach.h

  SimNetwork& net() { return net_; }
  Nanos now() const { return now_; }
  // What the clock of this rank's host says: hosts count from different beginnings.
  Nanos clock(Member r) const { return now_ + ahead_[r]; }
  // Its clock jumps, as of a process that did not run meanwhile: all its timers are late at once.
  void jump(Member r, Nanos by) { ahead_[r] += by; }
  uint32_t size() const { return options_.ranks; }
  Lane& lane(Member r) { return *lanes_[r]; }
  // Group `g` (0 is made by the constructor).
  LaneGroup& group(Member r, size_t g = 0) { return *groups_[g][r]; }
  // How its creation has ended at this rank; null: it has not.
  const Status* made(Member r, size_t g) const {
    const auto it = made_.find({r, g});
    return it == made_.end() ? nullptr : &it->second;
  }
  // Another group over the same endpoints; returns its index. Waits until it is made, or `limit`
  // passes.
  size_t add_group(const GroupParams& params, Nanos limit = 60 * kSecond);

  // Stations for group 0, in force from its operation `from` on; capacities in 1/65536 of a rank's
  // link. Returns the number of the first. The group's lane must be 1. `racks`: of stations.
  size_t add_stations(const std::vector<uint32_t>& capacities, uint32_t version = 1,
                      Sequence from = 0, const std::vector<std::string>& racks = {});
  // As add_stations(), but some ranks learn of the set later: `install` then does it for one.
  size_t make_stations(const std::vector<uint32_t>& capacities, uint32_t version, Sequence from,
                       const std::vector<std::string>& racks = {});
  void install(Member r);
  StationNode& station(size_t j) { return *stations_[j]; }
  size_t stations() const { return stations_.size(); }
  void kill_station(size_t j) {
    net_.kill(stations_[j]->endpoint());
    stopped_stations_[j] = true;
  }
  bool stopped(size_t j) const { return stopped_stations_[j]; }
  void stop_station(size_t j, bool stopped) { stopped_stations_[j] = stopped; }

  std::shared_ptr<OpRun> broadcast(Member rank, Member root, size_t bytes, uint64_t id,
                                   Nanos timeout = kNever, size_t g = 0);
  std::shared_ptr<OpRun> allgather(Member rank, size_t block, uint64_t id, Nanos timeout = kNever,
                                   size_t g = 0);
  // A reduction by sum of int32; `bytes` are rounded down to whole elements.
  std::shared_ptr<OpRun> reduction(Member rank, wire::Kind kind, Member root, size_t bytes,
                                   uint64_t id, Nanos timeout = kNever, size_t g = 0);
  // `bytes`: of all_to_all the most that a block has.
  std::shared_ptr<OpRun> exchange(Member rank, wire::Kind kind, Member root, size_t bytes,
                                  uint64_t id, Nanos timeout = kNever, size_t g = 0);
  std::shared_ptr<OpRun> barrier(Member rank, Nanos timeout = kNever, size_t g = 0);
  // An op as described, for calls that ranks disagree about; an all_to_all as exchange(). `then`
  // runs in the completion callback.
  std::shared_ptr<OpRun> call(Member rank, const wire::Descriptor& descriptor, uint64_t id,
                              Nanos timeout = kNever, size_t g = 0,
                              std::function<void()> then = {});

  // Runs when an operation is done, before its memory is given back.
  std::function<void(const OpRun& run)> at_done;
  // Of an operation that is done: ranks whose inputs are missing in its result.
  std::function<std::vector<Member>(Sequence)> absent;
  // Changes what the calls above post, just before.
  std::function<void(Member rank, Post& post)> adjust;

  // Drives everything until `until()` or `limit` of virtual time passes; returns until(). A paused
  // rank's lane is not polled (a stopped process).
  template <typename Until>
  bool run(Until until, Nanos limit = 60 * kSecond);
  void run_for(Nanos time) {
    const Nanos end = now_ + time;
    run([&] { return now_ >= end; }, time + 1);
  }
  void pause(Member r, bool paused) { paused_[r] = paused; }
  // Runs `action` when virtual time reaches `when`.
  void at(Nanos when, std::function<void()> action) { actions_.emplace(when, std::move(action)); }
  // Kills the process of this rank: its streams break and its lane is never polled again.
  void kill(Member r) {
    net_.kill(r);
    paused_[r] = killed_[r] = true;
  }
  bool paused(Member r) const { return paused_[r]; }
  // Most idle polls in a row of one lane whose deadline had passed all the same: a real lane thread
  // would have span instead of sleeping.
  uint64_t spins() const { return most_spins_; }
  // Polls of all lanes.
  uint64_t turns() const { return turns_; }
  size_t groups() const { return groups_.size(); }

  uint64_t total(Counter c, size_t g = 0) const;
  // The key that all keys of a group's datagrams follow from, as each of its ranks has it.
  crypto::Key datagram_root(Member r, uint64_t tag) const;

 private:
  void step(Nanos latest);  // which is as far as time goes
  Nanos next_time() const;
  void join(Member r, size_t g, GroupParams params, const MulticastAddress& address,
            std::function<void(const Status&)> ready);
  std::shared_ptr<crypto::DatagramGuard> guard(Member r, const GroupParams& params);
  std::unique_ptr<SimTransport> attach(crypto::Role role, uint64_t secret);
  uint64_t secret_of(Member r) const { return options_.secret ? options_.secret(r) : 1; }
  // Memory of a call, and what is posted of it.
  void fill_reduction(const GroupCore& core, OpRun& run, Post& post) const;
  void fill_streams(OpRun& run, Post& post) const;
  void fill_exchange(OpRun& run, Post& post) const;

  ClusterOptions options_;
  SimNetwork net_;
  std::unique_ptr<Surroundings> surroundings_;
  std::map<std::pair<Member, size_t>, Status> made_;  // by lanes, which go before it
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::vector<std::unique_ptr<StationNode>> stations_;
  std::vector<bool> stopped_stations_;
  StationSet set_;  // the latest
  std::vector<StreamAddress> set_at_;
  std::vector<std::vector<LaneGroup*>> groups_;
  std::vector<std::shared_ptr<Counters>> counters_;  // of all groups ever made
  std::vector<bool> paused_, killed_;
  std::vector<Nanos> ahead_;     // by rank, its clock
  std::vector<bool> left_over_;  // by lane: it is to have a turn, come what may
  std::vector<uint64_t> spins_;  // by lane, in a row
  uint64_t most_spins_ = 0;
  uint64_t turns_ = 0;
  std::multimap<Nanos, std::function<void()>> actions_;
  Nanos now_ = kMilli;
  bool busy_ = false;
};

template <typename Until>
bool Cluster::run(Until until, Nanos limit) {
  const Nanos end = now_ + limit;
  left_over_.assign(left_over_.size(), true);  // the caller may have posted something
  // The event count bounds a run whose virtual time does not move.
  for (uint64_t turns = 0; turns < 20'000'000; turns++) {
    if (until()) return true;
    if (now_ > end) return false;
    step(end + 1);
  }
  return false;
}

}  // namespace mcast::test
