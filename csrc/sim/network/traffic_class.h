// Contents of packets, as the accounts distinguish them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace mcast::sim {

enum class TrafficClass : uint8_t {
  kData,        // chunks by multicast, first and repeated ones: not distinguishable
  kBackground,  // background traffic
  kPosition,    // positions of senders
  kProbe,       // tests whether multicast works
  kControl,     // frames of the control channel
  kRepair,      // frames of the repair channel
  kReduce,      // contributions and results
  kRing,        // blocks passed from rank to rank
  kAck,         // acknowledgements of streams
};
inline constexpr size_t kTrafficClasses = 9;

const char* traffic_class_name(TrafficClass what) noexcept;

}  // namespace mcast::sim
