// Clusters whose multicast fails and recovers, for tests of path changes.
#pragma once

#include <memory>

#include "support/program.h"

namespace mcast::test {

// Drops all multicast between ranks, or delivers it again.
inline void silence(Cluster& c, bool silent = true) {
  for (size_t from = 0; from < c.size(); from++) {
    c.net().block_multicast(from, SIZE_MAX, silent);
  }
}

// A group that was made on multicast, which fails afterwards. A stopped rank is missed after a
// second.
inline std::unique_ptr<Cluster> silenced(uint32_t ranks) {
  ClusterOptions options;
  options.ranks = ranks;
  options.group.liveness_limit = kSecond;
  auto cluster = std::make_unique<Cluster>(options);
  silence(*cluster);
  return cluster;
}

// A group that was made on the ring because multicast did not work; now it works.
inline std::unique_ptr<Cluster> made_on_ring(ClusterOptions options) {
  options.prepare = [ranks = options.ranks](SimNetwork& net) {
    for (size_t from = 0; from < ranks; from++) net.block_multicast(from, SIZE_MAX);
  };
  auto cluster = std::make_unique<Cluster>(options);
  silence(*cluster, false);
  return cluster;
}

}  // namespace mcast::test
