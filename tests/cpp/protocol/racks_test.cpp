// Racks: which hosts share a rack, and the order in which they and their sums are folded.
#include "protocol/racks.h"

#include <gtest/gtest.h>

namespace mcast::test {
namespace {

TEST(Racks, AreNumberedByTheirLowestContributor) {
  const Racks racks({"b", "a", "", "b", "a"});
  ASSERT_FALSE(racks.flat());
  EXPECT_EQ(racks.count(), 3u);
  EXPECT_EQ(racks.members(0), (std::vector<uint32_t>{0, 3}));
  EXPECT_EQ(racks.members(1), (std::vector<uint32_t>{1, 4}));
  EXPECT_EQ(racks.rack_of(2), 2u);
  EXPECT_EQ(racks.find("a"), 1u);
  EXPECT_FALSE(racks.find("c") || racks.find(""));
  EXPECT_EQ(racks.first_place(0, 1), 1u);
  EXPECT_EQ(racks.first_place(0, 4), 0u);
  EXPECT_TRUE(Racks({"a", "a"}).flat());
  EXPECT_TRUE(Racks().flat());
}

TEST(Racks, HostsAreWhereTheirLowestRankIs) {
  const Hosts hosts({0, 0, 1, 1, 2});
  const Racks racks = racks_of_hosts(hosts, {"a", "b", "b", "a", "a"});
  EXPECT_EQ(racks.count(), 2u);
  EXPECT_EQ(racks.members(0), (std::vector<uint32_t>{0, 2})) << "contributors are hosts";
  EXPECT_EQ(racks.members(1), std::vector<uint32_t>{1});
  EXPECT_EQ(racks.place_of(2), 1u);
}

}  // namespace
}  // namespace mcast::test
