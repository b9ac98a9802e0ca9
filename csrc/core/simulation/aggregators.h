// The aggregators of a world, on hosts of their own, and the registrars of its ranks, which ask
// them. Aggregators may die, end in order, stand still and come back, as events of the world.
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

#include "simulation/sim_aggregator.h"
#include "simulation/sim_registrar.h"

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

  // As in the setting `aggregators`.
  std::string addresses() const;

  // The registrar of a rank; made at the first call. `clock` and `costs` outlive this object.
  Registrar& registrar_of(uint32_t rank, HostId host, const SimClock& clock,
                          const LaneCosts& costs);
  void kill_rank(uint32_t rank);
  void pause_rank(uint32_t rank, bool paused);
  void isolate_rank(uint32_t rank, bool isolated);
  // The rank's clock has changed.
  void look_again(uint32_t rank);

  // Its process dies; ends as at SIGTERM; does not run for a while; is started, if it does not run.
  void kill(size_t i);
  void end(size_t i, Nanos patience);
  void pause(size_t i, bool paused);
  // Nothing reaches or leaves it, and nobody is told.
  void isolate(size_t i, bool isolated);
  void start(size_t i);
  bool runs(size_t i) const;
  // Whose endpoint it is, if it is one's.
  std::optional<size_t> at(size_t endpoint) const;
  // Of the process that runs, or was the last to.
  service::Report report(size_t i) const { return all_[i].process->report(); }

  // Of the network: whether the endpoint is one of these; whether a turn was one.
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
    SimThread* thread = nullptr;  // null: not of these, or gone
    HostId host = 0;
  };
  std::vector<Endpoint> endpoints_;
  std::deque<One> all_;  // references stay
  // Processes that were: what is under way may still name them.
  std::vector<std::unique_ptr<SimAggregator>> past_;
  std::map<uint32_t, std::unique_ptr<SimRegistrar>> registrars_;  // by rank
  uint64_t started_ = 0;
};

}  // namespace mcast::sim
