// What packets carry, as accounts tell it apart.
#pragma once

#include <cstddef>
#include <cstdint>

namespace mcast::sim {

enum class TrafficClass : uint8_t {
  kData,        // chunks, by multicast, also those multicast once more: nothing tells them apart
  kBackground,  // traffic of others
  kPosition,    // how far a sender is
  kProbe,       // whether multicast works
  kControl,     // frames of the control channel
  kRepair,      // frames of the repair channel
  kReduce,      // contributions and results
  kRing,        // blocks that go from rank to rank
  kAck,         // of streams
};
inline constexpr size_t kTrafficClasses = 9;

const char* traffic_class_name(TrafficClass what) noexcept;

}  // namespace mcast::sim
