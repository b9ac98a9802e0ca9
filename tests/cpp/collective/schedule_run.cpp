// Posts operations, drives virtual time until every operation is done and every group is quiet,
// then compares the bytes and balances the counters: each chunk was multicast once plus the counted
// repetitions, each receiver placed each chunk exactly once, and repairs stay in proportion to
// losses.
#include <algorithm>
#include <sstream>

#include "base/rng.h"
#include "collective/schedule.h"
#include "runtime/group_base.h"
#include "transport/interceptor.h"
#include "wire/guarded_datagram.h"

namespace mcast::test {
namespace {

// One run of one schedule.
class Runner {
 public:
  explicit Runner(const Schedule& schedule)
      : s_(schedule), rng_(schedule.seed ^ 0x5eed), cluster_(options(schedule)) {
    for (size_t g = 1; g < s_.groups.size(); g++) cluster_.add_group(s_.groups[g]);
  }

  Outcome run() {
    start_ = cluster_.now();
    cluster_.net().faults() = s_.net.faults;
    data_sent_.assign(s_.groups.size(), 0);
    cluster_.net().set_datagram_hook(
        [this](size_t from, size_t to, ConstBytes d) { return on_datagram(from, to, d); });
    for (size_t g = 0; g < s_.groups.size(); g++) {
      for (Member r = 0; r < s_.ranks; r++) schedule_posts(g, r);
    }
    for (const Pause& p : s_.pauses) {
      cluster_.at(start_ + p.from, [this, p] { stop(p.rank, 1); });
      cluster_.at(start_ + p.from + p.length, [this, p] { stop(p.rank, -1); });
    }
    stopped_.assign(s_.ranks, 0);
    size_t all = 0;
    for (const auto& ops : s_.ops) all += ops.size() * s_.ranks;
    Outcome out;
    if (!cluster_.run([&] { return done_ == all; }, 120 * kSecond)) {
      out.error = "not done in 120 s of virtual time:" + unfinished();
    } else if (!cluster_.run([&] { return quiet(); }, 30 * kSecond)) {
      out.error = "done, but not released everywhere";
    } else {
      out.error = verdict(out);
    }
    return out;
  }

 private:
  static ClusterOptions options(const Schedule& s) {
    ClusterOptions o;
    o.ranks = s.ranks;
    o.net = s.net;
    o.net.faults = SimFaults{};
    o.group = s.groups[0];
    if (o.group.agreed.source_auth && o.security == crypto::Mode::kOff) {
      o.security = crypto::Mode::kAuth;
    }
    o.clock = [clocks = s.clocks](Member r) { return clocks[r]; };
    if (!s.refuse.empty()) {
      o.wrap = [text = s.refuse](std::unique_ptr<Transport> inner) {
        return std::move(intercept(std::move(inner), text, nullptr)).value();
      };
    }
    return o;
  }

  void stop(Member r, int change) {
    stopped_[r] += change;
    cluster_.pause(r, stopped_[r] > 0);
  }

  void schedule_posts(size_t g, Member r) {
    if (s_.from_callbacks) {
      cluster_.at(start_ + s_.posts[g][r][0], [this, g, r] { post(g, r, 0); });
      return;
    }
    for (size_t k = 0; k < s_.ops[g].size(); k++) {
      cluster_.at(start_ + s_.posts[g][r][k], [this, g, r, k] { post(g, r, k); });
    }
  }

  void post(size_t g, Member r, size_t k) {
    // A stopped process posts nothing, and continues where it stopped.
    if (stopped_[r] > 0) {
      cluster_.at(cluster_.now() + kMilli, [this, g, r, k] { post(g, r, k); });
      return;
    }
    // Later posts of the same rank may have been delayed behind this one.
    if (cluster_.group(r, g).core().next_sequence() != s_.groups[g].first_sequence + k) {
      cluster_.at(cluster_.now() + kMilli, [this, g, r, k] { post(g, r, k); });
      return;
    }
    const OpSpec& op = s_.ops[g][k];
    const auto then = [this, g, r, k] {
      done_++;
      if (s_.from_callbacks && k + 1 < s_.ops[g].size()) post(g, r, k + 1);
    };
    // Stored before the call, because its completion may post the next one.
    const size_t at = runs_.size();
    runs_.emplace_back();
    runs_[at] = cluster_.call(r, op.descriptor(), g * 100 + k + 1, kNever, g, then);
  }

  SimNetwork::Verdict on_datagram(size_t from, size_t to, ConstBytes datagram) {
    wire::DatagramHeader h;
    if (wire::peek_datagram(datagram, h) && from == to && h.type == wire::DatagramType::kData) {
      data_sent_[h.group_tag - (s_.groups[0].tag + 1)]++;
    }
    if (s_.replay && from != to && rng_.chance(0.02)) {
      std::vector<std::byte> copy(datagram.begin(), datagram.end());
      if (rng_.chance(0.5)) {
        // An earlier incarnation: well-formed, but with another tag. (A guarded group would also
        // have other keys; tests/cpp/security covers such forgeries.)
        h.group_tag ^= 0x8000000000000000ULL;
        wire::GuardedHeader guarded;
        std::vector<std::byte> other = copy;
        if (wire::parse_guarded(copy, guarded) == wire::ParseError::kNone) {
          guarded.inner = h;
          wire::write_guarded(other.data(), guarded);
        } else {
          wire::write_datagram(other, h, ConstBytes(copy).subspan(wire::kDatagramHeader));
        }
        copy = std::move(other);
      }
      const auto again = static_cast<Nanos>(rng_.below(rng_.chance(0.5) ? kMilli : 2 * kSecond));
      cluster_.at(cluster_.now() + again,
                  [this, to, c = std::move(copy)] { cluster_.net().inject(to, c); });
    }
    return SimNetwork::Verdict::kPass;
  }

  bool quiet() {
    for (size_t g = 0; g < s_.groups.size(); g++) {
      for (Member r = 0; r < s_.ranks; r++) {
        if (!cluster_.group(r, g).core().quiet()) return false;
      }
    }
    return true;
  }

  std::string unfinished() {
    std::string text = " at " + std::to_string(cluster_.now() - start_) + " ns;";
    for (Member r = 0; r < s_.ranks; r++) {
      const Nanos next = cluster_.lane(r).deadline(cluster_.clock(r));
      if (next < kNever)
        text +=
            " lane " + std::to_string(r) + " due in " + std::to_string(next - cluster_.clock(r));
    }
    for (size_t g = 0; g < s_.groups.size(); g++) {
      for (Member r = 0; r < s_.ranks; r++) {
        GroupCore& core = cluster_.group(r, g).core();
        text += " g" + std::to_string(g) + "r" + std::to_string(r) + ":" +
                std::to_string(core.next_sequence());
        if (core.failed()) text += "(" + core.failure().to_string() + ")";
      }
    }
    for (const auto& run : runs_) {
      if (run && !run->done()) {
        text += " op " + std::to_string(run->id) + "@" + std::to_string(run->rank);
      }
    }
    return text;
  }

  std::string verdict(Outcome& out) {
    if (cluster_.spins() > 3) {
      return "a lane span for " + std::to_string(cluster_.spins()) +
             " idle polls past its deadline";
    }
    for (const auto& run : runs_) {
      const std::string where =
          "op " + std::to_string(run->id) + " at rank " + std::to_string(run->rank) + ": ";
      if (run->calls != 1) return where + "completed " + std::to_string(run->calls) + " times";
      if (!run->status.ok()) return where + run->status.to_string();
      if (const std::string wrong = run->check(s_.ranks); !wrong.empty()) return where + wrong;
    }
    for (size_t g = 0; g < s_.groups.size(); g++) {
      const std::string wrong = balance(g, out);
      if (!wrong.empty()) return "group " + std::to_string(g) + ": " + wrong;
    }
    return "";
  }

  // Checks the conservation of chunks in one group.
  std::string balance(size_t g, Outcome& out) {
    const auto total = [&](Counter c) { return cluster_.total(c, g); };
    const GroupCore& core = cluster_.group(0, g).core();
    const auto differ = [](const char* what, uint64_t have, uint64_t want) {
      return std::string(what) + ": " + std::to_string(have) + ", expected " + std::to_string(want);
    };
    uint64_t chunks = 0, blocks = 0;
    for (const OpSpec& op : s_.ops[g]) {
      const Plan plan = make_plan(op.descriptor(), core.params().agreed, element_size(op.element));
      chunks += uint64_t{plan.chunks} * plan.roots;
      blocks += plan.trivial() ? 0 : plan.roots;
    }
    const uint64_t compared = core.params().agreed.source_auth ? blocks * (s_.ranks - 1) : 0;
    if (total(Counter::blocks_verified) != compared) {
      return differ("blocks verified", total(Counter::blocks_verified), compared);
    }
    if (core.path() != GroupCore::Path::kMulticast) {
      return data_sent_[g] == 0 ? "" : "data was multicast in a ring group";
    }
    out.chunks += chunks;
    out.gaps += total(Counter::gaps);
    out.repairs += total(Counter::repair_chunks_sent);
    out.remulticast += total(Counter::remulticast_chunks);
    out.gathered += total(Counter::gathered_datagrams);
    out.timeouts += total(Counter::fetch_timeouts);
    out.duplicates += total(Counter::duplicates) + total(Counter::stale);
    if (s_.net.rate == 0)
      out.refused += total(Counter::would_block);  // otherwise a full link refuses too
    const uint64_t sent = data_sent_[g] + data_waiting(g);
    if (sent != chunks + total(Counter::remulticast_chunks)) {
      return differ("data datagrams", sent, chunks + total(Counter::remulticast_chunks));
    }
    if (total(Counter::chunks_placed) != chunks * (s_.ranks - 1)) {
      return differ("chunks placed", total(Counter::chunks_placed), chunks * (s_.ranks - 1));
    }
    // Every lost chunk is sent by stream once, unless a request timed out and was repeated. A
    // repetition by multicast may be lost like any datagram, and is repeated a few times at most.
    const uint64_t per_request = std::max<uint64_t>(1, (256u << 10) / core.params().agreed.chunk);
    const uint64_t again = total(Counter::fetch_timeouts) * std::min(per_request, chunks);
    if (total(Counter::repair_chunks_sent) > total(Counter::gaps) + again) {
      return differ("repair chunks", total(Counter::repair_chunks_sent),
                    total(Counter::gaps) + again);
    }
    if (total(Counter::remulticast_chunks) > RepairServer::kMaxRepeats * chunks) {
      return differ("chunks multicast again", total(Counter::remulticast_chunks),
                    RepairServer::kMaxRepeats * chunks);
    }
    const SimNetwork::Totals& net = cluster_.net().totals();
    if (s_.faultless() && net.overflowed == 0 && total(Counter::staging_drops) == 0 &&
        s_.net.rate == 0) {
      if (data_sent_[g] != chunks)
        return differ("data datagrams without loss", data_sent_[g], chunks);
      const uint64_t repairs = total(Counter::repair_chunks_sent) + total(Counter::fetches_sent);
      if (repairs != 0) return differ("repairs without loss", repairs, 0);
    }
    return "";
  }

  // Counts data that was committed while sends were refused, and repaired before it could leave.
  uint64_t data_waiting(size_t g) {
    uint64_t waiting = 0;
    for (const ConstBytes header : cluster_.net().unflushed()) {
      wire::DatagramHeader h;
      waiting += wire::peek_datagram(header, h) && h.type == wire::DatagramType::kData &&
                 h.group_tag == s_.groups[0].tag + 1 + g;
    }
    return waiting;
  }

  const Schedule& s_;
  Rng rng_;
  Cluster cluster_;
  Nanos start_ = 0;
  size_t done_ = 0;
  std::vector<std::shared_ptr<OpRun>> runs_;
  std::vector<uint64_t> data_sent_;  // [group]
  std::vector<int> stopped_;         // [rank]
};

}  // namespace

Outcome run_schedule(const Schedule& schedule) { return Runner(schedule).run(); }

}  // namespace mcast::test
