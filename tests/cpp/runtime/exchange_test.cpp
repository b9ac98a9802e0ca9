// How ranks find each other through the store: how much each one reads, and the error on all ranks
// if one is missing or does not match. The store is a map whose waits return at once.
#include "runtime/store_round.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "base/rng.h"
#include "support/errors.h"
#include "wire/protocol_version.h"

namespace mcast {
namespace {

using test::is_error;

class CountingStore : public KeyValueStore {
 public:
  Status set(const std::string& key, const std::string& value) override {
    values_[key] = value;
    written += value.size();
    return {};
  }
  Result<std::vector<std::string>> multi_get(const std::vector<std::string>& keys, Nanos) override {
    std::vector<std::string> found;
    std::string missing;
    for (const std::string& key : keys) {
      const auto it = values_.find(key);
      if (it == values_.end()) missing += (missing.empty() ? "" : ", ") + key;
      found.push_back(it == values_.end() ? "" : it->second);
    }
    if (!missing.empty()) return Status(Code::kTimeout, "keys missing (" + missing + ")");
    for (const std::string& value : found) read += value.size();
    keys_read += keys.size();
    return found;
  }

  size_t written = 0, read = 0, keys_read = 0;

 private:
  std::map<std::string, std::string> values_;
};

GroupSpec spec_of(Member rank, uint32_t size) {
  GroupSpec spec;
  spec.name = "g";
  spec.rank = rank;
  spec.size = size;
  return spec;
}

RankRecord record_of(Member rank, uint32_t per_host = 8) {
  RankRecord r;
  const uint32_t host = rank / per_host;
  const std::string ip =
      "10.1." + std::to_string(host / 250) + "." + std::to_string(host % 250 + 1);
  r.version = "0.1.0";
  r.protocol = kProtocolVersion;
  r.transport = "udp";
  r.problems["verbs"] = "no RDMA device is active";
  r.host = "a3f1c2d4-5b6e-4f70-8a91-0123456789ab/4:40265" + std::to_string(host);
  r.host_name = "node" + std::to_string(host) + ".example.org";
  r.external = {mix64(rank + 1), ip, static_cast<uint16_t>(40000 + rank % 20000)};
  r.loopback = {r.external.uid, "127.0.0.1", r.external.port};
  r.reduce_external = {mix64(rank + 100000), ip, static_cast<uint16_t>(20000 + rank % 20000)};
  r.reduce_loopback = {r.reduce_external.uid, "127.0.0.1", r.reduce_external.port};
  r.datagram.external = r.datagram.loopback = 1472;
  r.budget = 266240;
  r.random = mix64(rank);
  r.salt = "|10.1.0.1|29500";
  r.agreed = Config{}.agreed_text();
  r.shared = "4711 12 1234567890123456789 140737488355328 -1";
  return r;
}

Result<Roster> run(KeyValueStore& store, const GroupSpec& spec, const RankRecord& record) {
  StoreRound round(store, "rank", spec.rank, spec.size);
  std::vector<RankRecord> records;
  return exchange_records(spec, round, record, 0, 0, records);
}

// All ranks publish; rank 0 concludes, then the others read the conclusion.
void publish(KeyValueStore& store, uint32_t size) {
  for (uint32_t r = 1; r < size; r++) {
    const auto rank = static_cast<Member>(r);
    ASSERT_TRUE(StoreRound(store, "rank", rank, size).say(record_of(rank).encode()).ok());
  }
}

// A job's store, in which each group has its own part.
struct JobStore {
  std::map<std::string, std::string> owners;
  Status broken;
};

class GroupsStore final : public CountingStore {
 public:
  explicit GroupsStore(JobStore& job) : job_(job) {}
  Result<std::string> claim(const std::string& key, const std::string& owner) override {
    if (!job_.broken.ok()) return job_.broken;
    return job_.owners.emplace(key, owner).first->second;
  }

 private:
  JobStore& job_;
};

// The address of a group of two processes, `first` and the next one, on the same two hosts each
// time.
MulticastAddress address_of_pair(JobStore& job, uint32_t first) {
  GroupsStore store(job);
  const auto record = [first](Member rank) {
    RankRecord r = record_of(rank, 1);
    r.external.uid = r.loopback.uid = mix64(first + rank);
    return r;
  };
  EXPECT_TRUE(StoreRound(store, "rank", 1, 2).say(record(1).encode()).ok());
  const auto roster = run(store, spec_of(0, 2), record(0));
  EXPECT_TRUE(roster.ok()) << roster.status().to_string();
  return roster.ok() ? roster->address : MulticastAddress{};
}

// With ports by hash alone, about 100 pairs of a thousand groups would share one.
TEST(Exchange, GroupsOfOtherMembersOverTheSameHostsNeverShareAPort) {
  JobStore job;
  std::map<uint16_t, uint32_t> ports;
  std::set<uint32_t> addresses;
  for (uint32_t g = 0; g < 1000; g++) {
    const MulticastAddress at = address_of_pair(job, 2 * g);
    addresses.insert(at.group);
    const auto [other, fresh] = ports.emplace(at.port, g);
    EXPECT_TRUE(fresh) << "groups " << other->second << " and " << g << " have port " << at.port;
    EXPECT_EQ(at.port % 2, 0) << "the next one is the reduce lane's";
  }
  EXPECT_EQ(addresses.size(), 1u) << "switches have one entry for all of them";
  for (uint32_t g = 0; g < 1000; g += 50)
    EXPECT_EQ(ports.at(address_of_pair(job, 2 * g).port), g) << "the same members share it";
}

// If the store does not answer, or all ports are taken, the port follows from the hash, and the tag
// keeps the datagrams apart.
TEST(Exchange, WithoutPortsToClaimGroupsAreMadeByHash) {
  JobStore job, broken, full;
  broken.broken = Status(Code::kUnavailable, "no compare_set");
  const MulticastAddress at = address_of_pair(job, 7);
  for (uint32_t port = 20000; port < 30000; port += 2)
    full.owners["port/" + std::to_string(at.group) + "/" + std::to_string(port)] = "another";
  EXPECT_EQ(address_of_pair(broken, 7), at);
  EXPECT_EQ(address_of_pair(full, 7), at);
}

TEST(Exchange, TheStoreHandsOutLittlePerRank) {
  for (const uint32_t size : {64u, 256u, 1024u}) {
    CountingStore store;
    publish(store, size);
    size_t most = 0;
    for (uint32_t r = 0; r < size; r++) {
      const auto rank = static_cast<Member>(r);
      const size_t before = store.read, keys = store.keys_read;
      const auto roster = run(store, spec_of(rank, size), record_of(rank));
      ASSERT_TRUE(roster.ok()) << roster.status().to_string();
      ASSERT_EQ(roster->ranks.size(), size);
      EXPECT_EQ(store.keys_read - keys, r == 0 ? size : 2);
      if (r > 0) most = std::max(most, store.read - before);
    }
    const size_t record = record_of(7).encode().size();
    // Without rank 0's conclusion, every rank would have to read all records.
    EXPECT_LE(most, record + 40 * size + 200);
    EXPECT_LE(store.read, size * (2 * record + 40 * size + 200));
    RecordProperty("record", static_cast<int>(record));
    RecordProperty("read_per_rank_of_" + std::to_string(size), static_cast<int>(most));
    RecordProperty("read_in_all_of_" + std::to_string(size), static_cast<int>(store.read));
  }
}

TEST(Exchange, AllSeeThePlacesOfAll) {
  CountingStore store;
  publish(store, 20);
  for (Member rank = 0; rank < 20; rank++) {
    const auto roster = run(store, spec_of(rank, 20), record_of(rank));
    ASSERT_TRUE(roster.ok()) << roster.status().to_string();
    const Agreement a = agreement_of(*roster, rank, Config{});
    EXPECT_EQ(a.hosts, 3u);
    EXPECT_TRUE(roster->shared);
    EXPECT_EQ(roster->salt, "|10.1.0.1|29500");
    for (Member other = 0; other < 20; other++) {
      const RankRecord r = record_of(other);
      const bool near = rank / 8 == other / 8;
      EXPECT_EQ(a.host_of[other], other / 8u);
      const StreamAddress &want = near ? r.loopback : r.external,
                          &reduce = near ? r.reduce_loopback : r.reduce_external;
      EXPECT_EQ(a.peers[other].host, want.host);
      EXPECT_EQ(a.peers[other].port, want.port);
      EXPECT_EQ(a.peers[other].uid, want.uid);
      EXPECT_EQ(a.reduce_peers[other].host, reduce.host);
      EXPECT_EQ(a.reduce_peers[other].port, reduce.port);
      EXPECT_EQ(a.reduce_peers[other].uid, reduce.uid);
    }
  }
}

TEST(Exchange, MissingRankIsNamedOnAllRanks) {
  for (const Member missing : {0, 2}) {
    CountingStore store;
    for (int look = 0; look < 2; look++) {  // the first round publishes
      for (Member rank = 0; rank < 4; rank++) {
        if (rank == missing) continue;
        const auto roster = run(store, spec_of(rank, 4), record_of(rank));
        ASSERT_FALSE(roster.ok());
        EXPECT_EQ(roster.status().code(), Code::kTimeout);
        const std::string& text = roster.status().message();
        EXPECT_NE(text.find("waiting for the addresses of all ranks, for "), std::string::npos);
        const std::string key = "rank/" + std::to_string(missing) + ")";
        if (look == 1) {
          EXPECT_NE(text.find(key), std::string::npos) << text;
        }
      }
    }
  }
}

TEST(Exchange, RankZerosErrorIsRefusedByAll) {
  CountingStore store;
  publish(store, 4);
  RankRecord odd = record_of(2);
  odd.agreed = "eager=7";
  ASSERT_TRUE(StoreRound(store, "rank", 2, 4).say(odd.encode()).ok());
  for (Member rank = 0; rank < 4; rank++) {
    const auto roster = run(store, spec_of(rank, 4), rank == 2 ? odd : record_of(rank));
    ASSERT_FALSE(roster.ok());
    EXPECT_TRUE(is_error(roster.status(), ErrorId::settings_differ,
                         {{"rank", "0"},
                          {"settings", record_of(0).agreed},
                          {"other", "2"},
                          {"other_settings", "eager=7"}}));
  }
}

// The store refuses the conclusion of rank 0, as the link to a host engine may.
TEST(Exchange, AConclusionThatTheStoreDoesNotTakeFailsOnAllRanks) {
  class NarrowStore final : public CountingStore {
   public:
    Status set(const std::string& key, const std::string& value) override {
      if (value.size() < 1000) return CountingStore::set(key, value);
      return Status(Code::kResourceExhausted, "too long");
    }
  };
  NarrowStore store;
  publish(store, 40);
  for (const Member rank : {0, 3}) {
    const auto roster = run(store, spec_of(rank, 40), record_of(rank));
    EXPECT_EQ(roster.status().code(), Code::kResourceExhausted);
    EXPECT_EQ(roster.status().message(), rank == 0 ? "too long" : "rank 0: too long");
  }
}

// Another version publishes a record too, but the ranks do not wait for its conclusion.
TEST(Exchange, AnotherVersionOfRankZeroIsFoundOutAtOnce) {
  CountingStore store;
  RankRecord other = record_of(0);
  other.protocol++;
  other.version = "0.2.0";
  ASSERT_TRUE(store.set("rank/0", other.encode()).ok());
  const auto roster = run(store, spec_of(1, 4), record_of(1));
  ASSERT_FALSE(roster.ok());
  EXPECT_TRUE(
      is_error(roster.status(), ErrorId::version_differs,
               {{"rank", "0"}, {"version", "0.2.0"}, {"other", "1"}, {"other_version", "0.1.0"}}));
}

TEST(Exchange, SecondRoundDecidesIfAllHaveVerbs) {
  for (const bool works : {true, false}) {
    CountingStore store;
    std::vector<std::vector<RankRecord>> known(3);
    const auto round = [&](const char* prefix, Member rank, bool verbs, bool good) {
      RankRecord r = record_of(rank, 1);
      r.problems["verbs"] = good ? "" : "no locked memory";
      if (verbs && good) r.external.port = 7;
      if (verbs && good) r.transport = "verbs";
      StoreRound now(store, prefix, rank, 3);
      return exchange_records(spec_of(rank, 3), now, r, 0, 0, known[rank]);
    };
    for (const Member rank : {1, 2, 0, 1, 2}) {
      const auto first = round("rank", rank, false, true);
      if (first.ok()) {
        EXPECT_TRUE(first->again && first->transport == "verbs" && first->ranks.empty());
      }
    }
    for (const Member rank : {1, 2, 0, 1, 2}) {
      const auto second = round("verbs", rank, true, works || rank != 1);
      if (!second.ok()) continue;
      EXPECT_FALSE(second->again);
      EXPECT_EQ(second->transport, works ? "verbs" : "udp");
      ASSERT_EQ(second->ranks.size(), 3u);
      EXPECT_EQ(second->ranks[2].external.port, works ? 7 : record_of(2).external.port);
      if (!works) {
        EXPECT_NE(second->transport_reason.find("no locked memory"), std::string::npos);
      }
    }
    EXPECT_TRUE(round("verbs", 2, true, true).ok());
  }
}

TEST(Roster, EveryFormOfAddressSurvives) {
  std::string stripe = "fd00::1";  // of as many interfaces as a lane may have
  for (int i = 2; i <= 8; i++) {
    const std::string number = std::to_string(i);
    stripe += "+[2001:db8:1111:2222:3333:4444:5555:666" + number + "]:6000" + number;
  }
  ASSERT_GT(stripe.size(), 255u);
  std::vector<RankRecord> records;
  for (Member r = 0; r < 2; r++) records.push_back(record_of(r));
  auto roster = conclude(records);
  ASSERT_TRUE(roster.ok()) << roster.status().to_string();
  for (const std::string& host :
       {std::string("10.0.0.9"), std::string("fd00:1::9"), std::string("127.0.0.1"),
        std::string("::1"), std::string(""), std::string("sim"), stripe,
        std::string("::ffff:10.0.0.9"), std::string("FD00::9")}) {
    Roster::Rank& rank = roster->ranks[1];
    rank.external.host = host;
    rank.loopback.host = "::1";
    const auto back = Roster::decode(roster->encode());
    ASSERT_TRUE(back.ok()) << host;
    EXPECT_EQ(back->ranks[1].external, rank.external) << "also if it is no usual form";
    EXPECT_EQ(back->ranks[1].loopback, rank.loopback);
    EXPECT_EQ(back->ranks[0].external, roster->ranks[0].external);
  }
  const size_t v4 = roster->encode().size();
  roster->ranks[0].external.host = roster->ranks[0].reduce_external.host = "fd00::1";
  EXPECT_EQ(roster->encode().size(), v4 + 12) << "16 bytes instead of 4";
  std::string unknown = roster->encode();
  unknown[unknown.size() - 3 - 7] = 7;  // before the last rank's reduce_external, 4 + 2 bytes
  EXPECT_FALSE(Roster::decode(unknown).ok());
}

TEST(Roster, ReadsOnlyWhatIsWhole) {
  std::vector<RankRecord> records;
  for (Member r = 0; r < 9; r++) records.push_back(record_of(r));
  for (Member r = 0; r < 9; r++) {
    records[r].external.host = "10.0.0." + std::to_string(r) + "+10.0.1.1:5000";
  }
  auto roster = conclude(records);
  ASSERT_TRUE(roster.ok()) << roster.status().to_string();
  const std::string whole = roster->encode();
  ASSERT_TRUE(Roster::decode(whole).ok());
  EXPECT_EQ(Roster::decode(whole)->encode(), whole);
  EXPECT_EQ(Roster::decode(whole)->ranks[8].external.host, "10.0.0.8+10.0.1.1:5000");
  for (size_t cut = 0; cut < whole.size(); cut++) {
    EXPECT_FALSE(Roster::decode(whole.substr(0, cut)).ok()) << cut;
  }
  EXPECT_FALSE(Roster::decode(whole + "x").ok());
  // inet_pton() would read it as 127.0.0.1, which a comparison of the texts does not find.
  roster->ranks[8].external.host = "127.0.0.1:x";
  std::string zero = roster->encode();
  ASSERT_TRUE(Roster::decode(zero).ok());
  zero[zero.find("127.0.0.1:x") + 9] = '\0';
  EXPECT_FALSE(Roster::decode(zero).ok()) << "a zero byte in an address";
  Rng rng(3);
  for (int i = 0; i < 20000; i++) {
    std::string bent = whole;
    for (int k = 0; k < 3; k++) bent[rng.below(bent.size())] = static_cast<char>(rng.below(256));
    (void)Roster::decode(bent);  // any bytes: a roster or an error
  }
}

}  // namespace
}  // namespace mcast
