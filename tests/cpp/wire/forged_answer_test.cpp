// Forged replies to a repair request. A third rank sends FetchData and NotHave frames with the id
// of another rank's request, for chunks that were not requested or have arrived long before, while
// the donor's own reply is lost. A forged reply must not settle the request: the chunks would never
// be requested again, and the operation would hang until its time limit.
// MCAST_TEST_SEED=7 mcast_test_wire --gtest_filter='ForgedAnswer*'
#include <gtest/gtest.h>

#include <cstdlib>

#include "base/rng.h"
#include "protocol/fetch_client.h"
#include "support/program.h"
#include "support/seeds.h"

namespace mcast::test {
namespace {

constexpr Chunk kChunks = 150;
constexpr uint64_t kId = 1;

class ForgedAnswer {
 public:
  explicit ForgedAnswer(uint64_t seed) : rng_(seed) {
    ClusterOptions o;
    o.ranks = static_cast<uint32_t>(3 + rng_.below(3));
    o.net.seed = seed;
    o.group.agreed.eager = rng_.chance(0.5) ? 32768 : 3000;
    cluster_ = std::make_unique<Cluster>(o);
    asker_ = static_cast<Member>(1 + rng_.below(o.ranks - 1));
    chunk_ = o.group.agreed.chunk;
    all_.resize(kChunks * chunk_);
    fill_pattern(kId, 0, all_);
    const bool whole = rng_.chance(0.3);
    const Chunk first = whole ? 0 : 1 + static_cast<Chunk>(rng_.below(kChunks - 20));
    lost_ = {first, whole ? kChunks : first + 1 + static_cast<Chunk>(rng_.below(19))};
    cluster_->net().set_datagram_hook([this](size_t from, size_t to, ConstBytes d) {
      wire::DatagramHeader h;
      const bool mine = from != to && to == asker_ && is_data(d, h) && h.chunk >= lost_.first &&
                        h.chunk < lost_.end;
      return mine ? SimNetwork::Verdict::kDrop : SimNetwork::Verdict::kPass;
    });
    cluster_->net().set_frame_hook([this](size_t from, size_t to, Channel, ConstBytes frame) {
      wire::FrameHeader h;
      if (!wire::parse_frame(frame, h)) return true;
      if (from == asker_ && h.type == wire::FrameType::kFetch) answer_falsely(to, h, frame);
      // The donors' own replies are lost until a request has passed its time limit.
      return to != asker_ || h.type != wire::FrameType::kFetchData ||
             fetch_attempts(h.argument) > 0;
    });
  }

  std::string run() {
    Runs runs = broadcast_all(*cluster_, 0, all_.size(), kId);
    if (!cluster_->run([&] { return all_done(runs); }, 20 * kSecond)) return "stands still";
    for (const auto& r : runs) {
      if (!r->status.ok()) return r->status.to_string();
      if (const std::string wrong = r->check(cluster_->size()); !wrong.empty()) return wrong;
    }
    return forged_ > 0 ? "" : "nothing was forged";
  }

 private:
  void answer_falsely(size_t donor, const wire::FrameHeader& request, ConstBytes frame) {
    wire::Fetch fetch;
    ASSERT_TRUE(wire::parse_fetch(frame.subspan(wire::kFrameHeader), fetch));
    const Member root = fetch.root;
    const std::vector<ChunkRange>& asked = fetch.ranges;
    Member third = 0;
    while (third == asker_ || third == donor) third++;
    // Usually a third rank forges it; sometimes the donor itself sends chunks that were not
    // requested.
    const bool donor_itself = rng_.chance(0.3);
    Chunk count = 0;
    for (const ChunkRange& r : asked) count += r.size();
    const auto from = donor_itself ? static_cast<Member>(donor) : third;
    wire::Writer body;
    std::vector<std::byte> payload;
    wire::FrameType type = wire::FrameType::kFetchData;
    if (!donor_itself && rng_.chance(0.3)) {
      type = rng_.chance(0.5) ? wire::FrameType::kNotHave : wire::FrameType::kComing;
      wire::put_ranges(body, root, asked);
    } else {
      const Chunk end = std::min(lost_.first, count);
      const ChunkRange range = end > 0 ? ChunkRange{0, end} : ChunkRange{kChunks - 1, kChunks};
      wire::put_fetch_data_head(body, root, range);
      payload.assign(all_.begin() + range.first * chunk_, all_.begin() + range.end * chunk_);
    }
    std::vector<std::byte> forged(wire::kFrameHeader);
    forged.insert(forged.end(), body.bytes().begin(), body.bytes().end());
    forged.insert(forged.end(), payload.begin(), payload.end());
    const ConstBytes rest = ConstBytes(forged).subspan(wire::kFrameHeader);
    wire::write_frame_header(
        forged.data(),
        {type, request.lane, from, request.group_tag, request.sequence, request.argument},
        {&rest, 1});
    forged_++;
    cluster_->net().inject_frame(from, asker_, Channel::kRepair, forged);
  }

  Rng rng_;
  std::unique_ptr<Cluster> cluster_;
  Member asker_ = 1;
  size_t chunk_ = 0;
  ChunkRange lost_;
  std::vector<std::byte> all_;
  int forged_ = 0;
};

TEST(ForgedAnswer, SettlesNothing) {
  for_seeds(seeds(300), [](uint64_t seed) { return ForgedAnswer(seed).run(); });
}

}  // namespace
}  // namespace mcast::test
