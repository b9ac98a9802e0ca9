// Options of a simulated network. There are two forms: the numbers below alone make a star on which
// every endpoint is a host and streams are ideal; `fabric` gives links, switches and queues, and
// streams that share them.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "base/types.h"
#include "sim/network/fabric.h"
#include "sim/network/flow_options.h"
#include "sim/network/heap_meter.h"

namespace mcast {

struct SimFaults {
  double drop = 0;       // per receiver and datagram
  double burst = 1;      // mean length of a loss burst, datagrams
  double duplicate = 0;  // `copies` more, each up to copy_delay later
  double reorder = 0;    // held back by up to reorder_delay
  double corrupt = 0;    // one bit flipped
  double refuse = 0;     // per train that an endpoint sends: its interface refuses it (ENOBUFS)
  Nanos reorder_delay = kMilli;
  int copies = 1;
  Nanos copy_delay = kMilli;
};

struct SimFabric {
  sim::FabricOptions links;
  sim::FlowOptions flows;
  uint32_t host_endpoints = 1;  // endpoints of one host share its interfaces
  unsigned train = 64;          // maximum number of datagrams that move together; 1: each alone
  uint16_t overhead = 66;       // wire bytes besides the datagram: IPv4, UDP, Ethernet, gap
  // Traffic class of each channel's frames in the accounts.
  std::array<sim::TrafficClass, kChannels> frames{
      sim::TrafficClass::kControl, sim::TrafficClass::kRepair, sim::TrafficClass::kReduce};
};

struct SimOptions {
  uint64_t seed = 1;
  size_t max_datagram = 1472;
  size_t receive_budget = 256 * 1024;  // payload bytes queued per endpoint; x 8/5 with bookkeeping
  size_t bookkeeping = 0;              // extra bytes that a datagram takes in a queue
  Nanos latency = 20 * kMicro;         // datagrams
  Nanos jitter = 5 * kMicro;
  Nanos stream_latency = 50 * kMicro;
  double rate = 0;                // link speed, bytes per second each way; 0: unlimited
  double stream_rate = 0;         // bytes per second of each bulk stream; 0: unlimited
  size_t send_queue = 64 * 1024;  // bytes a sender may have waiting when there is a rate
  size_t gather_from = SIZE_MAX;  // see Datagram; the memory is then read at flush()
  SimFaults faults;
  sim::HeapMeter* meter = nullptr;  // network memory belongs to no rank; null: not counted
  // Replaces latency, rate and stream_rate. `jitter` should then be 0: with it every datagram is
  // handed over alone.
  std::optional<SimFabric> fabric;
};

}  // namespace mcast
