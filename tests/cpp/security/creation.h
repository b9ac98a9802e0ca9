// Makes guarded groups with real keys, with a thread per rank, through a store in memory that
// others can read and write.
#pragma once

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <mutex>
#include <thread>

#include "base/clock.h"
#include "base/hex.h"
#include "crypto/signed_text.h"
#include "runtime/guarded_store.h"
#include "runtime/security.h"
#include "runtime/store_round.h"
#include "support/secret_text.h"
#include "support/temporary_folder.h"

namespace mcast::test {

using Values = std::map<std::string, std::string>;

// Values that all ranks share. `tamper` may change a value that a rank reads. Once every live rank
// waits for a key that is not set, one of them times out at once, so that no test waits for a time
// limit.
struct Board {
  std::mutex mutex;
  std::condition_variable news;
  Values values;
  uint64_t changes = 0;
  size_t ranks = 0;    // that have not ended
  size_t waiting = 0;  // those that found no keys since the last change
  void end_rank() {
    const std::lock_guard<std::mutex> lock(mutex);
    ranks--;
    news.notify_all();
  }
  std::function<void(Member reader, const std::string& key, std::string& value)> tamper;
};

class BoardStore final : public KeyValueStore {
 public:
  BoardStore(Board& board, Member rank, std::string scope)
      : board_(board), rank_(rank), scope_(std::move(scope)) {}
  Status set(const std::string& key, const std::string& value) override {
    const std::lock_guard<std::mutex> lock(board_.mutex);
    board_.values[scope_ + key] = value;
    board_.changes++;
    board_.waiting = 0;
    board_.news.notify_all();
    return {};
  }
  Result<std::vector<std::string>> multi_get(const std::vector<std::string>& keys,
                                             Nanos timeout) override {
    std::unique_lock<std::mutex> lock(board_.mutex);
    const auto all = [&] {
      return std::all_of(keys.begin(), keys.end(), [&](const std::string& key) {
        return board_.values.count(scope_ + key) > 0;
      });
    };
    const auto end = std::chrono::steady_clock::now() + std::chrono::nanoseconds(timeout);
    while (!all()) {
      const uint64_t seen = board_.changes;
      board_.waiting++;
      board_.news.notify_all();
      board_.news.wait_until(
          lock, end, [&] { return board_.changes != seen || board_.waiting >= board_.ranks; });
      if (board_.changes != seen) continue;
      board_.waiting--;
      return Status(Code::kTimeout, "keys missing");
    }
    std::vector<std::string> found;
    for (const std::string& key : keys) {
      found.push_back(board_.values[scope_ + key]);
      if (board_.tamper) board_.tamper(rank_, key, found.back());
    }
    return found;
  }
  Result<std::string> scope() override { return scope_; }

 private:
  Board& board_;
  const Member rank_;
  const std::string scope_;
};

struct Outcome {
  Status status;
  Status later;      // of the exchange after the agreement
  std::string root;  // the group's key, if there is one
  std::string suite;
  std::string transport;
  uint64_t uid = 0;                              // of this rank's endpoint
  std::string keys;                              // of all ranks
  std::shared_ptr<const LaneIdentity> identity;  // this rank's
  std::vector<bool> known;  // by rank: whether its record, read again, is the agreed one
};

// Rank 0's conclusion, as anyone with the secret can read it.
struct Conclusion {
  struct Rank {
    crypto::PublicKey key;
    crypto::Wrapped wrapped;
  };
  std::vector<Rank> ranks;
  crypto::Digest transcript;

  static Conclusion read(ConstBytes all) {
    size_t at = 0;
    const auto take = [&](size_t size) { return all.subspan(std::exchange(at, at + size), size); };
    const auto fill = [&](auto& field) {
      const ConstBytes bytes = take(field.size());
      std::copy(bytes.begin(), bytes.end(), field.begin());
    };
    const auto text = [](ConstBytes bytes) {
      return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    };
    const auto length = wire::load<uint32_t>(take(4).data());
    const std::string roster = text(take(length));
    take(1);  // mode and suite
    Conclusion out;
    out.ranks.resize(wire::load<uint16_t>(take(2).data()));
    std::vector<std::string> texts;
    for (Rank& rank : out.ranks) {
      texts.push_back(text(take(sizeof(crypto::Digest))));
      fill(rank.key);
      take(sizeof(crypto::PublicKey));  // key of the reduce lane
      fill(rank.wrapped);
    }
    EXPECT_EQ(at, all.size());
    texts.push_back(roster);
    out.transcript = crypto::transcript(static_cast<uint32_t>(out.ranks.size()), texts);
    return out;
  }
};

class Creation : public ::testing::Test {
 protected:
  using Settings = std::map<std::string, std::string>;

  std::string secret_file(const std::string& name, char digit, mode_t mode = 0600) {
    const std::string path = folder_.path() + "/" + name;
    std::ofstream(path) << test::secret_text(digit) << "\n";
    EXPECT_EQ(::chmod(path.c_str(), mode), 0);
    return path;
  }
  Settings sealed() {
    return {{"security", "sealed"}, {"secret_file", secret_file("a", 'a')}, {"job", "a job"}};
  }

  // The second round, with endpoints on a device.
  Result<Roster> second_round(const GroupSpec& spec, KeyValueStore& store, SecureCreation& security,
                              const SecureCreation::Identities& lanes, RankRecord& mine,
                              std::vector<RankRecord>& records) const {
    mine.transport = "verbs";
    if (spec.rank == without_lanes_) {
      mine.problems["verbs"] = "locked memory";
    } else {
      EXPECT_TRUE(security.describe(lanes, mine).ok());
      mine.external.uid += 1000;
    }
    StoreRound again(store, "verbs", spec.rank, spec.size);
    const Nanos now = monotonic_now();
    return exchange_records(spec, again, mine, now, now + spec.timeout, records, &security);
  }

  RankRecord record_of(const GroupSpec& spec) const {
    RankRecord mine = RankRecord::own_heading();
    mine.transport = "udp";
    if (!devices_) mine.problems["verbs"] = "this host has no RDMA device";
    mine.host = "host" + std::to_string(spec.rank);
    mine.host_name = mine.host;
    const std::string address = "10.0.0." + std::to_string(1 + spec.rank);
    mine.external = {100u + spec.rank, address, 1};
    mine.reduce_external = {200u + spec.rank, address, 2};
    mine.datagram.external = mine.datagram.loopback = 1440;
    mine.agreed = spec.config.agreed_text();
    return mine;
  }

  // The exchange in which ranks of one host agree on how they share memory.
  Status agree_later(const GroupSpec& spec, KeyValueStore& guarded) const {
    StoreRound round(guarded, "shared", spec.rank, spec.size);
    if (Status said = round.say("direct"); !said.ok()) return said;
    const auto unite = [this](const std::vector<std::string>&) -> Result<std::string> {
      return shared_;
    };
    Result<std::string> heard = round.hear(spec.timeout, unite);
    if (heard.ok() && *heard != shared_) return Status(Code::kInternal, "another's: " + *heard);
    return heard.ok() || round.over() ? heard.status() : round.give_up(heard.status(), "");
  }

  // Creates the group as GroupMaker and Bootstrap do, without lanes.
  Outcome one(const GroupSpec& spec, KeyValueStore& store) const {
    RankRecord mine = record_of(spec);
    const Nanos now = monotonic_now(), deadline = now + spec.timeout;
    std::vector<RankRecord> records;
    Outcome out;
    if (spec.config.security == "off") {
      StoreRound round(store, "rank", spec.rank, spec.size);
      out.status = exchange_records(spec, round, mine, now, deadline, records).status();
      return out;
    }
    auto security = SecureCreation::make(spec);
    out.status = security.status();
    if (security.ok()) out.status = (*security)->share_secret(store, deadline);
    if (!out.status.ok()) {
      (void)SecureCreation::excuse(spec, store, out.status);
      return out;
    }
    const crypto::JobSecret& secret = (*security)->secret();
    const auto multicast = LaneIdentity::make(spec.config, secret);
    const auto reduce = LaneIdentity::make(spec.config, secret);
    out.identity = *multicast;
    out.status = (*security)->describe({*multicast, *reduce}, mine);
    GuardedStore guarded(store, spec, **security);
    StoreRound round(guarded, "rank", spec.rank, spec.size);
    if (!out.status.ok()) return out;
    auto roster = exchange_records(spec, round, mine, now, deadline, records, security->get());
    SecureCreation::Identities used{*multicast, *reduce};
    std::string last = "rank";
    if (roster.ok() && roster->again) {
      last = "verbs";
      const SecureCreation::Identities others{*LaneIdentity::make(spec.config, secret),
                                              *LaneIdentity::make(spec.config, secret)};
      roster = second_round(spec, guarded, **security, others, mine, records);
      if (roster.ok() && roster->transport == "verbs") used = others;
    }
    out.status = roster.status();
    if (!out.status.ok()) return out;
    out.later = agree_later(spec, guarded);
    for (Member m = 0; m < spec.size; m++) {
      auto again = guarded.multi_get({last + "/" + std::to_string(m)}, spec.timeout);
      out.known.push_back(again.ok() && (*security)->agreed_on(m, (*again)[0]));
    }
    out.transport = roster->transport;
    out.uid = roster->ranks.at(spec.rank).external.uid;
    const GroupSecurity& result = (*security)->result();
    out.root = hex_text(result.root->bytes());
    out.suite = crypto::suite_name(result.suite);
    EXPECT_EQ(result.keys.multicast.size(), spec.size);
    EXPECT_EQ(result.keys.multicast[spec.rank], used.multicast->public_key());
    EXPECT_EQ(result.keys.reduce[spec.rank], used.reduce->public_key());
    EXPECT_EQ((*multicast)->endpoint()->pair.public_key(), (*multicast)->public_key());
    for (const auto& key : result.keys.multicast) out.keys += hex_text(key);
    const auto guards = (*security)->make_guards(1408);
    EXPECT_TRUE(guards.ok()) << guards.status().to_string();
    EXPECT_EQ(crypto::mode_name(guards->reduce->mode()), spec.config.security);
    EXPECT_EQ((*security)->make_guards(1408).status().code(), Code::kInternal)
        << "nonces serve once";
    EXPECT_EQ(hex_text(result.root->bytes()), std::string(64, '0')) << "it opens every epoch";
    return out;
  }

  std::vector<Outcome> make(const std::vector<Settings>& settings, Nanos timeout = 60 * kSecond) {
    std::vector<Outcome> outcomes(settings.size());
    board_.ranks = settings.size();
    std::vector<std::thread> threads;
    for (size_t r = 0; r < settings.size(); r++) {
      threads.emplace_back([&, r] {
        GroupSpec spec;
        spec.name = "g";
        spec.rank = static_cast<Member>(r);
        spec.size = static_cast<uint32_t>(settings.size());
        spec.timeout = timeout;
        spec.config = *Config::resolve(settings[r], {});
        BoardStore store(board_, spec.rank, scope_);
        outcomes[r] = one(spec, store);
        board_.end_rank();
      });
    }
    for (std::thread& t : threads) t.join();
    return outcomes;
  }
  static void expect_all(const std::vector<Outcome>& outcomes, const std::string& text) {
    for (size_t r = 0; r < outcomes.size(); r++) {
      EXPECT_EQ(outcomes[r].status.code(), Code::kMismatch) << r;
      EXPECT_NE(outcomes[r].status.message().find(text), std::string::npos)
          << r << ": " << outcomes[r].status.message();
      EXPECT_TRUE(outcomes[r].root.empty());
    }
  }

  bool devices_ = false;              // all ranks have one: a second round makes endpoints on it
  Member without_lanes_ = kNoMember;  // a rank that cannot make them
  TemporaryFolder folder_;
  Board board_;
  std::string scope_ = "mcast/1/";
  std::string shared_ = "direct";  // rank 0's later conclusion
};

}  // namespace mcast::test
