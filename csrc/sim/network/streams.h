// Carries frames from one endpoint to another, in order for each (from, to, channel). Two kinds:
// IdealStreams, which have a latency and perhaps a rate of their own, and Flows, which are packets
// with windows, acknowledgements and losses on the same links as all other traffic.
//
// Ownership: the owner outlives it and is notified of arrivals. Threads: one.
#pragma once

#include <cstddef>
#include <vector>

#include "sim/network/event_queue.h"
#include "sim/network/train.h"
#include "transport/transport.h"

namespace mcast::sim {

// One unit that a stream carries. On a guarded endpoint it belongs to one connection and may open
// or end it, as ports and flags of TCP do: that takes no bytes. Without a guard there is one
// connection, 0.
struct Frame : std::vector<std::byte> {
  using std::vector<std::byte>::vector;

  enum class Sign : uint8_t { kBytes, kOpen, kReset };
  uint64_t connection = 0;
  Sign sign = Sign::kBytes;
};

class StreamsOwner {
 public:
  virtual ~StreamsOwner() = default;
  virtual void on_stream_frame(EndpointId from, EndpointId to, Channel channel, Frame frame) = 0;
  // A frame that is a length only (Flows::send_length) has arrived completely.
  virtual void on_stream_length(EndpointId /*from*/, EndpointId /*to*/, Channel /*channel*/,
                                uint64_t /*bytes*/, uint64_t /*note*/) {}
  // All that `from` had sent before close() has arrived at `to`.
  virtual void on_stream_closed(EndpointId from, EndpointId to) = 0;
  virtual Place place_of(EndpointId endpoint) const = 0;
  // Returns the traffic class of a stream's packets; called once, when the stream is first used.
  virtual TrafficClass class_of(EndpointId from, Channel channel) const = 0;
  // Some of the bytes that `from` has queued were taken.
  virtual void on_room(EndpointId /*from*/) {}
};

class Streams {
 public:
  virtual ~Streams() = default;
  virtual void send(EndpointId from, EndpointId to, Channel channel, Frame frame) = 0;
  // As Stream::queued().
  virtual size_t queued(EndpointId from, EndpointId to, Channel channel) const = 0;
  // The receiver took this many bytes of frames that had arrived.
  virtual void on_taken(EndpointId from, EndpointId to, Channel channel, size_t bytes) = 0;
  // Loses everything in flight between these two, and everything that is sent later.
  virtual void cut(EndpointId a, EndpointId b) = 0;
  // `from` sends nothing more to `to`.
  virtual void close(EndpointId from, EndpointId to) = 0;
  // Stops all traffic to and from this endpoint until it is released; nothing is lost.
  virtual void hold(EndpointId endpoint, bool held) = 0;
  // An endpoint died: it neither sends nor receives.
  virtual void drop(EndpointId endpoint) = 0;

  virtual void on_event(EventKind kind, uint32_t index) = 0;
  // Called by the fabric, for trains with a flow.
  virtual void on_train(const TrainRef& train, uint64_t mask) = 0;
  virtual void on_departure(const Train& train) = 0;
};

// One number for a stream: endpoints are below 2^31.
inline uint64_t stream_key(EndpointId from, EndpointId to, Channel channel) {
  return uint64_t{from} << 33 | uint64_t{to} << 2 | static_cast<uint64_t>(channel);
}

}  // namespace mcast::sim
