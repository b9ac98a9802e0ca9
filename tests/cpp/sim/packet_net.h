// A packet simulator for comparison with the fabric: each packet is separate, and each port is a
// queue of packets with an event for each departure. It is slow and simple, and shares only the
// routes with the fabric.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <queue>
#include <vector>

#include "sim/network/fabric.h"

namespace mcast::sim {

struct Packet {
  uint32_t id = 0;
  double wire = 0;
  bool multicast = false;
  Route route;
  uint32_t tree = kNone;
  uint8_t root_level = 0;
};

class PacketNet {
 public:
  PacketNet(const Topology& topology, const Router& router, const FabricOptions& options);

  void send(double at, HostId from, const Packet& packet);
  void run();

  struct Arrival {
    uint32_t packet = 0;
    HostId host = 0;
    double at = 0;
  };
  const std::vector<Arrival>& arrivals() const { return arrivals_; }
  const std::map<LinkId, double>& bytes() const { return bytes_; }
  uint64_t drops() const { return drops_; }

 private:
  struct Waiting {
    std::deque<Packet> packets;  // the first is being sent
    double bytes_left(double now) const;
    double first_done = 0, per_byte = 0;
  };
  struct Step {
    double at = 0;
    uint64_t number = 0;
    std::function<void()> run;
    bool operator<(const Step& other) const {
      return at != other.at ? at > other.at : number > other.number;
    }
  };

  void schedule(double at, std::function<void()> run);
  void enqueue(LinkId link, const Packet& packet);
  void begin(LinkId link);
  void arrive(LinkId link, const Packet& packet);
  const PortSpec& spec(LinkId link) const;

  const Topology& topology_;
  const Router& router_;
  FabricOptions options_;
  std::priority_queue<Step> steps_;
  uint64_t pushed_ = 0;
  double now_ = 0;
  std::vector<Waiting> ports_;
  std::vector<Arrival> arrivals_;
  std::map<LinkId, double> bytes_;
  uint64_t drops_ = 0;
};

}  // namespace mcast::sim
