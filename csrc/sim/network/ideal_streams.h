// Streams without losses and without waiting for acknowledgements: a frame arrives one latency (and
// a random part) after it was sent, later than the one before it. Bulk channels may have a rate
// each; bytes that it has not let leave yet are queued. They do not use the fabric's links.
// Threads: one.
#pragma once

#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "sim/network/numbered.h"
#include "sim/network/streams.h"

namespace mcast::sim {

struct IdealStreamOptions {
  Nanos latency = 50 * kMicro;
  Nanos jitter = 0;
  double rate = 0;  // bytes per second of each bulk stream; 0: unlimited
};

class IdealStreams final : public Streams {
 public:
  IdealStreams(const IdealStreamOptions& options, EventQueue& events, Rng& rng, StreamsOwner& owner)
      : options_(options), events_(events), rng_(rng), owner_(owner) {}

  void send(EndpointId from, EndpointId to, Channel channel, Frame frame) override;
  size_t queued(EndpointId from, EndpointId to, Channel channel) const override;
  void on_taken(EndpointId, EndpointId, Channel, size_t) override {}
  void cut(EndpointId a, EndpointId b) override;
  void close(EndpointId from, EndpointId to) override;
  void hold(EndpointId endpoint, bool held) override;
  void drop(EndpointId endpoint) override { dead_.insert(endpoint); }

  void on_event(EventKind kind, uint32_t index) override;
  void on_train(const TrainRef&, uint64_t) override {}
  void on_departure(const Train&) override {}

 private:
  enum class What : uint8_t { kArrival, kLeft, kEnd };
  struct Entry {
    What what = What::kArrival;
    EndpointId from = 0, to = 0;
    Channel channel = Channel::kControl;
    Frame frame;
    size_t bytes = 0;
  };

  void schedule(Nanos at, Entry entry);
  void arrive(Entry entry);

  IdealStreamOptions options_;
  EventQueue& events_;
  Rng& rng_;
  StreamsOwner& owner_;
  Numbered<Entry> entries_;
  std::unordered_map<uint64_t, Nanos> last_;     // arrival of each stream's last frame
  std::unordered_map<uint64_t, size_t> queued_;  // bytes that have not left
  std::set<std::pair<EndpointId, EndpointId>> cut_;
  std::set<EndpointId> dead_;
  std::unordered_map<EndpointId, std::vector<Entry>> held_;  // by endpoint that is held
};

}  // namespace mcast::sim
