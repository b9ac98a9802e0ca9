// Chooses the RDMA port. rdma_cm reports which ports are behind which IP addresses; the choice
// among them is a pure function.
//
// Grammar (NCCL_IB_HCA's): a comma list of device name prefixes, each with an optional port,
// "mlx5_0:1,mlx5_1". A leading '=' makes the names exact, a leading '^' turns the list into
// exclusions, "^=" into exact exclusions. Among several matches the earlier entry of the list wins,
// then the system's order. Empty: the first port that is active.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "transport/udp/netif.h"

namespace mcast::verbs {

struct Port {
  std::string device;  // "mlx5_0"
  uint8_t number = 1;
  bool active = false;
  Interface interface;  // the network interface with the port's address
  std::string text() const { return device + ":" + std::to_string(number); }
};

struct HcaPattern {
  struct Entry {
    std::string name;
    int port = -1;  // -1: any port
  };
  bool exclude = false;
  bool exact = false;
  std::vector<Entry> entries;

  // kInvalidArgument if the list or a name is empty, or a port is not a number from 1 to 255.
  static Result<HcaPattern> parse(std::string_view text);
  // Position of the first entry that matches, or -1. Ignores `exclude`.
  int match(const Port& port) const;
};

// kUnavailable if nothing matches; the error names the pattern and the existing ports. `lane`: an
// exact list gives its i-th usable port to lane i, and starts over at its end.
Result<Port> choose_port(const std::vector<Port>& ports, std::string_view pattern, size_t lane = 0);

}  // namespace mcast::verbs
