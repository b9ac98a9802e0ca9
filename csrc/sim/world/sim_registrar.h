// The registrar of a simulated rank: the core of the real one, with requests and replies sent over
// the network.
// Threads: one.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "aggregation/member/registrar_core.h"
#include "sim/world/sim_thread.h"

namespace mcast::sim {

class SimRegistrar final : public SimThread, public Registrar, private StreamSink {
 public:
  // Returns the endpoint on which the aggregator of this name listens, if any.
  using Find = std::function<std::optional<PeerId>(const NetAddress& address)>;
  SimRegistrar(HostId host, Find find, SimThreads& all, const SimClock& clock,
               const LaneCosts& costs);
  ~SimRegistrar() override;

  Status enter(uint64_t group, Job job) override;
  void settled(uint64_t group, const std::vector<uint64_t>& uids) override;
  void lost(uint64_t group, uint64_t uid, const std::string& why) override;
  void parted(uint64_t group, uint64_t uid) override;
  std::vector<AggregatorStats> stats(uint64_t group) const override;
  void leave(uint64_t group) override;

 private:
  class Link;
  // The core's callback target for the events of one connection.
  struct Connection {
    uint64_t group = 0;
    size_t row = 0;
    PeerId to = kNoPeer;
    Link* link = nullptr;
  };

  Nanos act(Nanos now) override;
  void on_frame(PeerId peer, Channel channel, ConstBytes frame) override;
  void on_peer_down(PeerId peer, const Status& why, bool graceful) override;
  std::unique_ptr<RecordLink> connect(uint64_t group, size_t row, const NetAddress& address);
  void arrived(uint32_t connection, const Status& status);

  const HostId host_;
  const Find find_;
  std::unique_ptr<SimTransport> endpoint_;      // from the first group on
  std::map<uint32_t, Connection> connections_;  // open ones, by number
  uint32_t next_ = 0;
  RegistrarCore core_;
};

}  // namespace mcast::sim
