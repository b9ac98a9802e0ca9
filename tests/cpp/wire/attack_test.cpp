// A seeded fuzzer on whole groups. Real datagrams and frames are captured on the simulated network,
// mutated, and injected into a running group. Without a valid checksum they change nothing: every
// operation still delivers exact bytes. With a valid checksum they may fail the group (only a
// member can forge a frame; see docs/protocol.md), but never crash, write outside the regions, or
// hang.
// MCAST_TEST_SEED=1234 mcast_test_wire --gtest_filter='Attack*'
#include <gtest/gtest.h>

#include <algorithm>

#include <cstdlib>

#include "base/checksum.h"
#include "base/rng.h"
#include "support/program.h"
#include "support/seeds.h"

namespace mcast::test {
namespace {

constexpr Nanos kOpLimit = 5 * kSecond;

struct Attack {
  bool datagrams = false, frames = false;
  bool forge = false;  // recompute checksums
};

class Attacker {
 public:
  Attacker(uint64_t seed, const Attack& attack) : rng_(seed), attack_(attack) {
    ClusterOptions o;
    o.ranks = static_cast<uint32_t>(2 + rng_.below(4));
    o.net.seed = seed;
    o.group.arity = rng_.chance(0.5) ? 2 : 32;
    o.group.agreed.eager = rng_.chance(0.5) ? 32768 : 3000;
    o.group.liveness_limit = 2 * kSecond;
    o.group.multicast.wanted = !attack.frames || rng_.chance(0.7);
    cluster_ = std::make_unique<Cluster>(o);
    cluster_->net().faults().drop = rng_.chance(0.5) ? 0.1 : 0;
    cluster_->net().set_datagram_hook([this](size_t from, size_t to, ConstBytes d) {
      if (attack_.datagrams && from != to && rng_.chance(0.2)) catch_datagram(to, d);
      return SimNetwork::Verdict::kPass;
    });
    cluster_->net().set_frame_hook([this](size_t from, size_t to, Channel ch, ConstBytes f) {
      if (attack_.frames && rng_.chance(attack_.forge ? 0.1 : 0.005)) catch_frame(from, to, ch, f);
      return true;
    });
  }

  std::string run() {
    Cluster& c = *cluster_;
    Runs runs;
    const size_t ops = 2 + rng_.below(4);
    for (size_t k = 1; k <= ops; k++) {
      const uint64_t kind = rng_.below(8);
      const size_t bytes = 1 + rng_.below(rng_.chance(0.5) ? 3000 : 120000);
      const auto root = static_cast<Member>(rng_.below(c.size()));
      for (Member r = 0; r < c.size(); r++) {
        if (kind < 2) runs.push_back(c.broadcast(r, root, bytes, k, kOpLimit));
        if (kind == 2 || kind == 3) runs.push_back(c.allgather(r, bytes, k, kOpLimit));
        if (kind == 4) runs.push_back(c.barrier(r, kOpLimit));
        if (kind > 4) {
          const auto way =
              static_cast<wire::Kind>(static_cast<uint64_t>(wire::Kind::kReduceScatter) + kind - 5);
          runs.push_back(c.reduction(r, way, root, bytes, k, kOpLimit));
        }
      }
    }
    const bool ended = c.run([&] { return all_done(runs); }, kOpLimit + 5 * kSecond);
    if (!ended) return "somebody hangs";
    c.run_for(100 * kMilli);
    const bool harmless = !attack_.forge && !attack_.frames;
    for (const auto& r : runs) {
      const std::string who =
          "rank " + std::to_string(r->rank) + " op " + std::to_string(r->id) + ": ";
      if (r->calls != 1) return who + "completed " + std::to_string(r->calls) + " times";
      if (harmless && !r->status.ok()) return who + r->status.to_string();
      if (!r->guards_intact) return who + "guard bytes overwritten";
      if (!attack_.forge && r->status.ok()) {
        if (const std::string wrong = r->check(c.size()); !wrong.empty()) return who + wrong;
      }
    }
    if (injected_ == 0) return "";
    uint64_t counted = 0;
    for (const Counter k : {Counter::malformed, Counter::corrupt, Counter::stale,
                            Counter::duplicates, Counter::mismatched, Counter::staging_drops}) {
      counted += c.total(k);
    }
    for (Member r = 0; r < c.size(); r++) counted += c.lane(r).foreign() + c.lane(r).malformed();
    if (harmless && counted == 0) return "nothing was counted";
    if (c.spins() > 3) return "a lane span";
    return "";
  }

 private:
  std::vector<std::byte> mutate(ConstBytes original, size_t header) {
    std::vector<std::byte> b(original.begin(), original.end());
    const size_t kind = rng_.below(8);
    if (kind == 0 && b.size() > 1) {
      b.resize(rng_.below(b.size()));
    } else if (kind == 1) {
      const size_t extra = 1 + rng_.below(64);
      for (size_t i = 0; i < extra; i++) b.push_back(static_cast<std::byte>(rng_.next()));
    } else if (kind == 2 && b.size() > header) {
      b.resize(header + rng_.below(b.size() - header));
    } else {
      const size_t edits = 1 + rng_.below(4);
      for (size_t i = 0; i < edits && !b.empty(); i++) {
        // Most mutations hit fields of the header and the start of the body, where they matter
        // most.
        const size_t span = rng_.chance(0.8) ? std::min(b.size(), header + 24) : b.size();
        const size_t at = rng_.below(span);
        const uint8_t values[] = {0,
                                  1,
                                  0x7f,
                                  0x80,
                                  0xff,
                                  static_cast<uint8_t>(rng_.next()),
                                  static_cast<uint8_t>(static_cast<uint8_t>(b[at]) + 1),
                                  static_cast<uint8_t>(static_cast<uint8_t>(b[at]) - 1)};
        b[at] = std::byte{values[rng_.below(8)]};
      }
    }
    // An identical copy is not a mutation and need not be counted.
    if (std::ranges::equal(b, original)) b.back() ^= std::byte{1};
    return b;
  }

  void catch_datagram(size_t to, ConstBytes d) {
    auto b = mutate(d, wire::kDatagramHeader);
    if (attack_.forge && b.size() >= wire::kDatagramHeader) {
      wire::store<uint32_t>(b.data(), crc32c(ConstBytes(b).subspan(4)));
    }
    // A datagram that names its receiver as the sender looks like the receiver's own echo, which is
    // legal.
    wire::DatagramHeader header;
    const bool parses = wire::parse_datagram(b, header) == wire::ParseError::kNone;
    if (!parses || header.member != to) injected_++;
    cluster_->at(later(), [this, to, b = std::move(b)] { cluster_->net().inject(to, b); });
  }

  void catch_frame(size_t from, size_t to, Channel channel, ConstBytes f) {
    auto b = mutate(f, wire::kFrameHeader);
    if (attack_.forge && b.size() >= wire::kFrameHeader) {
      wire::store<uint32_t>(b.data(), crc32c(ConstBytes(b).subspan(4)));
    }
    injected_++;
    cluster_->at(later(), [this, from, to, channel, b = std::move(b)] {
      cluster_->net().inject_frame(from, to, channel, b);
    });
  }

  Nanos later() {
    return cluster_->now() +
           static_cast<Nanos>(rng_.below(rng_.chance(0.7) ? kMilli : 100 * kMilli));
  }

  Rng rng_;
  Attack attack_;
  std::unique_ptr<Cluster> cluster_;
  uint64_t injected_ = 0;
};

void attack(const Attack& how, uint64_t count) {
  for_seeds(seeds(count), [&](uint64_t seed) { return Attacker(seed, how).run(); });
}

TEST(Attack, MutatedDatagramsChangeNothing) { attack({.datagrams = true}, 300); }
TEST(Attack, ForgedDatagramsNeverCrashOrHang) { attack({.datagrams = true, .forge = true}, 300); }
TEST(Attack, CorruptFramesFailCleanly) { attack({.frames = true}, 300); }
TEST(Attack, ForgedFramesNeverCrashOrHang) { attack({.frames = true, .forge = true}, 600); }
TEST(Attack, ForgedFramesAndDatagrams) {
  attack({.datagrams = true, .frames = true, .forge = true}, 300);
}

}  // namespace
}  // namespace mcast::test
