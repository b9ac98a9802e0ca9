// Short programs on a cluster: post an operation on every rank, wait, and expect exact results.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>

#include "support/cluster.h"
#include "wire/datagram.h"
#include "wire/frame.h"

namespace mcast::test {

constexpr Nanos kLiveness = 2 * kSecond;  // the limit of ranks()

// Options of n ranks in a tree of arity 2.
inline ClusterOptions ranks(uint32_t n, bool ring = false) {
  ClusterOptions o;
  o.ranks = n;
  o.group.name = "job";
  o.group.arity = 2;
  o.group.liveness_limit = kLiveness;
  o.group.multicast.wanted = !ring;
  return o;
}

// Stations fold reductions of at least 1 MiB, including reduce_scatters. Datagrams are large, since
// the frames tested here go by streams.
inline ClusterOptions with_stations(uint32_t n) {
  ClusterOptions o;
  o.ranks = n;
  o.group.lane = 1;
  o.group.agreed.incast = 64 << 10;
  o.group.agreed.aggregate = AggregateMode::kBoth;
  o.group.agreed.chunk = 8192;
  o.net.max_datagram = 8192 + wire::kDatagramHeader;
  return o;
}

inline bool has(const Status& status, const std::string& part) {
  return status.message().find(part) != std::string::npos;
}

using Runs = std::vector<std::shared_ptr<OpRun>>;

inline bool all_done(const Runs& runs) {
  return std::all_of(runs.begin(), runs.end(), [](const auto& r) { return r->done(); });
}

inline void expect_good(const Runs& runs, uint32_t size) {
  for (const auto& r : runs) {
    ASSERT_EQ(r->calls, 1) << "rank " << r->rank << " op " << r->id;
    ASSERT_TRUE(r->status.ok()) << r->status.to_string();
    ASSERT_EQ(r->check(size), "");
  }
}

inline Runs broadcast_all(Cluster& c, Member root, size_t bytes, uint64_t id) {
  Runs runs;
  for (Member r = 0; r < c.size(); r++) runs.push_back(c.broadcast(r, root, bytes, id));
  return runs;
}

inline Runs allgather_all(Cluster& c, size_t block, uint64_t id) {
  Runs runs;
  for (Member r = 0; r < c.size(); r++) runs.push_back(c.allgather(r, block, id));
  return runs;
}

inline Runs barrier_all(Cluster& c) {
  Runs runs;
  for (Member r = 0; r < c.size(); r++) runs.push_back(c.barrier(r));
  return runs;
}

// Runs until all operations are done and every group is quiet. Checks the results, and that the
// lanes slept.
inline void finish(Cluster& c, const Runs& runs, Nanos limit = 60 * kSecond) {
  ASSERT_TRUE(c.run([&] { return all_done(runs); }, limit)) << "hangs";
  expect_good(runs, c.size());
  ASSERT_TRUE(c.run(
      [&] {
        for (Member r = 0; r < c.size(); r++) {
          if (!c.group(r).core().quiet()) return false;
        }
        return true;
      },
      limit))
      << "not released";
  EXPECT_LE(c.spins(), 3u);
}

// Parses a datagram of stream data; returns false for any other datagram.
inline bool is_data(ConstBytes datagram, wire::DatagramHeader& h) {
  return wire::parse_datagram(datagram, h) == wire::ParseError::kNone &&
         h.type == wire::DatagramType::kData;
}

}  // namespace mcast::test
