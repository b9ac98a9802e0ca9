// Stations for tests of the roster: endpoints of the simulated network that only reply to pings and
// record the rosters that they receive.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "aggregation/station_cluster.h"
#include "wire/aggregation.h"
#include "wire/frame.h"

namespace mcast::test {

class FakeStation final : private StreamSink {
 public:
  explicit FakeStation(SimNetwork& net) : net_(net), endpoint_(net.attach()) {}

  wire::StationEntry entry() const {
    const StreamAddress at = address();
    return {uint64_t{900} + at.uid, at.uid, 65536, at.port, at.host, ""};
  }
  size_t index() const { return endpoint_->index(); }
  // Stops replying, or starts again. Pings that arrived meanwhile stay unanswered.
  void mute(bool muted = true) { muted_ = muted; }
  void poll(Nanos now) { endpoint_->stream().poll(*this, now); }
  void kill() { net_.kill(index()); }

  struct Told {
    Member rank;
    Sequence from;
    wire::StationRoster roster;
  };
  const std::vector<Told>& told() const { return told_; }

 private:
  StreamAddress address() const { return endpoint_->stream().address(false); }
  void on_frame(PeerId peer, Channel channel, ConstBytes frame) override {
    wire::FrameHeader header;
    ASSERT_TRUE(wire::verify_frame(frame) && wire::parse_frame(frame, header));
    const ConstBytes body = frame.subspan(wire::kFrameHeader);
    if (header.type == wire::FrameType::kRoster) {
      EXPECT_EQ(channel, Channel::kReduce);
      told_.push_back({header.member, header.sequence, {}});
      EXPECT_TRUE(wire::parse_roster(body, told_.back().roster));
    }
    if (header.type != wire::FrameType::kPing || muted_) return;
    std::byte pong[wire::kFrameHeader];
    wire::write_frame_header(
        pong, {wire::FrameType::kPong, header.lane, 60'000, header.group_tag, 0, 0}, {});
    const ConstBytes parts[] = {ConstBytes(pong)};
    endpoint_->stream().send(peer, Channel::kControl, parts);
  }
  void on_peer_down(PeerId, const Status&, bool) override {}

  SimNetwork& net_;
  std::unique_ptr<SimTransport> endpoint_;
  bool muted_ = false;
  std::vector<Told> told_;
};

// A cluster with stations, and the events that the top has reported about them.
struct RosterWorld {
  explicit RosterWorld(const ClusterOptions& options) : c(options) {
    RosterEvents events;
    events.settled = [this](const std::vector<uint64_t>& uids) {
      settled++;
      in_force = uids;
    };
    events.lost = [this](uint64_t uid, const std::string& why) { lost.emplace_back(uid, why); };
    events.parted = [this](uint64_t uid) { parted.push_back(uid); };
    c.fold(0).roster().set_listener(std::move(events));
  }

  FakeStation& add() { return *stations.emplace_back(std::make_unique<FakeStation>(c.net())); }
  void propose(const std::vector<const FakeStation*>& which) {
    std::vector<wire::StationEntry> entries;
    for (const FakeStation* s : which) entries.push_back(s->entry());
    c.fold(0).roster().propose(std::move(entries));
  }
  template <typename Until>
  bool run(Until until, Nanos limit = 60 * kSecond) {
    return c.run(
        [&] {
          for (const auto& station : stations) station->poll(c.now());
          return until();
        },
        limit);
  }
  void run_for(Nanos time) {
    run([end = c.now() + time, this] { return c.now() >= end; }, time + kMilli);
  }
  // Runs until the top reports one more settled roster.
  bool settles(Nanos limit = 60 * kSecond) {
    return run([this, before = settled] { return settled > before; }, limit);
  }
  // Runs until the ranks have counted `each` changes of the roster per rank.
  bool changes(uint64_t each, Nanos limit = 60 * kSecond) {
    return run([&] { return c.total(Counter::roster_changes) == each * c.size(); }, limit);
  }
  const StationSet* set(Member r, Sequence sequence) { return c.fold(r).table().of(sequence); }

  StationCluster c;
  std::vector<std::unique_ptr<FakeStation>> stations;
  int settled = 0;
  std::vector<uint64_t> in_force, parted;
  std::vector<std::pair<uint64_t, std::string>> lost;
};

// The difference between two ranks' sets for an operation, or "". Ignores which stations are out.
inline std::string difference(const StationSet* a, const StationSet* b) {
  if ((a == nullptr) != (b == nullptr)) return "one has a set, the other none";
  if (a == nullptr) return "";
  if (a->version != b->version || a->from != b->from) {
    return "version " + std::to_string(a->version) + " from " + std::to_string(a->from) +
           " against " + std::to_string(b->version) + " from " + std::to_string(b->from);
  }
  if (a->stations.size() != b->stations.size()) return "other numbers of stations";
  for (size_t i = 0; i < a->stations.size(); i++) {
    const Station &x = a->stations[i], &y = b->stations[i];
    if (x.member != y.member || x.hash != y.hash || x.capacity != y.capacity) {
      return "station " + std::to_string(i);
    }
  }
  return "";
}

}  // namespace mcast::test
