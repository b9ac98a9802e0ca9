// P2pSender and P2pReceiver, connected by streams that keep the order.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <tuple>
#include <vector>

#include "base/rng.h"
#include "protocol/match_queue.h"
#include "protocol/p2p_receiver.h"
#include "protocol/p2p_sender.h"
#include "protocol/p2p_values.h"

namespace mcast::test {
namespace {

using Taking = P2pReceiver::Verdict;

// Ranks that send and receive at random, with waiting and early messages and withdrawn receives.
class P2pWorld {
 public:
  P2pWorld(uint64_t seed, const P2pParams& params, size_t ranks)
      : rng_(seed), params_(params), ranks_(ranks), queues_(ranks), ways_(ranks * ranks) {
    for (size_t i = 0; i < ranks * ranks; i++) {
      out_.emplace_back(params);
      in_.emplace_back(params);
    }
    taken_.resize(ranks * ranks);
    held_.resize(ranks * ranks);
  }

  void step() {
    const size_t a = rng_.below(ranks_), b = (a + 1 + rng_.below(ranks_ - 1)) % ranks_;
    if (posting && rng_.chance(0.1)) post_send(a, b);
    if (posting && rng_.chance(0.1)) post_receive(a, b);
    if (posting && rng_.chance(0.01)) withdraw(a);
    if (rng_.chance(0.5)) send(a, b);
    if (rng_.chance(0.5)) grant(a, b);
    if (rng_.chance(0.7)) deliver(a, b);
  }

  // Runs until nothing changes any more.
  void drain() {
    posting = false;
    for (int i = 0; i < 100'000 && !at_rest(); i++) step();
    ASSERT_TRUE(at_rest());
  }

  // Ends everything in its current state: each send that has not left is reported once.
  void abort() {
    std::set<uint64_t> open;
    for (const auto& [id, s] : sends_) {
      if (!s.left) open.insert(id);
    }
    for (P2pSender& s : out_) {
      for (const uint64_t id : s.abandon()) ASSERT_EQ(open.erase(id), 1u);
      ASSERT_TRUE(s.idle());
      ASSERT_FALSE(s.may_send());
    }
    ASSERT_TRUE(open.empty());
  }

  void check(bool all_heads) const {
    for (const auto& [id, s] : sends_) {
      if (s.taken_by != 0) {
        ASSERT_TRUE(s.left);
      }
    }
    // The receives in the order of their posts, by receiver, tag and sender.
    std::map<std::tuple<size_t, uint32_t, size_t>, uint64_t> last;
    for (const auto& [id, r] : receives_) {
      if (r.from == 0) continue;
      const Send& s = sends_.at(r.from);
      ASSERT_EQ(s.tag, r.tag);
      ASSERT_TRUE(r.source == MatchQueue::kAnySource || r.source == s.from);
      ASSERT_EQ(r.got, content(r.from, s.total)) << "message " << r.from;
      uint64_t& before = last[{r.at, r.tag, s.from}];
      ASSERT_LT(before, r.from) << "overtaken";
      before = r.from;
    }
    for (const auto& [id, s] : sends_) {
      if (s.taken_by != 0 || (!all_heads && !s.head_left)) continue;
      for (const auto& [rid, r] : receives_) {
        const bool fits = r.at == s.to && r.tag == s.tag && !r.withdrawn &&
                          (r.source == MatchQueue::kAnySource || r.source == s.from);
        ASSERT_FALSE(fits && r.from == 0) << "a message and a receive that wait for each other";
      }
    }
  }

  bool posting = true;
  size_t most_held = 0;

 private:
  struct Send {
    size_t from, to;
    uint32_t tag;
    uint64_t total;
    bool head_left = false, left = false;
    uint64_t taken_by = 0;
  };
  struct Receive {
    size_t at;
    Member source;
    uint32_t tag;
    bool withdrawn = false;
    uint64_t from = 0;  // the send whose message it received
    std::vector<uint8_t> got;
  };
  enum class Kind { kHead, kData, kGrant, kCredit };
  struct Frame {
    Kind kind;
    uint32_t number, tag;
    uint64_t total, offset;  // of a grant: end; of credit: both numbers
    uint64_t send = 0;       // the matching send, for checks only
    std::vector<uint8_t> bytes;
  };
  struct Head {
    uint64_t send;
    std::vector<uint8_t> bytes;
  };

  static std::vector<uint8_t> content(uint64_t send, uint64_t total) {
    std::vector<uint8_t> bytes(total);
    for (uint64_t i = 0; i < total; i++) bytes[i] = static_cast<uint8_t>(mix64(send * 4096 + i));
    return bytes;
  }
  size_t way(size_t from, size_t to) const { return from * ranks_ + to; }

  void post_send(size_t a, size_t b) {
    const uint64_t id = ++ids_;
    const uint64_t total = rng_.chance(0.2) ? 0 : rng_.below(rng_.chance(0.5) ? 20 : 400);
    sends_[id] = {a, b, static_cast<uint32_t>(rng_.below(3)), total};
    out_[way(a, b)].post(id, sends_[id].tag, total);
  }

  void post_receive(size_t a, size_t b) {
    const uint64_t id = ++ids_;
    const Member source = rng_.chance(0.4) ? MatchQueue::kAnySource : static_cast<Member>(b);
    receives_[id] = {a, source, static_cast<uint32_t>(rng_.below(3)), false, 0, {}};
    const auto message = queues_[a].post(id, source, receives_[id].tag);
    if (!message) return;
    auto head = held_[way(message->source, a)].extract(message->number);
    take(message->source, a, message->number, id, head.mapped());
  }

  void withdraw(size_t a) {
    for (auto& [id, r] : receives_) {
      if (r.at == a && queues_[a].withdraw(id)) {
        r.withdrawn = true;
        return;
      }
    }
  }

  void take(size_t from, size_t at, uint32_t number, uint64_t receive, const Head& head) {
    Receive& r = receives_.at(receive);
    r.from = head.send;
    r.got = head.bytes;
    sends_.at(head.send).taken_by = receive;
    P2pReceiver& in = in_[way(from, at)];
    const Taking verdict = in.take(number);
    ASSERT_EQ(verdict == Taking::kComplete, r.got.size() == sends_.at(head.send).total);
    if (verdict != Taking::kComplete) taken_[way(from, at)][number] = receive;
    if (const auto c = in.credit()) {
      ways_[way(at, from)].push_back({Kind::kCredit, 0, 0, c->heads, c->bytes, 0, {}});
    }
  }

  void send(size_t a, size_t b) {
    P2pSender& out = out_[way(a, b)];
    const auto piece = out.next([&](uint64_t) { return rng_.chance(0.9) ? 1000 : rng_.below(30); });
    if (!piece) return;
    Send& s = sends_.at(piece->id);
    const std::vector<uint8_t> bytes = content(piece->id, s.total);
    const auto from = bytes.begin() + static_cast<long>(piece->offset);
    ways_[way(a, b)].push_back({piece->head ? Kind::kHead : Kind::kData,
                                piece->number,
                                piece->tag,
                                piece->total,
                                piece->offset,
                                piece->id,
                                {from, from + static_cast<long>(piece->bytes)}});
    s.head_left = s.head_left || piece->head;
    s.left = out.sent(*piece);
  }

  void grant(size_t from, size_t at) {
    P2pReceiver& in = in_[way(from, at)];
    if (const auto g = in.grant(1 + rng_.below(200))) {
      ways_[way(at, from)].push_back({Kind::kGrant, g->number, 0, 0, g->end, 0, {}});
    }
    ASSERT_LE(in.outstanding(), params_.window * std::max<size_t>(1, in.incomplete()));
  }

  void deliver(size_t a, size_t b) {
    auto& frames = ways_[way(a, b)];
    if (frames.empty()) return;
    const Frame f = frames.front();
    frames.pop_front();
    if (f.kind == Kind::kGrant) {
      ASSERT_TRUE(out_[way(b, a)].on_grant(f.number, f.offset));
    } else if (f.kind == Kind::kCredit) {
      ASSERT_TRUE(out_[way(b, a)].on_credit(f.total, f.offset));
    } else if (f.kind == Kind::kHead) {
      on_head(a, b, f);
    } else {
      Receive& r = receives_.at(taken_[way(a, b)].at(f.number));
      ASSERT_EQ(r.got.size(), f.offset);
      const Taking verdict = in_[way(a, b)].on_data(f.number, f.offset, f.bytes.size());
      r.got.insert(r.got.end(), f.bytes.begin(), f.bytes.end());
      const bool over = r.got.size() == sends_.at(r.from).total;
      ASSERT_EQ(verdict, over ? Taking::kComplete : Taking::kTaken);
      if (over) taken_[way(a, b)].erase(f.number);
    }
  }

  void on_head(size_t a, size_t b, const Frame& f) {
    ASSERT_EQ(in_[way(a, b)].on_head(f.number, f.total, f.bytes.size()), Taking::kTaken);
    const Head head{f.send, f.bytes};
    const auto receive = queues_[b].arrive({static_cast<Member>(a), f.number}, f.tag);
    if (receive) return take(a, b, f.number, *receive, head);
    auto& held = held_[way(a, b)];
    held[f.number] = head;
    size_t bytes = 0;
    for (const auto& [number, h] : held) bytes += h.bytes.size();
    most_held = std::max(most_held, bytes);
    ASSERT_LE(bytes, params_.account);
    ASSERT_LE(held.size(), params_.heads);
  }

  bool at_rest() {
    for (size_t i = 0; i < out_.size(); i++) {
      if (!ways_[i].empty() || in_[i].asking() || out_[i].may_send()) return false;
    }
    return true;
  }

  Rng rng_;
  const P2pParams params_;
  const size_t ranks_;
  std::vector<MatchQueue> queues_;
  std::vector<std::deque<Frame>> ways_;
  std::deque<P2pSender> out_;   // by pair of ranks
  std::deque<P2pReceiver> in_;  // likewise
  std::vector<std::map<uint32_t, uint64_t>> taken_;
  std::vector<std::map<uint32_t, Head>> held_;
  std::map<uint64_t, Send> sends_;
  std::map<uint64_t, Receive> receives_;
  uint64_t ids_ = 0;
};

P2pParams drawn_p2p(Rng& rng) {
  P2pParams p;
  p.unasked = rng.below(30);
  p.account = p.unasked + rng.below(60);
  p.heads = rng.chance(0.5) ? 100'000 : 1 + rng.below(6);
  p.piece = std::max<uint64_t>(1, p.unasked) + rng.below(60);
  p.window = 1 + rng.below(200);
  if (rng.chance(0.5)) p.first = UINT32_MAX - static_cast<uint32_t>(rng.below(20));
  return p;
}

TEST(P2p, AllBytesArriveInOrderWhateverTheInterleaving) {
  size_t held = 0;
  for (uint64_t seed = 1; seed <= 300; seed++) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    const P2pParams params = drawn_p2p(rng);
    P2pWorld world(seed, params, 2 + rng.below(3));
    for (uint64_t i = rng.below(3000); i > 0; i--) world.step();
    ASSERT_FALSE(testing::Test::HasFatalFailure());
    world.drain();
    ASSERT_FALSE(testing::Test::HasFatalFailure());
    world.check(params.heads >= 100'000);
    ASSERT_FALSE(testing::Test::HasFatalFailure());
    held = std::max(held, world.most_held);
  }
  EXPECT_GT(held, 30u) << "nothing came before its receive";
}

TEST(P2p, AnEndAtAnyPointLeavesNothingOpen) {
  for (uint64_t seed = 1; seed <= 300; seed++) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    P2pWorld world(seed, drawn_p2p(rng), 2 + rng.below(3));
    for (uint64_t i = rng.below(2000); i > 0; i--) world.step();
    world.abort();
    ASSERT_FALSE(testing::Test::HasFatalFailure());
  }
}

}  // namespace
}  // namespace mcast::test
