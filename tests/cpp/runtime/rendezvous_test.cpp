// agree() and the record that ranks publish. Both are pure functions, so every difference between
// ranks can be tested, also different versions, which two processes of one build cannot have.
#include "runtime/rendezvous.h"

#include <gtest/gtest.h>

#include <set>

#include "support/errors.h"
#include "wire/datagram.h"
#include "wire/guarded_datagram.h"
#include "wire/protocol_version.h"

namespace mcast {
namespace {

using test::is_error;

RankRecord record(uint64_t uid, const std::string& host) {
  RankRecord r;
  r.version = "1.2.3";
  r.protocol = kProtocolVersion;
  r.transport = "udp";
  r.host = host;
  r.host_name = "name of " + host;
  r.external = {uid, "10.0.0." + std::to_string(uid), static_cast<uint16_t>(1000 + uid)};
  r.loopback = {uid, "127.0.0.1", static_cast<uint16_t>(2000 + uid)};
  r.datagram.external = 1472;
  r.datagram.loopback = 8972;
  r.budget = 100'000 + uid;
  r.random = 7 * uid;
  r.salt = "job " + std::to_string(uid);
  r.agreed = "eager=1 window=2";
  return r;
}

// Ranks 0 and 1 on host a, rank 2 on host b.
std::vector<RankRecord> three() { return {record(1, "a"), record(2, "a"), record(3, "b")}; }

// The agreement after the store's encoding and decoding, as all ranks but the first get it.
Result<Agreement> agreed(const std::vector<RankRecord>& records, Member self,
                         const Config& config = {}) {
  Result<Roster> roster = conclude(records);
  if (!roster.ok()) return roster.status();
  roster = Roster::decode(roster->encode());
  if (!roster.ok()) return roster.status();
  return agreement_of(*roster, self, config);
}

void expect_refused(const std::vector<RankRecord>& records, Code code,
                    const std::vector<std::string>& texts) {
  for (Member self = 0; self < records.size(); self++) {
    auto result = agreed(records, self);
    ASSERT_FALSE(result.ok()) << "rank " << self;
    EXPECT_EQ(result.status().code(), code);
    for (const std::string& text : texts) {
      EXPECT_NE(result.status().message().find(text), std::string::npos)
          << "rank " << self << " lacks \"" << text << "\": " << result.status().message();
    }
  }
}

// As above, for an error of the table; `advice` follows it.
void expect_refused(const std::vector<RankRecord>& records, ErrorId id, const test::Fields& fields,
                    const std::string& advice) {
  expect_refused(records, row_of(id).code, {advice});
  for (Member self = 0; self < records.size(); self++) {
    EXPECT_TRUE(is_error(agreed(records, self).status(), id, fields)) << "rank " << self;
  }
}

TEST(RankRecord, SurvivesTheStore) {
  RankRecord a = record(5, "boot-id/net-4026531840");
  a.place.interface = "eth0";
  a.place.addresses = "10.0.0.5/16@1000r";
  auto b = RankRecord::decode(a.encode());
  ASSERT_TRUE(b.ok()) << b.status().to_string();
  EXPECT_EQ(b->encode(), a.encode());
  EXPECT_EQ(b->version, a.version);
  EXPECT_EQ(b->external.uid, 5u);
  EXPECT_EQ(b->external.host, "10.0.0.5");
  EXPECT_EQ(b->loopback.port, 2005);
  EXPECT_EQ(b->budget, a.budget);
  EXPECT_EQ(b->salt, a.salt);
  EXPECT_EQ(b->place.interface, "eth0");
  EXPECT_EQ(b->place.addresses, "10.0.0.5/16@1000r");
}

TEST(Conclusion, RefusesAnAddressThatDoesNotTellHostsApart) {
  auto records = three();
  records[0].place.interface = "eth0";
  records[2].place.interface = "ens5";
  records[0].external.host = records[2].external.host = "10.0.2.15";
  records[1].external.host = "10.0.2.15";  // ranks of one host share its address
  expect_refused(
      records, Code::kUnavailable,
      {"rank 0 on host name of a has 10.0.2.15 (interface eth0)",
       "rank 2 on host name of b has 10.0.2.15 (interface ens5)", "MCAST_SOCKET_IFNAME"});
  records = three();
  records[2].external.host = "127.0.0.1";
  records[2].place.interface = "lo";
  expect_refused(records, Code::kUnavailable,
                 {"rank 2 on host name of b has 127.0.0.1 (interface lo), which is loopback",
                  "rank 0 on host name of a has 10.0.0.1", "MCAST_SOCKET_IFNAME"});
  // On one host, loopback is enough; a rank that does not know its host may share one with another
  // rank.
  records[2].host = "a";
  EXPECT_TRUE(agreed(records, 0).ok());
  records[2].host = "unknown/7:1";
  EXPECT_TRUE(agreed(records, 0).ok());
}

TEST(RankRecord, ValuesCannotForgeFields) {
  RankRecord a = record(5, "a");
  a.host_name = "x\nversion=9.9.9\nbudget=1";
  auto b = RankRecord::decode(a.encode());
  ASSERT_TRUE(b.ok());
  EXPECT_EQ(b->version, "1.2.3");
  EXPECT_EQ(b->budget, a.budget);
}

TEST(RankRecord, RefusesWhatItCannotRead) {
  const std::string good = record(5, "a").encode();
  const auto without = [&good](const std::string& key) {
    const size_t at = good.find("\n" + key + "=") + 1;
    return good.substr(0, at) + good.substr(good.find('\n', at) + 1);
  };
  std::vector<std::string> bad = {"", "garbage", "=\n=\n", std::string(100'000, 'x')};
  for (const char* key : {"protocol", "uid", "external_port", "loopback_port", "datagram_external",
                          "datagram_loopback", "budget", "random"}) {
    bad.push_back(without(key));
    bad.push_back(without(key) + key + "=\n");
    bad.push_back(without(key) + key + "=-1\n");
    bad.push_back(without(key) + key + "=1x\n");
    bad.push_back(without(key) + key + "=" + std::string(30, '1') + "\n");
  }
  bad.push_back(without("external_port") + "external_port=65536\n");
  // Values beyond their types, or beyond their field in the roster.
  bad.push_back(without("protocol") + "protocol=4294967302\n");
  bad.push_back(without("budget") + "budget=18446744073709551617\n");
  bad.push_back(without("datagram_external") + "datagram_external=4294967296\n");
  for (const std::string& text : bad) {
    auto result = RankRecord::decode(text);
    ASSERT_FALSE(result.ok()) << text.substr(0, 200);
    EXPECT_EQ(result.status().code(), Code::kMismatch);
    EXPECT_NE(result.status().message().find("cannot be read"), std::string::npos);
  }
  // Unknown fields, which a later version may add, are accepted.
  EXPECT_TRUE(RankRecord::decode(good + "colour=blue\n").ok());
  EXPECT_FALSE(RankRecord::decode(good + std::string("external=127.0.0.1\0x\n", 21)).ok());
}

TEST(Agree, DifferentVersionsAreRefusedOnAllRanks) {
  auto records = three();
  records[2].version = "1.2.4";
  expect_refused(records, ErrorId::version_differs,
                 {{"rank", "0"}, {"version", "1.2.3"}, {"other", "2"}, {"other_version", "1.2.4"}},
                 "install the same on all hosts");
  records = three();
  records[0].protocol = kProtocolVersion + 1;
  const auto build = [](uint32_t protocol) {
    return "1.2.3, protocol " + std::to_string(protocol);
  };
  expect_refused(records, ErrorId::version_differs,
                 {{"rank", "0"},
                  {"version", build(kProtocolVersion + 1)},
                  {"other", "1"},
                  {"other_version", build(kProtocolVersion)}},
                 "install the same on all hosts");
}

TEST(Agree, DifferentTransportsAreRefused) {
  auto records = three();
  records[1].transport = "verbs";
  expect_refused(records, Code::kMismatch,
                 {"ranks differ in transport", "\"udp\"", "\"verbs\"", "rank 1"});
}

TEST(Agree, DifferentSettingsAreRefusedWithBothSides) {
  auto records = three();
  records[1].agreed = "eager=1 window=3";
  expect_refused(records, ErrorId::settings_differ,
                 {{"rank", "0"},
                  {"settings", "eager=1 window=2"},
                  {"other", "1"},
                  {"other_settings", "eager=1 window=3"}},
                 "give all ranks the same Options and MCAST_* variables");
}

TEST(Agree, DifferentIPVersionsAreRefusedByName) {
  auto records = three();
  records[2].external.host = "fd00::3";
  records[2].place.interface = "eth0";
  expect_refused(records, Code::kMismatch,
                 {"rank 0 on host name of a has 10.0.0.1, which is an IPv4 address",
                  "rank 2 on host name of b has fd00::3 (interface eth0), which is an IPv6 address",
                  "all ranks of a group must use the same version", "MCAST_SOCKET_IFNAME"});
  for (RankRecord& r : records) r.external.host = "fd00::" + std::to_string(r.external.uid);
  EXPECT_TRUE(agreed(records, 0).ok());
  records[0].external.host = "10.0.0.1";
  expect_refused(records, Code::kMismatch,
                 {"rank 0 on host name of a has 10.0.0.1, which is an IPv4 address",
                  "rank 1 on host name of a has fd00::2, which is an IPv6 address"});
  // A port in a stripe makes no address one of IPv6.
  records = three();
  for (RankRecord& r : records) r.external.host += "+10.1.0.1:5000";
  EXPECT_TRUE(agreed(records, 0).ok());
}

TEST(Agree, AllRanksGetTheRacks) {
  auto records = three();
  EXPECT_TRUE(agreed(records, 1)->racks.empty());
  records[2].place.rack = "row3";
  EXPECT_EQ(agreed(records, 1)->racks, (std::vector<std::string>{"", "", "row3"}));
  records[0].place.rack = "row2";
  expect_refused(records, Code::kMismatch,
                 {"the rack of host name of a", "\"row2\"", "\"\"", "the same MCAST_RACK"});
  records[1].place.rack = "row2";
  EXPECT_EQ(agreed(records, 2)->racks, (std::vector<std::string>{"row2", "row2", "row3"}));
}

TEST(Agree, OneProcessCannotBeTwoRanks) {
  auto records = three();
  records[2].external.uid = records[2].loopback.uid = 1;
  expect_refused(records, Code::kInvalidArgument,
                 {"ranks 0 and 2 are in one process of host", "start one process per rank"});
}

TEST(Agree, AllRanksConcludeTheSame) {
  const auto records = three();
  auto first = agreed(records, 0);
  ASSERT_TRUE(first.ok());
  for (Member self = 1; self < 3; self++) {
    auto other = agreed(records, self);
    ASSERT_TRUE(other.ok());
    EXPECT_EQ(other->tag, first->tag);
    EXPECT_EQ(other->address.group, first->address.group);
    EXPECT_EQ(other->address.port, first->address.port);
    EXPECT_EQ(other->agreed.chunk, first->agreed.chunk);
    EXPECT_EQ(other->agreed.budget, first->agreed.budget);
    EXPECT_EQ(other->hosts, 2u);
  }
}

TEST(Agree, SmallestBudgetAndDatagramSizeApplyToAll) {
  auto records = three();
  records[1].budget = 4000;
  records[2].datagram.external = 1000;
  auto result = agreed(records, 0);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->agreed.budget, 4000u);
  EXPECT_EQ(result->agreed.chunk, (1000 - wire::kDatagramHeader) / 64 * 64);
  EXPECT_EQ(result->agreed.members, 3u);
  EXPECT_FALSE(result->address.loopback);

  Config config;
  config.chunk = 128;
  EXPECT_EQ(agreed(records, 0, config)->agreed.chunk, 128u);
  config.chunk = 64'000;  // more than fits is clamped
  EXPECT_EQ(agreed(records, 0, config)->agreed.chunk, (1000 - wire::kDatagramHeader) / 64 * 64);
}

TEST(Agree, AKnownLinkBoundsTheQueueAtItsPort) {
  Config config;
  EXPECT_EQ(agreed(three(), 0, config)->agreed.port_queue, config.port_queue);
  config.link_rate = 300'000'000;  // 30 ms
  EXPECT_EQ(agreed(three(), 0, config)->agreed.port_queue, 1'125'000u);
  config.port_queue = 500'000;
  EXPECT_EQ(agreed(three(), 0, config)->agreed.port_queue, 500'000u);
  config.link_rate = 1'000'000;  // never less than the setting's minimum
  EXPECT_EQ(agreed(three(), 0, config)->agreed.port_queue, 65'536u);
  config = {};
  config.link_rate = 100'000'000'000;
  EXPECT_EQ(agreed(three(), 0, config)->agreed.port_queue, config.port_queue);
}

TEST(Agree, OneHostTalksOverLoopback) {
  std::vector<RankRecord> records = {record(1, "a"), record(2, "a")};
  auto result = agreed(records, 0);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->hosts, 1u);
  EXPECT_TRUE(result->address.loopback);
  EXPECT_EQ(result->agreed.chunk, (8972 - wire::kDatagramHeader) / 64 * 64);
  EXPECT_EQ(result->peers[1].host, "127.0.0.1");
}

TEST(Agree, NeighboursOnTheHostAreReachedByLoopbackOthersAreNot) {
  auto from0 = agreed(three(), 0), from2 = agreed(three(), 2);
  ASSERT_TRUE(from0.ok() && from2.ok());
  EXPECT_EQ(from0->peers[1].host, "127.0.0.1");
  EXPECT_EQ(from0->peers[1].port, 2002);
  EXPECT_EQ(from0->peers[2].host, "10.0.0.3");
  EXPECT_EQ(from0->peers[2].port, 1003);
  EXPECT_EQ(from2->peers[0].host, "10.0.0.1");
  EXPECT_EQ(from2->peers[1].host, "10.0.0.2");
}

// If no other rank of the host listens, its datagrams need not be looped back. An unknown host may
// be that of any rank.
TEST(Agree, AnEchoIsForNeighboursOnly) {
  EXPECT_EQ(agreed(three(), 0)->echo, Echo::kOn);
  EXPECT_EQ(agreed(three(), 1)->echo, Echo::kOn);
  EXPECT_EQ(agreed(three(), 2)->echo, Echo::kOff);
  auto records = three();
  records[0].host = "unknown/1:2";
  records[1].host = "c";
  for (Member self = 0; self < 3; self++) EXPECT_EQ(agreed(records, self)->echo, Echo::kOn);
}

TEST(Agree, AGuardedDatagramIsLongerAndItsChunksMayBe) {
  auto records = three();
  const size_t clear = agreed(records, 0)->agreed.chunk;
  for (RankRecord& r : records) r.security.emplace();
  const size_t guarded = agreed(records, 0)->agreed.chunk;
  EXPECT_EQ(clear, guarded) << "the rounding pays";
  EXPECT_LE(guarded + wire::kGuardedHeader + wire::kDatagramTag, 1472u);
  Config config;
  EXPECT_EQ(agreed(records, 0, config)->agreed.guard, 0u);
  config.security = "auth";
  EXPECT_EQ(agreed(records, 1, config)->agreed.guard, wire::kGuardedExtra) << "plans go by it";
  EXPECT_FALSE(agreed(records, 1, config)->agreed.source_auth);
  config.source_auth = 1;
  EXPECT_TRUE(agreed(records, 1, config)->agreed.source_auth) << "roots send digests";
  for (RankRecord& r : records) r.datagram.external = wire::kDatagramHeader + 1408;
  EXPECT_EQ(agreed(records, 0)->agreed.chunk, 1408u - 64);
}

TEST(Agree, DatagramsTooSmallForAChunkAreRefused) {
  auto records = three();
  records[0].datagram.external = wire::kDatagramHeader + 63;
  expect_refused(records, Code::kUnavailable,
                 {"rank 0 on host", "datagrams of 95 bytes", "no room for a chunk of 64 bytes"});
  records[2].datagram.external = 0;
  expect_refused(records, Code::kUnavailable,
                 {"rank 2 on host", "datagrams of 0 bytes", "no room for a chunk of 64 bytes"});
  // A guarded group needs more.
  records = three();
  records[0].datagram.external = wire::kDatagramHeader + 64 + wire::kGuardedExtra - 1;
  EXPECT_EQ(agreed(records, 0)->agreed.chunk, 64u);
  for (RankRecord& r : records) r.security.emplace();
  expect_refused(records, Code::kUnavailable, {"datagrams of 119 bytes"});
}

// Like the data-parallel groups of a mesh, each of which has one member on every host.
TEST(Agree, GroupsOverTheSameHostsHavePortsOfTheirOwn) {
  std::set<uint32_t> addresses;
  std::set<uint16_t> ports;
  for (uint64_t g = 0; g < 64; g++) {
    auto records = three();
    for (size_t i = 0; i < 3; i++) records[i].external.uid = 1000 + 3 * g + i;
    auto result = agreed(records, 0);
    ASSERT_TRUE(result.ok());
    addresses.insert(result->address.group);
    ports.insert(result->address.port);
    // The address depends on the set of ranks, not on their order.
    std::swap(records[1].external.uid, records[0].external.uid);
    EXPECT_EQ(agreed(records, 0)->address, result->address) << g;
  }
  EXPECT_EQ(addresses.size(), 1u);
  EXPECT_EQ(ports.size(), 64u);
}

TEST(Agree, AddressesStayInTheirRangeAndJobsSpread) {
  constexpr uint32_t kOfEthernet = 0x7fffff;  // the bits that an Ethernet address keeps
  std::set<std::pair<uint32_t, uint16_t>> seen;
  for (int job = 0; job < 500; job++) {
    std::set<std::pair<uint32_t, uint16_t>> mine;
    std::set<uint32_t> gathers, reduces;
    for (int set = 0; set < 50; set++) {
      auto records = three();
      records[0].salt = "job " + std::to_string(job);
      records[2].host = "host " + std::to_string(set);
      auto result = agreed(records, 1);
      ASSERT_TRUE(result.ok());
      EXPECT_GE(result->address.group, 1u << 16);    // 239.1.0.0
      EXPECT_LT(result->address.group, 255u << 16);  // below 239.255.0.0
      EXPECT_GE(result->address.port, 20000);
      EXPECT_LT(result->address.port, 30000);
      mine.insert({result->address.group, result->address.port});
      gathers.insert(result->address.group & kOfEthernet);
      EXPECT_GE(result->reduce_address.group, 1u << 16);
      EXPECT_LT(result->reduce_address.group, 255u << 16);
      EXPECT_EQ(result->reduce_address.port, result->address.port + 1);
      reduces.insert(result->reduce_address.group & kOfEthernet);
    }
    EXPECT_EQ(reduces.size(), gathers.size());
    for (const uint32_t group : reduces) EXPECT_FALSE(gathers.contains(group)) << group;
    EXPECT_LE(mine.size(), kAddressesPerJob);
    EXPECT_GT(mine.size(), 1u);
    seen.insert(mine.begin(), mine.end());
  }
  EXPECT_GT(seen.size(), 500u * 8);  // jobs rarely share an address
}

TEST(JobSalt, IsThatOfTheFirstGroupUnlessTheEnvironmentNamesTheJob) {
  JobSalt a(1), b(2);
  EXPECT_NE(a.value(""), b.value(""));
  EXPECT_EQ(a.value("run7"), b.value("run7"));
  b.adopt(a.value(""));
  EXPECT_EQ(b.value(""), a.value(""));
  b.adopt("of a group with others");
  EXPECT_EQ(b.value(""), a.value(""));
}

TEST(Agree, TagsFollowRankZerosRandomNumber) {
  std::set<uint64_t> tags;
  for (uint64_t random = 0; random < 1000; random++) {
    auto records = three();
    records[0].random = random;
    tags.insert(agreed(records, 2)->tag);
    records[1].random = random + 12345;  // other ranks' numbers do not count
    tags.insert(agreed(records, 2)->tag);
  }
  EXPECT_EQ(tags.size(), 1000u);
}

}  // namespace
}  // namespace mcast
