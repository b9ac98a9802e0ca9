// What the members of a group agree on when it is made. Plain data; all plans are computed from it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/fold_order.h"
#include "protocol/racks.h"

namespace mcast {

// The setting `aggregate`.
enum class AggregateMode : uint8_t {
  kCareful,  // a reduce_scatter is planned for an all_gather beside it, but alone it must not take
             // more than 9/8 of its time without stations
  kBoth,     // it is planned for an all_gather beside it
  kOff,      // the ranks fold everything
};

// Parses the setting.
constexpr AggregateMode aggregate_mode(std::string_view setting) noexcept {
  return setting == "both"  ? AggregateMode::kBoth
         : setting == "off" ? AggregateMode::kOff
                            : AggregateMode::kCareful;
}

struct Agreed {
  uint32_t members = 1;
  uint32_t contributors = 0;  // to one block of a reduction: number of hosts; 0: members
  size_t chunk = 1408;        // payload bytes per datagram
  size_t guard = 0;           // bytes that the guard adds to a datagram
  // Smallest receive budget of any member: payload bytes that a socket queues.
  size_t budget = 128 * 1024;
  size_t batch = 64 * 1024;   // bytes of one send batch
  size_t eager = 32 * 1024;   // setting
  size_t staging = 4u << 20;  // setting
  size_t window = 0;          // setting; 0: from the budget
  uint32_t chains = 0;        // setting; 0: chosen here
  uint32_t reorder = 0;       // setting; 0: one batch
  uint32_t share = 1;         // groups that use a receiver's link at the same time, as parts of one
  uint32_t stripes = 1;       // interfaces that the multicast lane alternates between
  size_t port_queue = 2u << 20;  // setting: bytes of all roots that may queue at a switch port
  size_t incast = 1u << 20;      // setting: bytes of contributions that one owner may have granted
  FoldOrder fold = FoldOrder::kRank;                  // setting
  AggregateMode aggregate = AggregateMode::kCareful;  // setting
  bool source_auth = false;                           // setting
  Racks racks;                                        // of the contributors
};

}  // namespace mcast
