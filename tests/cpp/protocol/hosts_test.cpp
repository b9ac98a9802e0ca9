// Hosts: which ranks share a host, and which member is the leader for which owner.
#include "protocol/hosts.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace mcast::test {
namespace {

TEST(Hosts, AreNumberedByTheirLowestRank) {
  const Hosts hosts({7, 3, 7, 9, 3});
  EXPECT_EQ(hosts.count(), 3u);
  EXPECT_FALSE(hosts.flat());
  EXPECT_EQ(hosts.members(0), (std::vector<Member>{0, 2}));
  EXPECT_EQ(hosts.members(1), (std::vector<Member>{1, 4}));
  EXPECT_EQ(hosts.members(2), std::vector<Member>{3});
  EXPECT_TRUE(Hosts(5).flat());
  EXPECT_TRUE(Hosts({4, 2, 0}).flat());
}

TEST(Hosts, MembersLeadForAsManyOwnersEach) {
  for (const auto& host_of : {std::vector<uint32_t>{0, 0, 1, 1, 2, 2},
                              {0, 1, 0, 1, 0, 1},
                              {0, 0, 0, 0, 1, 2, 3},
                              {0, 1, 1, 1, 1, 1, 2, 2, 0}}) {
    const Hosts hosts(host_of);
    for (uint32_t h = 0; h < hosts.count(); h++) {
      std::vector<uint32_t> load(host_of.size());
      for (Member owner = 0; owner < host_of.size(); owner++) {
        const Member leader = hosts.leader(h, owner);
        EXPECT_EQ(hosts.host_of(leader), h);
        if (hosts.host_of(owner) == h) {
          EXPECT_EQ(leader, owner);
        } else {
          load[leader]++;
        }
      }
      uint32_t least = UINT32_MAX, most = 0;
      for (const Member m : hosts.members(h)) {
        least = std::min(least, load[m]);
        most = std::max(most, load[m]);
      }
      EXPECT_LE(most, least + 1);
    }
  }
  // Equal hosts of consecutive ranks: rails.
  const Hosts rails({0, 0, 1, 1, 2, 2});
  EXPECT_EQ(rails.leader(2, 0), 4);
  EXPECT_EQ(rails.leader(0, 3), 1);
}

TEST(Hosts, AreEvenWithAsManyMembersEach) {
  EXPECT_TRUE(Hosts({0, 1, 0, 1}).even());
  EXPECT_TRUE(Hosts(3).even());
  EXPECT_FALSE(Hosts({0, 1, 0}).even());
}

}  // namespace
}  // namespace mcast::test
