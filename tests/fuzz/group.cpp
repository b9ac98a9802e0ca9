// A whole group under attack. The input chooses the group and its operations, and then which of its
// messages are changed, dropped, repeated or misdirected, and which forged ones are added. Most
// checksums are corrected: only a member can do that, and it may fail the group, but everything
// ends in time, exactly once, and writes nowhere else. In a sealed group only members can make
// datagrams, so added datagrams change nothing at all; its frames are changed before they are
// sealed.
#include <gtest/gtest.h>

#include "aggregation/member/stations.h"
#include "base/log.h"
#include "forgery.h"
#include "fuzz.h"
#include "support/program.h"

namespace mcast::fuzz {
namespace {

using test::Cluster;

// All limits here are short, since waiting for one costs hundreds of polls. After it, members
// inquire for up to two seconds which ranks are late.
constexpr Nanos kOpLimit = 2 * kSecond;
constexpr Nanos kLimit = kOpLimit + 4 * kSecond;

class Attack {
 public:
  explicit Attack(ConstBytes input) : in_(input) {
    const uint8_t shape = in_.byte();
    test::ClusterOptions o = test::ranks(2 + (shape & 1u), (shape & 2u) != 0);
    if ((shape & 4u) != 0) o.group.agreed.eager = 1000;
    if ((shape & 8u) != 0) o.group.host_of = {0, 0, 1}, o.group.host_of.resize(o.ranks);
    if ((shape & 128u) != 0) o.security = crypto::Mode::kSealed;
    guarded_ = o.security != crypto::Mode::kOff;
    const bool lossy = (shape & 16u) != 0;
    o.net.faults.drop = lossy ? 0.1 : 0;
    if (!lossy) o.net.jitter = 0;  // what arrives together is handled in one poll
    o.group.liveness_limit = o.group.probe_timeout = kSecond;
    o.group.staging = o.group.retransmit = 32 * 1024;
    // Polls without a reason would take most of the time, and could hide that one is missing.
    o.sleepy = true;
    o.group.fold = &Stations::make;  // so that forged frames of aggregators are handled
    cluster_ = std::make_unique<Cluster>(o);
    if ((shape & 32u) == 0) {
      attach();
      return;
    }
    // Another group's creation is attacked too. It may then wait indefinitely; the engine would end
    // it.
    o.group.agreed.chunk = 704;
    o.group.multicast.required = (shape & 64u) != 0 && o.group.multicast.wanted && !lossy;
    attach();
    group_ = cluster_->add_group(o.group, 5 * kSecond);
  }

  void run() {
    Cluster& c = *cluster_;
    for (Member r = 0; r < c.size(); r++) {
      const GroupCore& core = c.group(r, group_).core();
      if (core.path() == GroupCore::Path::kUnknown && !core.failed()) return;
    }
    test::Runs runs;
    for (uint64_t k = 1; k <= 1u + (operations_[0] & 1u) + (operations_[1] & 1u); k++) {
      post(operations_[k % 2] >> 1, k, runs);
    }
    require(c.run([&] { return test::all_done(runs); }, kLimit), "no hang");
    c.run_for(600 * kMilli);
    for (const auto& r : runs) {
      require(r->calls == 1, "every operation ends once");
      require(r->guards_intact, "nothing is written beside the memory");
      require(!harmless_ || (r->status.ok() && r->verdict.empty()), "what is left alone works");
    }
    require(c.spins() <= 3, "no lane spins");
  }

 private:
  void post(uint8_t what, uint64_t id, test::Runs& runs) {
    Cluster& c = *cluster_;
    constexpr uint64_t kSizes[] = {4, 900, 5000, 15000};
    wire::Descriptor d;
    d.kind = static_cast<wire::Kind>(1 + (what & 7u));
    const bool barrier = d.kind == wire::Kind::kBarrier;
    d.element = barrier ? 0xff : static_cast<uint8_t>(Element::kInt32);
    d.bytes = barrier ? 0 : kSizes[what >> 3 & 3u];
    if (wire::is_reduction(d.kind)) d.reduction = static_cast<uint8_t>(Reduction::kSum);
    if (wire::is_rooted(d.kind)) {
      d.root = static_cast<Member>((what >> 5) % c.size());
    }
    for (Member r = 0; r < c.size(); r++) runs.push_back(c.call(r, d, id, kOpLimit, group_));
  }

  void attach() {
    operations_[0] = in_.byte();
    operations_[1] = in_.byte();
    next();
    cluster_->net().set_datagram_hook([this](size_t from, size_t to, ConstBytes d) {
      using Verdict = SimNetwork::Verdict;
      return from == to || !act(from, to, nullptr, d) ? Verdict::kPass : Verdict::kDrop;
    });
    cluster_->net().set_frame_hook([this](size_t from, size_t to, Channel channel, ConstBytes f) {
      return !act(from, to, &channel, f);
    });
  }

  // Reads how many messages pass before the next one is attacked.
  void next() { left_ = in_.empty() ? SIZE_MAX : in_.byte() & 31u; }

  // Handles one message; returns true if it is removed. `channel` is null for datagrams.
  bool act(size_t from, size_t to, const Channel* channel, ConstBytes message) {
    // A member that believes a forged roster of aggregators sends to endpoints that do not exist.
    if (to >= cluster_->size() || left_ == SIZE_MAX || left_-- > 0) return false;
    handed();
    const uint8_t what = in_.byte();
    // Attacks of a sealed group without its keys are harmless: they only add datagrams.
    harmless_ = harmless_ && guarded_ && channel == nullptr && (what & 64u) == 0;
    std::vector<std::byte> m(message.begin(), message.end());
    forge(in_, what & 7u, channel != nullptr, static_cast<Member>(from), m);
    if ((what & 7u) == kElsewhere) to = (to + 1) % cluster_->size();
    if ((what & 8u) == 0) make_checksum_right(m);
    constexpr Nanos kDelays[] = {0, kMilli, 50 * kMilli, 500 * kMilli};
    const Nanos when = cluster_->now() + kDelays[what >> 4 & 3u];
    if (from != to) {
      const Channel way = channel != nullptr ? *channel : Channel::kControl;
      cluster_->at(when, [this, from, to, frame = channel != nullptr, way, m = std::move(m)] {
        if (frame) cluster_->net().inject_frame(from, to, way, m);
        if (!frame) cluster_->net().inject(to, m);
      });
    }
    next();
    return (what & 64u) != 0;
  }

  Input in_;
  std::unique_ptr<Cluster> cluster_;
  size_t group_ = 0;
  uint8_t operations_[2] = {0, 0};
  size_t left_ = SIZE_MAX;
  bool guarded_ = false;
  bool harmless_ = true;
};

}  // namespace
}  // namespace mcast::fuzz

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // A failed expectation of the cluster ends the program too.
  GTEST_FLAG_SET(break_on_failure, true);
  mcast::set_log_level(mcast::LogLevel::kOff);
  mcast::fuzz::Attack(mcast::fuzz::bytes_of(data, size)).run();
  return 0;
}
