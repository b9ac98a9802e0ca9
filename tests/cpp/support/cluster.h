// A cluster in virtual time: N lanes over one simulated network, driven by one loop. The memory of
// every operation is checked byte for byte and has guard bytes on both sides.
#pragma once

#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "crypto/datagram_guard.h"
#include "runtime/lane.h"
#include "sim/network/content.h"
#include "sim/network/expected.h"
#include "sim/network/sim_network.h"
#include "support/lent_memory.h"

namespace mcast::test {

using sim::check_pattern, sim::factor_of, sim::fill_pattern, sim::Folding;

// Number of bytes that rank `from` has for rank `to` in an exchange of blocks of `block` bytes. For
// an all_to_all it is at most `block` and differs for every pair.
size_t exchange_bytes(wire::Kind kind, uint64_t id, size_t block, Member root, uint32_t from,
                      uint32_t to);

// One operation at one rank: its memory and its result.
struct OpRun {
  wire::Kind kind = wire::Kind::kBarrier;
  uint64_t id = 0;  // seeds the pattern
  Member root = 0;
  Member rank = 0;
  size_t block = 0;
  std::shared_ptr<Guarded> memory;
  std::shared_ptr<Guarded> input;  // for exchanges and reductions that are not in place
  Element element = Element::kFloat32;
  Reduction reduction = Reduction::kSum;
  Folding folding;  // `absent` is valid once the operation is done
  Sequence sequence = 0;
  int calls = 0;
  Status status;
  Nanos done_at = 0;
  bool guards_intact = true;  // when the operation was done, like compare()'s result below
  std::string verdict;

  bool done() const { return calls > 0; }
  // "" or the error in the bytes when the operation was done.
  std::string check(uint32_t) const { return done() ? verdict : "not done"; }
  // "" or the error in the bytes now, for an operation that must succeed.
  std::string compare(uint32_t size) const;
  std::string compare_exchange(uint32_t size) const;
  // The expected result of a reduction.
  std::vector<std::byte> expected(uint32_t size) const {
    return sim::expected_result(kind, id, size, rank, element, reduction, block, folding);
  }
};

// Returns MCAST_TEST_SECURITY (auth or sealed), by default off, so that tests of groups can run in
// all modes.
crypto::Mode security_of_environment();

struct ClusterOptions {
  uint32_t ranks = 4;
  SimOptions net;
  GroupParams group;               // self, tag and agreed.members are filled in
  bool one_address = false;        // all groups share a multicast address; each has its own port
  std::vector<std::string> racks;  // by rank; equal for ranks of one host
  std::function<void(SimNetwork&)> prepare;  // runs before the first group is made
  // Replaces the simulated network, which is then idle.
  std::function<std::unique_ptr<Transport>()> transport;
  // Wraps a rank's endpoint of the simulated network.
  std::function<std::unique_ptr<Transport>(std::unique_ptr<Transport>)> wrap;
  // The accounts that a rank's lane shares with other lanes.
  std::function<LaneAccounts(Member)> accounts;
  // How far a rank's clock is ahead of the cluster's clock.
  std::function<Nanos(Member)> clock;
  // The reason why a rank cannot receive multicast at all; empty if it can.
  std::function<std::string(Member)> problem;
  // The delay after which a rank joins its groups; kNever: it never does and has no group.
  std::function<Nanos(Member)> join_delay;
  // If set, a lane is polled only for arrived data, due deadlines or leftover work, as its thread
  // would poll it. Otherwise all lanes are polled whenever anything happens, and every 10 ms.
  bool sleepy = false;
  // How datagrams and streams are guarded. Epochs and windows are small, so that a run goes through
  // several keys.
  crypto::Mode security = security_of_environment();
  crypto::Suite suite = crypto::Suite::kAes128Gcm;
  crypto::EpochLimits epochs{200, uint64_t{1} << 20, 1u << 24};
  crypto::BudgetLimits budget;
  std::function<uint64_t(Member)> secret;  // number of its secret; null: all ranks have the same
};

// Wraps the simulated network for all ranks, whatever the options are, so that a program can run
// the tests of another one with a different receiver. There is one for each cluster.
class Surroundings {
 public:
  virtual ~Surroundings() = default;
  virtual std::unique_ptr<Transport> wrap(std::unique_ptr<Transport> medium, size_t endpoint) = 0;
  // Returns true if data is here that the endpoint's lane has not taken yet.
  virtual bool waiting(size_t endpoint) const = 0;
};
// The factory of this program's Surroundings; empty: none.
std::function<std::unique_ptr<Surroundings>(SimNetwork&)>& surround();

class Cluster {
 public:
  explicit Cluster(const ClusterOptions& options);
  virtual ~Cluster();  // adds its groups' counters to support/reach.h

  SimNetwork& net() { return net_; }
  Nanos now() const { return now_; }
  // The clock of this rank's host. Each host's clock starts at a different value.
  Nanos clock(Member r) const { return now_ + ahead_[r]; }
  // Moves the clock forward as if the process had not run meanwhile: all its timers are late at
  // once.
  void jump(Member r, Nanos by) { ahead_[r] += by; }
  uint32_t size() const { return options_.ranks; }
  Lane& lane(Member r) { return *lanes_[r]; }
  // Group `g`; the constructor makes group 0.
  LaneGroup& group(Member r, size_t g = 0) { return *groups_[g][r]; }
  // The result of the group's creation at this rank; null while it is not over.
  const Status* made(Member r, size_t g) const {
    const auto it = made_.find({r, g});
    return it == made_.end() ? nullptr : &it->second;
  }
  // Makes another group over the same endpoints and returns its index. Waits until it is made or
  // `limit` has passed.
  size_t add_group(const GroupParams& params, Nanos limit = 60 * kSecond);

  std::shared_ptr<OpRun> broadcast(Member rank, Member root, size_t bytes, uint64_t id,
                                   Nanos timeout = kNever, size_t g = 0);
  std::shared_ptr<OpRun> allgather(Member rank, size_t block, uint64_t id, Nanos timeout = kNever,
                                   size_t g = 0);
  // A sum of int32; `bytes` is rounded down to whole elements.
  std::shared_ptr<OpRun> reduction(Member rank, wire::Kind kind, Member root, size_t bytes,
                                   uint64_t id, Nanos timeout = kNever, size_t g = 0);
  // `bytes` is the size of a block; for all_to_all, the maximum.
  std::shared_ptr<OpRun> exchange(Member rank, wire::Kind kind, Member root, size_t bytes,
                                  uint64_t id, Nanos timeout = kNever, size_t g = 0);
  std::shared_ptr<OpRun> barrier(Member rank, Nanos timeout = kNever, size_t g = 0);
  // Posts any operation, including ones that ranks disagree about; an all_to_all works as in
  // exchange(). `then` runs in the completion callback.
  std::shared_ptr<OpRun> call(Member rank, const wire::Descriptor& descriptor, uint64_t id,
                              Nanos timeout = kNever, size_t g = 0,
                              std::function<void()> then = {});

  // Called when an operation is done, before its memory is given back.
  std::function<void(const OpRun& run)> at_done;
  // Returns, for a completed operation, the ranks whose inputs are missing in its result.
  std::function<std::vector<Member>(Sequence)> absent;
  // Changes the posts of the calls above just before they are posted.
  std::function<void(Member rank, Post& post)> adjust;

  // Drives everything until `until()` holds or `limit` of virtual time has passed; returns until().
  // The lane of a paused rank is not polled, like a stopped process.
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
  // The longest series of idle polls of one lane whose deadline had passed all the time. A real
  // lane thread would have spun instead of sleeping.
  uint64_t spins() const { return most_spins_; }
  // Number of polls of all lanes.
  uint64_t turns() const { return turns_; }
  size_t groups() const { return groups_.size(); }

  uint64_t total(Counter c, size_t g = 0) const;
  // The key from which all keys of a group's datagrams are derived, as each rank of the group has
  // it.
  crypto::Key datagram_root(Member r, uint64_t tag) const;

 protected:
  // For derived classes that add other nodes to the network. They are polled after the lanes.
  virtual Nanos nodes_deadline() const { return kNever; }
  // Returns true if there is more to do at once.
  virtual bool poll_nodes() { return false; }
  // Adds an endpoint to the network, guarded as the ranks' endpoints are.
  std::unique_ptr<SimTransport> attach(crypto::Role role, uint64_t secret);

 private:
  void step(Nanos latest);  // time does not pass `latest`
  Nanos next_time() const;
  void join(Member r, size_t g, GroupParams params, const MulticastAddress& address,
            std::function<void(const Status&)> ready);
  std::shared_ptr<crypto::DatagramGuard> guard(Member r, const GroupParams& params);
  uint64_t secret_of(Member r) const { return options_.secret ? options_.secret(r) : 1; }
  // Fill a call's memory and the matching fields of its post.
  void fill_reduction(const GroupCore& core, OpRun& run, Post& post) const;
  void fill_streams(OpRun& run, Post& post) const;
  void fill_exchange(OpRun& run, Post& post) const;

  ClusterOptions options_;
  SimNetwork net_;
  std::unique_ptr<Surroundings> surroundings_;
  std::map<std::pair<Member, size_t>, Status> made_;  // by lane; set before the lanes go
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::vector<std::vector<LaneGroup*>> groups_;
  std::vector<std::shared_ptr<Counters>> counters_;  // of all groups ever made
  std::vector<bool> paused_, killed_;
  std::vector<Nanos> ahead_;     // each rank's clock minus the cluster's
  std::vector<bool> left_over_;  // by lane: it must be polled again
  std::vector<uint64_t> spins_;  // by lane, consecutive
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
