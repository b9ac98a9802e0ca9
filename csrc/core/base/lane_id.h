// The two lanes of a group, and containers with one element for each.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace mcast {

// The multicast lane carries broadcasts and all-gathers, the reduce lane reductions. The numbers
// are those of the lane bit on the wire, and of the entries of an exact list of interfaces.
enum class LaneId : uint8_t { kMulticast = 0, kReduce = 1 };

inline constexpr size_t kLanes = 2;
inline constexpr std::array<LaneId, kLanes> kBothLanes = {LaneId::kMulticast, LaneId::kReduce};

constexpr size_t index_of(LaneId lane) { return static_cast<size_t>(lane); }
constexpr LaneId other_lane(LaneId lane) {
  return lane == LaneId::kMulticast ? LaneId::kReduce : LaneId::kMulticast;
}

template <typename T>
struct PerLane {
  T multicast{}, reduce{};
  T& operator[](LaneId lane) { return lane == LaneId::kMulticast ? multicast : reduce; }
  const T& operator[](LaneId lane) const { return lane == LaneId::kMulticast ? multicast : reduce; }
};

}  // namespace mcast
