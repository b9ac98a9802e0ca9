// Messages of whole groups: send and receive beside operations, in order, early and late, and the
// end of a rank for which another one waits.
#include <array>
#include <map>

#include "base/rng.h"
#include "support/errors.h"
#include "support/program.h"

namespace mcast::test {
namespace {

using wire::Kind;

constexpr Member kAnyRank = kNoMember;
constexpr size_t kToldStep = 100'000;     // bytes of a receive between two progress reports
constexpr size_t kMessagePiece = 61'440;  // maximum piece of a message

struct MessageRun {
  uint64_t id = 0;  // seeds the bytes of a send
  bool receives = false;
  Member rank = 0, peer = 0;
  uint32_t tag = 0;
  std::shared_ptr<Guarded> memory;
  std::shared_ptr<std::atomic<Member>> source = std::make_shared<std::atomic<Member>>(kNoMember);
  int calls = 0;
  Status status;
  std::vector<std::byte> so_far;  // content at the last progress report
  std::vector<std::byte> got;     // content when it was done
  bool done() const { return calls > 0; }
};
using MessageRuns = std::vector<std::shared_ptr<MessageRun>>;

std::shared_ptr<MessageRun> post_run(Cluster& c, std::shared_ptr<MessageRun> run, size_t bytes,
                                     Nanos timeout) {
  run->memory = std::make_shared<Guarded>(bytes);
  if (!run->receives) fill_pattern(run->id, run->rank, Bytes(run->memory->data(), bytes));
  auto region = std::make_shared<Region>(run->memory->data(), bytes, run->memory);
  MessagePost post;
  post.receives = run->receives;
  post.peer = run->peer;
  post.tag = run->tag;
  post.memory = {region, 0, bytes};
  post.posted = c.clock(run->rank);
  post.timeout = timeout;
  post.source = run->source;
  post.completed_step = kToldStep;
  post.on_completed = [run, bytes](uint64_t there) {
    EXPECT_TRUE(run->calls == 0 && there > run->so_far.size() && there < bytes);
    run->so_far.assign(run->memory->data(), run->memory->data() + there);
  };
  post.done = [run, bytes](const Status& status) {
    run->calls++;
    run->status = status;
    EXPECT_TRUE(run->memory->intact());
    run->got.assign(run->memory->data(), run->memory->data() + bytes);
    run->memory->give_back();
  };
  GroupCore& core = c.group(run->rank).core();
  core.post_message(std::move(post), c.clock(run->rank));
  core.deliver();
  return run;
}

std::shared_ptr<MessageRun> send_message(Cluster& c, Member from, Member to, uint32_t tag,
                                         size_t bytes, uint64_t id, Nanos timeout = kNever) {
  auto run = std::make_shared<MessageRun>();
  run->id = id;
  run->rank = from;
  run->peer = to;
  run->tag = tag;
  return post_run(c, run, bytes, timeout);
}

std::shared_ptr<MessageRun> receive_message(Cluster& c, Member at, Member from, uint32_t tag,
                                            size_t bytes, Nanos timeout = kNever) {
  auto run = std::make_shared<MessageRun>();
  run->receives = true;
  run->rank = at;
  run->peer = from;
  run->tag = tag;
  return post_run(c, run, bytes, timeout);
}

bool all_over(const MessageRuns& runs) {
  return std::all_of(runs.begin(), runs.end(), [](const auto& r) { return r->done(); });
}

// Checks that the receive has the bytes of send `id` of rank `from`.
void expect_got(const std::shared_ptr<MessageRun>& run, Member from, uint64_t id) {
  ASSERT_EQ(run->calls, 1);
  ASSERT_TRUE(run->status.ok()) << run->status.to_string();
  EXPECT_EQ(run->source->load(), from);
  EXPECT_EQ(check_pattern(id, from, run->got), run->got.size()) << "message " << id;
  EXPECT_EQ(check_pattern(id, from, run->so_far), run->so_far.size()) << "message " << id;
  EXPECT_GE(run->so_far.size() + kToldStep + kMessagePiece, run->got.size());
}

void finish_messages(Cluster& c, const MessageRuns& runs, Nanos limit = 60 * kSecond) {
  ASSERT_TRUE(c.run([&] { return all_over(runs); }, limit)) << "hangs";
  for (const auto& r : runs) ASSERT_TRUE(r->status.ok()) << r->status.to_string();
  for (Member r = 0; r < c.size(); r++) EXPECT_EQ(c.group(r).core().waiting(), 0u);
  EXPECT_LE(c.spins(), 3u);
}

TEST(Messages, CrossTheNetworkOnce) {
  for (const bool ring : {false, true}) {
    for (const size_t bytes : {0u, 1u, 32'768u, 32'769u, 3'000'000u}) {
      Cluster c(ranks(4, ring));
      const uint64_t frames = c.total(Counter::frames_sent);
      const auto r = receive_message(c, 1, 3, 7, bytes);
      const auto s = send_message(c, 3, 1, 7, bytes, 1);
      finish_messages(c, {r, s});
      expect_got(r, 3, 1);
      EXPECT_EQ(c.total(Counter::message_bytes_sent), bytes);
      EXPECT_EQ(c.total(Counter::message_bytes_received), bytes);
      EXPECT_EQ(c.total(Counter::messages_sent), 1u);
      EXPECT_EQ(c.total(Counter::messages_received), 1u);
      EXPECT_EQ(c.total(Counter::messages_kept), 0u);
      // A head, pieces of 60 KiB, and a grant for every half of a window.
      EXPECT_LE(c.total(Counter::frames_sent) - frames, 1 + bytes / kMessagePiece * 3 / 2 + 3)
          << bytes;
    }
  }
}

TEST(Messages, EarlyOnesWaitForTheirReceives) {
  Cluster c(ranks(3));
  MessageRuns runs;
  for (uint64_t id = 1; id <= 6; id++) {
    runs.push_back(send_message(c, 0, 2, static_cast<uint32_t>(id % 2), id * 10'000, id));
  }
  c.run_for(10 * kMilli);
  EXPECT_EQ(c.total(Counter::messages_kept), 6u);
  // The later tag is received first; messages of one tag in the order of their sends, with or
  // without a given source.
  for (const uint64_t id : {2u, 4u, 1u, 6u, 3u, 5u}) {
    const auto r = receive_message(c, 2, id % 3 == 0 ? kAnyRank : Member{0},
                                   static_cast<uint32_t>(id % 2), id * 10'000);
    ASSERT_TRUE(c.run([&] { return r->done(); })) << id;
    expect_got(r, 0, id);
  }
  finish_messages(c, runs);
}

TEST(Messages, AnySourceTakesTheFirstArrival) {
  Cluster c(ranks(4));
  MessageRuns runs;
  for (int i = 0; i < 3; i++) runs.push_back(receive_message(c, 0, kAnyRank, 5, 1000));
  for (const Member from : {2, 3, 1}) {
    runs.push_back(send_message(c, from, 0, 5, 1000, from));
    c.run_for(kMilli);
  }
  finish_messages(c, runs);
  expect_got(runs[0], 2, 2);
  expect_got(runs[1], 3, 3);
  expect_got(runs[2], 1, 1);
}

// Each rank sends to the next and receives from the one before, all at once, and no receive is
// posted when the messages leave: a batch_isend_irecv in any order.
TEST(Messages, RingsDoNotWaitForThemselves) {
  for (const size_t bytes : {100u, 2'000'000u}) {
    ClusterOptions o = ranks(5);
    o.net.stream_rate = 1e8;  // longer ones wait for their receivers' queues
    Cluster c(o);
    MessageRuns runs;
    for (Member r = 0; r < 5; r++)
      runs.push_back(send_message(c, r, (r + 1) % 5, 0, bytes, 10 + r));
    c.run_for(5 * kMilli);
    for (Member r = 0; r < 5; r++) runs.push_back(receive_message(c, r, (r + 4) % 5, 0, bytes));
    finish_messages(c, runs);
    for (Member r = 0; r < 5; r++) {
      expect_got(runs[5 + r], (r + 4) % 5, 10 + (r + 4) % 5);
    }
  }
}

TEST(Messages, AreSentAheadOnlyAsFarAsTheAllowance) {
  for (const size_t bytes : {1u, 20'000u, 200'000u}) {
    Cluster c(ranks(3));
    MessageRuns runs;
    for (uint64_t id = 1; id <= 300; id++) runs.push_back(send_message(c, 1, 0, 0, bytes, id));
    c.run_for(100 * kMilli);
    EXPECT_LE(c.total(Counter::message_bytes_sent), 128u << 10);
    EXPECT_EQ(c.total(Counter::messages_kept), 300u) << "of each the head is there";
    MessageRuns receives;
    for (uint64_t id = 1; id <= 300; id++) {
      runs.push_back(receive_message(c, 0, 1, 0, bytes));
      receives.push_back(runs.back());
    }
    finish_messages(c, runs);
    for (uint64_t id = 1; id <= 300; id++) expect_got(receives[id - 1], 1, id);
  }
}

TEST(Messages, FromManyToOneStayWithinTheIncast) {
  ClusterOptions o = ranks(6);
  o.group.agreed.incast = 256 << 10;
  Cluster c(o);
  uint64_t granted = 0, here = 0, most = 0;
  std::map<uint32_t, uint64_t> ends;
  c.net().set_frame_hook([&](size_t from, size_t to, Channel, ConstBytes frame) {
    wire::FrameHeader h;
    if (!wire::parse_frame(frame, h)) return true;
    if (h.type == wire::FrameType::kMessageGrant && from == 0) {
      uint64_t end = 0;
      EXPECT_TRUE(wire::parse_message_grant(frame.subspan(wire::kFrameHeader), end));
      uint64_t& before = ends[static_cast<uint32_t>(to)];
      granted += end - std::max<uint64_t>(before, 32 << 10);
      before = end;
    }
    if (h.type == wire::FrameType::kMessageData && to == 0) {
      here += frame.size() - wire::kFrameHeader - wire::kMessageHead;
    }
    most = std::max(most, granted - std::min(granted, here));
    return true;
  });
  MessageRuns runs;
  for (Member r = 1; r < 6; r++) {
    runs.push_back(receive_message(c, 0, r, 1, 1'000'000));
    runs.push_back(send_message(c, r, 0, 1, 1'000'000, r));
  }
  finish_messages(c, runs);
  EXPECT_GT(most, 128u << 10);
  EXPECT_LE(most, 256u << 10);
  for (Member r = 1; r < 6; r++) expect_got(runs[2 * (r - 1)], r, r);
}

TEST(Messages, BesideOperationsThatOthersHaveNotCalled) {
  Cluster c(ranks(4));
  Runs operations;
  // Rank 3 posts all of them late.
  for (Member r = 0; r < 3; r++) {
    operations.push_back(c.allgather(r, 100'000, 1));
    operations.push_back(c.exchange(r, Kind::kAllToAll, 0, 300'000, 2));
  }
  const MessageRuns runs = {
      send_message(c, 0, 2, 1, 500'000, 9), receive_message(c, 2, 0, 1, 500'000),
      send_message(c, 1, 3, 1, 500'000, 8), receive_message(c, 3, 1, 1, 500'000)};
  ASSERT_TRUE(c.run([&] { return all_over(runs); }, kSecond));
  expect_got(runs[1], 0, 9);
  expect_got(runs[3], 1, 8);
  operations.push_back(c.allgather(3, 100'000, 1));
  operations.push_back(c.exchange(3, Kind::kAllToAll, 0, 300'000, 2));
  finish(c, operations);
}

TEST(Messages, WrongLengthFailsOnBothRanks) {
  Cluster c(ranks(3));
  const MessageRuns runs = {send_message(c, 2, 0, 4, 100, 1), receive_message(c, 0, 2, 4, 101),
                            receive_message(c, 1, 0, 0, 1)};
  ASSERT_TRUE(c.run([&] { return all_over({runs[1], runs[2]}); }, kSecond));
  for (const auto& run : {runs[1], runs[2]}) {
    EXPECT_EQ(run->calls, 1);
    EXPECT_EQ(run->status.code(), Code::kMismatch);
    EXPECT_TRUE(has(run->status,
                    "rank 2 has sent 100 bytes to recv of 101 bytes with tag 4 from "
                    "rank 2 (group 'job', rank 0)"))
        << run->status.message();
  }
  EXPECT_EQ(c.total(Counter::mismatched), 1u);
  ASSERT_TRUE(c.run([&] { return c.group(2).core().failed(); }, kSecond));
  const auto later = receive_message(c, 2, 0, 0, 1);
  EXPECT_TRUE(later->done());
  EXPECT_EQ(later->status.code(), Code::kMismatch);
}

TEST(Messages, LateOnesEndByTheirLimits) {
  {
    Cluster c(ranks(3));
    const auto r = receive_message(c, 1, 2, 4, 10, 3 * kSecond);
    ASSERT_TRUE(c.run([&] { return r->done(); }, 4 * kSecond));
    EXPECT_EQ(r->status.code(), Code::kTimeout);
    EXPECT_TRUE(has(r->status, "no such message has arrived")) << r->status.message();
  }
  Cluster c(ranks(3));
  const auto s = send_message(c, 1, 2, 4, 100'000, 1, 3 * kSecond);
  ASSERT_TRUE(c.run([&] { return s->done(); }, 4 * kSecond));
  EXPECT_EQ(s->status.code(), Code::kTimeout);
  EXPECT_TRUE(has(s->status, "no receive has taken it")) << s->status.message();
}

// The ranks are not neighbours in the tree or the ring, and have not exchanged anything before.
TEST(Messages, EndOfAnAwaitedRankIsNoticed) {
  for (const bool any : {false, true}) {
    Cluster c(ranks(9));
    const auto r = receive_message(c, 1, any ? kAnyRank : Member{6}, 0, 10);
    c.run_for(kSecond);
    c.kill(6);
    ASSERT_TRUE(c.run([&] { return r->done(); }, 2 * kLiveness));
    EXPECT_TRUE(is_error(r->status, ErrorId::rank_lost, {{"rank", "6"}}));
  }
}

// A stopped process keeps its connections; only its silence reveals it.
TEST(Messages, SilentAwaitedRankIsNamed) {
  for (const bool sends : {false, true}) {
    Cluster c(ranks(9));
    const auto r = sends ? send_message(c, 1, 6, 0, 5'000'000, 1) : receive_message(c, 1, 6, 0, 10);
    c.pause(6, true);
    c.run_for(kLiveness);
    EXPECT_FALSE(r->done());
    ASSERT_TRUE(c.run([&] { return r->done(); }, kLiveness));
    EXPECT_TRUE(is_error(r->status, ErrorId::rank_silent,
                         {{"rank", "6"}, {"limit", seconds_text(kLiveness)}}));
  }
  // It is not reported before the limit, nor if no rank waits for it.
  Cluster c(ranks(9));
  const auto r = receive_message(c, 1, 6, 0, 10);
  const auto other = receive_message(c, 2, 5, 0, 10);
  c.pause(6, true);
  c.pause(4, true);
  c.run_for(kLiveness - kSecond);
  c.pause(6, false);
  c.run_for(4 * kLiveness);
  EXPECT_FALSE(r->done() || other->done());
  for (const Member m : {6, 5}) (void)send_message(c, m, m == 6 ? 1 : 2, 0, 10, 1);
  ASSERT_TRUE(c.run([&] { return r->done() && other->done(); }));
  EXPECT_TRUE(r->status.ok() && other->status.ok());
}

TEST(Messages, TheEndOfARankInTheMiddleEndsItsMessages) {
  for (const bool sender : {false, true}) {
    Cluster c(ranks(3));
    const auto s = send_message(c, 0, 2, 0, 5'000'000, 1);
    const auto r = receive_message(c, 2, 0, 0, 5'000'000);
    ASSERT_TRUE(c.run([&] { return c.total(Counter::message_bytes_received) > 1'000'000; }));
    c.kill(sender ? 0 : 2);
    const auto& left = sender ? r : s;
    ASSERT_TRUE(c.run([&] { return left->done(); }, 2 * kLiveness));
    EXPECT_EQ(left->status.code(), Code::kPeerLost);
  }
}

void close_rank(Cluster& c, Member r) {
  c.group(r).core().leave(c.clock(r));
  c.run_for(kMilli);
  c.lane(r).transport().stream().close_peers(c.clock(r));
  c.run_for(kMilli);
  c.pause(r, true);
}

TEST(Messages, SendsBeforeTheGoodbyeAreReceived) {
  Cluster c(ranks(4));
  const MessageRuns sends = {send_message(c, 3, 1, 1, 100, 1), send_message(c, 3, 1, 2, 200, 2)};
  c.run_for(kMilli);
  const auto others = receive_message(c, 1, 0, 9, 10);
  close_rank(c, 3);
  c.run_for(5 * kSecond);
  const auto first = receive_message(c, 1, 3, 1, 100),
             second = receive_message(c, 1, kAnyRank, 2, 200);
  ASSERT_TRUE(all_over({first, second, sends[0], sends[1]}));
  expect_got(first, 3, 1);
  expect_got(second, 3, 2);
  EXPECT_FALSE(c.group(1).core().failed()) << "who else is waited for does not matter to it";
  const auto s = send_message(c, 0, 1, 9, 10, 3);
  ASSERT_TRUE(c.run([&] { return others->done(); }, kSecond));
  expect_got(others, 0, 3);
  const auto r = receive_message(c, 1, 3, 1, 100);
  ASSERT_TRUE(c.run([&] { return r->done(); }, kSecond));
  EXPECT_EQ(r->status.code(), Code::kPeerLost);
  EXPECT_TRUE(has(r->status, "rank 3 closed its connections")) << r->status.message();
  EXPECT_TRUE(s->done());
}

TEST(Messages, RankThatLeavesWithoutSendingFailsItsReceiver) {
  for (const bool any : {false, true}) {
    Cluster c(ranks(2));
    const auto r = receive_message(c, 1, any ? kAnyRank : Member{0}, 1, 100);
    close_rank(c, 0);
    ASSERT_TRUE(c.run([&] { return r->done(); }, 2 * kSecond));
    EXPECT_EQ(r->status.code(), Code::kPeerLost);
  }
}

TEST(Messages, AnAbortEndsAllOfThemOnAllRanks) {
  Cluster c(ranks(3));
  MessageRuns runs;
  for (uint64_t id = 1; id <= 20; id++) {
    runs.push_back(send_message(c, 0, 1, 0, 1'000'000, id));
    if (id % 2 == 0) runs.push_back(receive_message(c, 1, 0, 0, 1'000'000));
    runs.push_back(receive_message(c, 2, kAnyRank, 0, 10));
  }
  c.run_for(2 * kMilli);
  c.group(1).core().fail(Status(Code::kAborted, "enough"), 1, c.clock(1));
  ASSERT_TRUE(c.run([&] { return all_over(runs); }, kSecond));
  for (const auto& run : runs) {
    EXPECT_EQ(run->calls, 1);
    EXPECT_TRUE(run->status.ok() || has(run->status, "enough")) << run->status.message();
  }
}

// Frames that a correct rank does not send.
TEST(Messages, ABrokenProtocolIsAFailure) {
  struct Case {
    wire::FrameType type;
    Sequence number;
    std::vector<uint64_t> words;
    const char* what;
  };
  using T = wire::FrameType;
  const std::vector<Case> cases = {
      {T::kMessage, 5, {0}, "a message with an invalid beginning"},
      {T::kMessage, 0, {0, 1}, "a message with an invalid beginning"},
      {T::kMessageData, 0, {0, 1}, "a piece of a message that was not asked for"},
      {T::kMessageGrant, 0, {1}, "a reply to a message that was not sent"},
      {T::kMessageCredit, 0, {1, 1}, "a reply to a message that was not sent"},
      {T::kMessageCredit, 0, {1}, "a reply to a message that was not sent"},
  };
  for (const Case& one : cases) {
    ClusterOptions o = ranks(2);
    o.security = crypto::Mode::kOff;
    Cluster c(o);
    wire::Writer body;
    for (const uint64_t word : one.words) body.put<uint64_t>(word);
    std::vector<std::byte> frame(wire::kFrameHeader + body.size());
    const ConstBytes parts[] = {body.bytes()};
    const GroupParams& params = c.group(0).core().params();
    wire::write_frame_header(frame.data(), {one.type, params.lane, 1, params.tag, one.number, 0},
                             parts);
    std::copy(body.bytes().begin(), body.bytes().end(), frame.begin() + wire::kFrameHeader);
    c.net().inject_frame(1, 0, Channel::kReduce, frame);
    ASSERT_TRUE(c.run([&] { return c.group(0).core().failed(); }, kSecond)) << one.what;
    EXPECT_TRUE(has(c.group(0).core().failure(), one.what))
        << c.group(0).core().failure().message();
    EXPECT_EQ(c.group(0).counters().get(Counter::malformed), 1u);
  }
}

// Random matching sends and receives, posted in any order and at any time, among operations.
TEST(Messages, RandomOnesAllArrive) {
  for (uint64_t seed = 1; seed <= 40; seed++) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    ClusterOptions o = ranks(2 + static_cast<uint32_t>(rng.below(4)));
    o.net.seed = seed;
    o.group.agreed.incast = 64u << (10 + rng.below(5));
    Cluster c(o);
    // Lengths in the order of the sends, by sender, receiver and tag.
    std::map<std::array<Member, 3>, std::vector<size_t>> lines;
    std::map<std::array<Member, 3>, size_t> sent, received;
    for (int i = 0; i < 60; i++) {
      const auto a = static_cast<Member>(rng.below(c.size()));
      const auto b = static_cast<Member>((a + 1 + rng.below(c.size() - 1)) % c.size());
      lines[{a, b, static_cast<Member>(rng.below(3))}].push_back(
          rng.below(rng.chance(0.7) ? 1000 : 400'000));
    }
    MessageRuns runs, receives;
    Runs operations;
    std::vector<uint64_t> expected;
    const auto id_of = [](const std::array<Member, 3>& line, size_t k) {
      return 1 + line[0] + 10ull * line[1] + 100ull * line[2] + 1000 * k;
    };
    for (bool more = true; more;) {
      more = false;
      for (const auto& [line, lengths] : lines) {
        size_t& out = sent[line];
        size_t& in = received[line];
        if (out < lengths.size() && rng.chance(0.4)) {
          runs.push_back(
              send_message(c, line[0], line[1], line[2], lengths[out], id_of(line, out)));
          out++;
        }
        if (in < lengths.size() && rng.chance(0.4)) {
          receives.push_back(receive_message(c, line[1], line[0], line[2], lengths[in]));
          expected.push_back(id_of(line, in));
          in++;
        }
        more = more || out < lengths.size() || in < lengths.size();
      }
      if (rng.chance(0.3)) {
        const uint64_t id = 1'000'000 + operations.size();
        for (const auto& run : allgather_all(c, rng.below(50'000), id)) operations.push_back(run);
      }
      if (rng.chance(0.5)) c.run_for(static_cast<Nanos>(rng.below(2 * kMilli)));
    }
    runs.insert(runs.end(), receives.begin(), receives.end());
    ASSERT_TRUE(c.run([&] { return all_over(runs); })) << "hangs";
    for (size_t i = 0; i < receives.size(); i++) {
      expect_got(receives[i], receives[i]->peer, expected[i]);
    }
    finish(c, operations);
    for (const auto& run : runs) ASSERT_EQ(run->calls, 1);
  }
}

}  // namespace
}  // namespace mcast::test
