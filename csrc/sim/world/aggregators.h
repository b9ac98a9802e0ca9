// The aggregators of a world, on their own hosts, and the registrars with which its ranks contact
// them. Aggregators may be killed, end in order, pause and restart, as events of the world.
//
// Threads: one.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sim/world/sim_aggregator.h"
#include "sim/world/sim_registrar.h"

namespace mcast::sim {

struct AggregatorSpec {
  HostId host = 0;
  std::string rack;
  service::Options options;
  LaneCosts costs;
  SimClock clock{0, 1};
};

class Aggregators final : private SimThreads {
 public:
  // All run. `place`: plane and queue of a host's interfaces that the reduce lane uses.
  Aggregators(SimNetwork& network, const std::vector<AggregatorSpec>& all, uint64_t seed,
              const Place& place, SimSecurity& security);
  ~Aggregators() override;

  // Addresses in the form of the setting `aggregators`.
  std::string addresses() const;

  // The registrar of a rank; made at the first call. `clock` and `costs` outlive this object.
  Registrar& registrar_of(uint32_t rank, HostId host, const SimClock& clock,
                          const LaneCosts& costs);
  void kill_rank(uint32_t rank);
  void pause_rank(uint32_t rank, bool paused);
  void isolate_rank(uint32_t rank, bool isolated);
  // Must be called when the rank's clock has changed.
  void look_again(uint32_t rank);

  // Four events of an aggregator's process: it is killed; it ends as at SIGTERM; it is paused; it
  // is started if it does not run.
  void kill(size_t i);
  void end(size_t i, Nanos patience);
  void pause(size_t i, bool paused);
  // Cuts it off: nothing reaches or leaves it, and no peer is notified.
  void isolate(size_t i, bool isolated);
  void start(size_t i);
  bool runs(size_t i) const;
  // Returns the aggregator that owns the endpoint, if any.
  std::optional<size_t> at(size_t endpoint) const;
  // Report of the running process, or of the last one that ran.
  service::Report report(size_t i) const { return all_[i].process->report(); }

  // Called by the network. Each returns true if the endpoint (the turn) belongs to an aggregator.
  bool on_news(size_t endpoint);
  bool on_turn(uint32_t what);

 private:
  struct One {
    AggregatorSpec spec;
    std::unique_ptr<SimAggregator> process;
    bool isolated = false;
  };

  SimNetwork& network() override { return network_; }
  std::unique_ptr<SimTransport> attach(HostId host, SimThread& thread) override;
  void forget(SimThread& thread) override;
  SimSecurity& security() override { return security_; }
  void kill_at(HostId host);

  SimThreads& threads_ = *this;
  SimNetwork& network_;
  const uint64_t seed_;
  const Place place_;
  SimSecurity& security_;
  struct Endpoint {
    SimThread* thread = nullptr;  // null: not an aggregator's, or gone
    HostId host = 0;
  };
  std::vector<Endpoint> endpoints_;
  std::deque<One> all_;  // references stay valid
  // Former processes, kept because pending events may still refer to them.
  std::vector<std::unique_ptr<SimAggregator>> past_;
  std::map<uint32_t, std::unique_ptr<SimRegistrar>> registrars_;  // by rank
  uint64_t started_ = 0;
};

}  // namespace mcast::sim
