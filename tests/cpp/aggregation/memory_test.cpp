// A station's memory stays within its admission's reservation, whatever its ranks send.
#include <gtest/gtest.h>

#include "aggregation/fold/job.h"
#include "aggregation/station_world.h"

namespace mcast {
namespace {

using test::StationWorld;

Sequence memory_call(StationWorld& w) {
  return w.call(wire::Kind::kAllreduce, Element::kFloat32, Reduction::kSum, 3 * 8 * 4096);
}

// The ranks declare how long their operations are. Lists stay within the reservation whatever they
// declare.
TEST(Memory, ListsBeyondTheReservationAreDeclined) {
  StationWorld w({.incast = 3 * 4 * 4096, .list_bytes = aggregation::kMostLists / 2 - 8});
  const Sequence first = memory_call(w), second = memory_call(w), third = memory_call(w);
  for (const Sequence op : {first, second, third}) w.open_all(op);
  w.take_all();
  EXPECT_EQ(w.declined(second), 0u);
  EXPECT_EQ(w.declined(third), 3u);
  EXPECT_EQ(w.station().job()->operations(), 2u);
  // An operation that is over frees its list.
  for (int i = 0; i < 100 && w.station().job()->operations() > 0; i++) w.contribute_all();
  ASSERT_EQ(w.station().job()->operations(), 0u);
  const Sequence fourth = memory_call(w), fifth = memory_call(w);
  for (const Sequence op : {fourth, fifth}) w.open_all(op);
  w.contribute_all();
  EXPECT_EQ(w.declined(fourth) + w.declined(fifth), 0u);
  EXPECT_EQ(w.results(fifth), w.entries(fifth));
  EXPECT_EQ(w.wrong(), "");
}

TEST(Memory, AdmissionReservesWithinTheBound) {
  for (const uint32_t ranks : {2u, 3u, 8u, 64u, 200u, 2500u}) {
    for (const size_t incast : {size_t{64} << 10, size_t{2} << 20, size_t{16} << 20}) {
      const size_t segment =
          std::clamp<size_t>(incast / (2 * (ranks - 1)), 4096, 60 << 10) / 64 * 64;
      StationWorld w({.ranks = ranks, .segment = segment, .incast = incast});
      const size_t bound = memory_bound(w.params());
      EXPECT_LE(w.station().job()->memory() +
                    std::min<size_t>(4 << 20, ranks * (aggregation::kMostQueued + kMaxBulkFrame)) +
                    aggregation::kMostLists,
                bound)
          << ranks << " " << incast;
      if (ranks == 8 && incast == 2u << 20) {
        EXPECT_NEAR(static_cast<double>(bound) / (1 << 20), 8.7, 0.1);
      }
    }
  }
}

}  // namespace
}  // namespace mcast
