// A job's store: the behaviour that c10d expects, arbitrary records, and clients that wait.
#include "host_engine/server/store_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <random>

#include "base/source_shares.h"
namespace mcast::test {
namespace {

using service::StoreTable;
using testing::ElementsAre;
using testing::HasSubstr;
using wire::StoreOp;
using wire::StoreRecord;
using Parts = std::vector<std::string>;

class StoreTableTest : public testing::Test {
 protected:
  // Opens a client; all have the same host unless `source` differs.
  void open(StoreTable::Client client, const std::string& name = "job", uint32_t source = 1) {
    ASSERT_TRUE(table_.admit(client, IpAddress::v4(source)));
    EXPECT_THAT(ask(client, StoreOp::kOpen, {"host", "7118", name, "0"}).parts, ElementsAre());
  }
  // Returns the reply, which is immediate.
  StoreRecord ask(StoreTable::Client client, StoreOp op, const Parts& parts) {
    EXPECT_TRUE(table_.on_record(client, {op, parts}, now_));
    return taken(client).value_or(StoreRecord{StoreOp::kFailed, {"no answer"}});
  }
  Parts done(StoreTable::Client client, StoreOp op, const Parts& parts) {
    const StoreRecord record = ask(client, op, parts);
    EXPECT_EQ(record.op, StoreOp::kDone) << (record.parts.empty() ? "" : record.parts[0]);
    return record.parts;
  }
  std::optional<StoreRecord> taken(StoreTable::Client client) {
    const auto it = answers_.find(client);
    if (it == answers_.end()) return std::nullopt;
    StoreRecord record = it->second;
    answers_.erase(it);
    table_.on_taken(client);
    return record;
  }

  Nanos now_ = kSecond;
  std::map<StoreTable::Client, StoreRecord> answers_;
  StoreTable table_{[this](StoreTable::Client client, const StoreRecord& record) {
    EXPECT_EQ(answers_.count(client), 0u) << "one answer for a question";
    answers_[client] = record;
  }};
};

TEST_F(StoreTableTest, BehavesAsC10dExpects) {
  open(1);
  open(2);
  done(1, StoreOp::kSet, {"a", std::string("\0x", 2)});
  EXPECT_THAT(done(2, StoreOp::kGet, {"0", "a"}), ElementsAre(std::string("\0x", 2)));
  EXPECT_THAT(done(1, StoreOp::kAdd, {"n", "5"}), ElementsAre("5"));
  EXPECT_THAT(done(2, StoreOp::kAdd, {"n", "-7"}), ElementsAre("-2"));
  EXPECT_THAT(done(2, StoreOp::kAdd, {"n", "0"}), ElementsAre("-2"));
  EXPECT_EQ(ask(1, StoreOp::kAdd, {"a", "1"}).op, StoreOp::kFailed);
  // Sums have 64 bits.
  EXPECT_THAT(done(1, StoreOp::kAdd, {"most", "9223372036854775807"}),
              ElementsAre("9223372036854775807"));
  EXPECT_THAT(ask(1, StoreOp::kAdd, {"most", "1"}).parts[0],
              HasSubstr("'most' does not hold a 64-bit number"));
  EXPECT_THAT(done(1, StoreOp::kAdd, {"most", "-9223372036854775808"}), ElementsAre("-1"));
  done(1, StoreOp::kDelete, {"most"});
  EXPECT_THAT(done(1, StoreOp::kCheck, {"a", "n"}), ElementsAre("1"));
  EXPECT_THAT(done(1, StoreOp::kCheck, {"a", "m"}), ElementsAre("0"));
  EXPECT_THAT(done(1, StoreOp::kCheck, {}), ElementsAre("1"));
  // compare_set with a present value, a missing one, and a different one.
  EXPECT_THAT(done(1, StoreOp::kCompareSet, {"n", "-2", "9"}), ElementsAre("9"));
  EXPECT_THAT(done(1, StoreOp::kCompareSet, {"n", "-2", "8"}), ElementsAre("9"));
  EXPECT_THAT(done(1, StoreOp::kCompareSet, {"new", "old", "x"}), ElementsAre("old"));
  EXPECT_THAT(done(1, StoreOp::kCheck, {"new"}), ElementsAre("0"));
  EXPECT_THAT(done(1, StoreOp::kCompareSet, {"new", "", "x"}), ElementsAre("x"));
  EXPECT_THAT(done(1, StoreOp::kGet, {"0", "new"}), ElementsAre("x"));
  done(1, StoreOp::kAppend, {"new", "yz"});
  done(1, StoreOp::kAppend, {"newer", "1"});
  done(1, StoreOp::kMultiSet, {"p", "1", "q", "2"});
  EXPECT_THAT(done(2, StoreOp::kGet, {"0", "new", "newer", "q", "p"}),
              ElementsAre("xyz", "1", "2", "1"));
  EXPECT_THAT(done(1, StoreOp::kCount, {}), ElementsAre("6"));
  EXPECT_THAT(done(1, StoreOp::kDelete, {"p"}), ElementsAre("1"));
  EXPECT_THAT(done(1, StoreOp::kDelete, {"p"}), ElementsAre("0"));
  EXPECT_THAT(done(1, StoreOp::kList, {}), ElementsAre("a", "n", "new", "newer", "q"));
}

TEST_F(StoreTableTest, WaitEndsWhenAllKeysAreThereOrItsTimeIsOver) {
  for (StoreTable::Client c : {1, 2, 3, 4}) open(c);
  EXPECT_TRUE(table_.on_record(1, {StoreOp::kWait, {"0", "a", "b"}}, now_));
  EXPECT_TRUE(table_.on_record(2, {StoreOp::kGet, {"1000", "b"}}, now_));
  EXPECT_TRUE(table_.on_record(3, {StoreOp::kGet, {"1000", "b", "never"}}, now_));
  EXPECT_TRUE(table_.waits(1) && table_.waits(2) && !table_.waits(4));
  EXPECT_EQ(table_.deadline(), now_ + kSecond);
  done(4, StoreOp::kSet, {"b", "1"});
  EXPECT_FALSE(taken(1));
  EXPECT_THAT(taken(2)->parts, ElementsAre("1"));
  done(4, StoreOp::kAdd, {"a", "1"});
  EXPECT_THAT(taken(1)->parts, ElementsAre());
  table_.advance(now_ + kSecond - 1);
  EXPECT_FALSE(taken(3));
  table_.advance(now_ + kSecond);
  const auto late = taken(3);
  ASSERT_TRUE(late);
  EXPECT_EQ(late->op, StoreOp::kLate);
  EXPECT_THAT(late->parts, ElementsAre("never"));
  EXPECT_EQ(table_.deadline(), kNever);
}

TEST_F(StoreTableTest, StoresAreApartAndGoWithTheirLastClient) {
  open(1, "x");
  open(2, "y");
  open(3, "x");
  done(1, StoreOp::kSet, {"k", "1"});
  EXPECT_THAT(done(2, StoreOp::kCheck, {"k"}), ElementsAre("0"));
  EXPECT_TRUE(table_.on_record(3, {StoreOp::kWait, {"0", "z"}}, now_));
  table_.on_end(3);
  table_.on_end(3);
  done(1, StoreOp::kSet, {"z", "1"});
  EXPECT_FALSE(taken(3)) << "it has gone";
  table_.on_end(1);
  EXPECT_EQ(table_.stores(), 1u);
  open(4, "x");
  EXPECT_THAT(done(4, StoreOp::kCount, {}), ElementsAre("0"));
}

TEST_F(StoreTableTest, InvalidRecordEndsTheConnection) {
  ASSERT_TRUE(table_.admit(2, IpAddress::v4(1)));
  EXPECT_FALSE(table_.on_record(2, {StoreOp::kSet, {"a", "b"}}, now_)) << "not opened";
  EXPECT_FALSE(table_.on_record(2, {StoreOp::kOpen, {"a", "b"}}, now_));
  open(1);
  const std::vector<StoreRecord> wrong{{StoreOp::kOpen, {"a", "b", "c", "0"}},
                                       {StoreOp::kSet, {"a"}},
                                       {StoreOp::kMultiSet, {"a"}},
                                       {StoreOp::kAdd, {"a", "x"}},
                                       {StoreOp::kAdd, {"a", ""}},
                                       {StoreOp::kAdd, {"a", "9999999999999999999"}},
                                       {StoreOp::kWait, {}},
                                       {StoreOp::kWait, {"-1", "a"}},
                                       {StoreOp::kGet, {"x", "a"}},
                                       {StoreOp::kDone, {}},
                                       {StoreOp::kLate, {"a"}},
                                       {StoreOp::kCount, {"a"}}};
  for (const StoreRecord& record : wrong) EXPECT_FALSE(table_.on_record(1, record, now_));
  EXPECT_TRUE(table_.on_record(1, {StoreOp::kWait, {"0", "z"}}, now_));
  EXPECT_FALSE(table_.on_record(1, {StoreOp::kCount, {}}, now_)) << "one question at a time";
}

// One host alone gets half of the memory, and gets it again when its values are gone.
TEST_F(StoreTableTest, IsBounded) {
  open(1);
  const std::string large(size_t{15} << 20, 'x');
  int kept = 0;
  for (int i = 0; i < 30; i++) {
    const StoreRecord answer = ask(1, StoreOp::kSet, {std::to_string(i), large});
    if (answer.op == StoreOp::kDone)
      kept++;
    else
      EXPECT_THAT(answer.parts[0], HasSubstr("share of the memory of the engine's stores is used"));
  }
  EXPECT_EQ(kept, 8);
  EXPECT_EQ(ask(1, StoreOp::kGet, {"0", "0", "1"}).op, StoreOp::kFailed) << "longer than a record";
  done(1, StoreOp::kDelete, {"0"});
  done(1, StoreOp::kSet, {"0", large});
  done(1, StoreOp::kSet, {"0", "short"});
  done(1, StoreOp::kAppend, {"0", large});
  EXPECT_EQ(ask(1, StoreOp::kAppend, {"0", large}).op, StoreOp::kFailed);
  table_.on_end(1);
  EXPECT_EQ(table_.bytes(), 0u);
}

// A host that invents names, stores all it can and opens connections endlessly uses only its own
// share.
TEST_F(StoreTableTest, OneSourceLeavesRoomForOthers) {
  StoreTable::Client client = 1;
  for (; client < 20'000 && table_.admit(client, IpAddress::v4(7)); client++) {
    if (client <= 1000) {
      ask(client, StoreOp::kOpen, {"h", "1", "made up " + std::to_string(client), "0"});
    }
  }
  EXPECT_LT(client, 20'000u);
  const std::string large(size_t{1} << 20, 'x');
  EXPECT_EQ(ask(1, StoreOp::kSet, {"k", large}).op, StoreOp::kFailed);
  EXPECT_FALSE(table_.expect(1, large.size()));
  for (uint32_t source : {8, 9}) {
    const StoreTable::Client other = 30'000 + source;
    open(other, "job", source);
    EXPECT_TRUE(table_.expect(other, size_t{8} << 20));
    done(other, StoreOp::kSet, {std::to_string(source), std::string(size_t{8} << 20, 'v')});
  }
}

// The reply would have 4 TiB: its size is summed before it is built.
TEST_F(StoreTableTest, AQuestionThatNamesOneKeyOftenIsRefusedBeforeItsAnswerIsBuilt) {
  open(1);
  done(1, StoreOp::kSet, {"k", std::string(size_t{1} << 20, 'v')});
  Parts often{"0"};
  often.insert(often.end(), wire::kMostStoreParts - 1, "k");
  EXPECT_THAT(ask(1, StoreOp::kGet, often).parts[0], HasSubstr("longer than a store's record"));
  // The same with clients that wait for one value: each reply has 15 MiB.
  Parts wait{"0"};
  wait.insert(wait.end(), 15, "later");
  for (StoreTable::Client c = 2; c < 102; c++) {
    open(c);
    ASSERT_TRUE(table_.on_record(c, {StoreOp::kGet, wait}, now_));
  }
  done(1, StoreOp::kSet, {"later", std::string(size_t{1} << 20, 'v')});
  size_t given = 0;
  for (const auto& [c, answer] : answers_) given += answer.op == StoreOp::kDone ? 1 : 0;
  EXPECT_EQ(given, 8u) << "as many as the share of their host holds";
  EXPECT_EQ(answers_.size(), 100u);
  EXPECT_LE(table_.bytes(), StoreTable::kMostBytes / 2);
  for (StoreTable::Client c = 2; c < 102; c++) taken(c);
  EXPECT_EQ(ask(2, StoreOp::kGet, wait).op, StoreOp::kDone) << "answers that were read are free";
}

TEST(SourceShares, LeaveForEachSourceAsMuchAsOneHas) {
  SourceShares<uint32_t> shares(1200);
  EXPECT_FALSE(shares.take(1, 601));
  EXPECT_TRUE(shares.take(1, 600));
  EXPECT_FALSE(shares.take(1, 1));
  EXPECT_TRUE(shares.take(2, 300));
  EXPECT_TRUE(shares.take(3, 150));
  shares.give(1, 500);
  EXPECT_EQ(shares.used(), 550u);
  EXPECT_EQ(shares.used_by(1), 100u);
  EXPECT_TRUE(shares.take(2, 0));
  EXPECT_TRUE(shares.take(2, 175));
  EXPECT_FALSE(shares.take(2, 1));
}

// A reply that is too long becomes an error, because a client without a reply would wait forever.
TEST_F(StoreTableTest, AnswersThatAreTooLongAreErrors) {
  open(1);
  const std::string large(size_t{9} << 20, 'x');
  done(1, StoreOp::kAppend, {"v", large});
  done(1, StoreOp::kAppend, {"v", large});
  EXPECT_THAT(ask(1, StoreOp::kGet, {"0", "v"}).parts[0],
              HasSubstr("longer than a store's record"));
  EXPECT_THAT(ask(1, StoreOp::kCompareSet, {"v", "a", "b"}).parts[0],
              HasSubstr("longer than a store's record"));
  done(1, StoreOp::kSet, {large + "1", ""});
  done(1, StoreOp::kSet, {large + "2", ""});
  EXPECT_THAT(ask(1, StoreOp::kList, {}).parts[0], HasSubstr("longer than a store's record"));
  done(1, StoreOp::kSet, {large, "no number"});
  EXPECT_LT(ask(1, StoreOp::kAdd, {large, "1"}).parts[0].size(), 200u) << "the key is cut";
}

// The overhead of an entry is counted, and so are keys for which clients wait.
TEST_F(StoreTableTest, SmallEntriesAreBoundedToo) {
  open(1);
  Parts many;
  for (int i = 0; i < 10'000; i++) many.insert(many.end(), {std::to_string(i), ""});
  done(1, StoreOp::kMultiSet, many);
  EXPECT_GT(table_.bytes(), 10'000 * StoreTable::kEntryBytes);
  Parts keys{"0"};
  for (int i = 0; i < 1000; i++) keys.push_back(std::to_string(i) + std::string(50'000, 'w'));
  StoreTable::Client client = 2;
  for (; client < 100; client++) {
    open(client);
    ASSERT_TRUE(table_.on_record(client, {StoreOp::kWait, keys}, now_));
    if (!table_.waits(client)) break;
    EXPECT_FALSE(taken(client));
  }
  ASSERT_LT(client, 8u);
  EXPECT_THAT(taken(client)->parts[0], HasSubstr("is used up"));
  EXPECT_LE(table_.bytes(), StoreTable::kMostBytes);
  for (StoreTable::Client c = 1; c <= client; c++) table_.on_end(c);
  EXPECT_EQ(table_.bytes(), 0u);
}

TEST(StoreRecord, AnyBytesAreRead) {
  std::mt19937_64 rng(7);
  const std::string good =
      wire::bytes_of({StoreOp::kMultiSet, {"a", "", "b", std::string(300, 'x')}});
  for (int i = 0; i < 20'000; i++) {
    std::string bytes = good + good;
    for (uint64_t n = rng() % 4; n > 0; n--) bytes[rng() % bytes.size()] = static_cast<char>(rng());
    bytes.resize(rng() % 3 == 0 ? rng() % (bytes.size() + 1) : bytes.size());
    wire::StoreReader reader;
    std::vector<StoreRecord> read;
    while (!bytes.empty()) {
      const size_t piece = std::min<size_t>(bytes.size(), 1 + rng() % 200);
      reader.feed(bytes.substr(0, piece));
      bytes.erase(0, piece);
      while (auto record = reader.next()) read.push_back(*record);
    }
    // An accepted record is written as the same bytes.
    for (const StoreRecord& r : read) EXPECT_EQ(wire::bytes_of(r).size() > 0, true);
  }
  wire::StoreReader reader;
  reader.feed(good + good.substr(0, 5));
  const auto record = reader.next();
  ASSERT_TRUE(record);
  EXPECT_EQ(record->parts[3].size(), 300u);
  EXPECT_FALSE(reader.next());
  EXPECT_FALSE(reader.broken());
  wire::StoreReader huge;
  huge.feed(std::string("\xff\xff\xff\xff", 4));
  EXPECT_FALSE(huge.next());
  EXPECT_TRUE(huge.broken()) << "before anything of that length is waited for";
  EXPECT_EQ(wire::bytes_of({StoreOp::kSet, {"k", std::string(wire::kMostStoreRecord, 'x')}}), "");
  // Each part takes memory in addition to its bytes.
  EXPECT_EQ(wire::bytes_of({StoreOp::kCheck, Parts(wire::kMostStoreParts + 1)}), "");
  wire::StoreReader parts;
  std::string many = wire::bytes_of({StoreOp::kCheck, Parts(wire::kMostStoreParts)});
  parts.feed(many);
  EXPECT_TRUE(parts.next());
  many[5]++;  // the number of parts, and one more at the end
  many += std::string(4, '\0');
  many[0] += 4;
  parts.feed(many);
  EXPECT_FALSE(parts.next());
  EXPECT_TRUE(parts.broken());
}

}  // namespace
}  // namespace mcast::test
