// One station and its ranks in one thread. The ranks are a model that knows its contributions and
// the expected results, and checks each result when it arrives. Each stream keeps its order; the
// test decides which stream delivers next.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "aggregation/fold/station.h"
#include "base/rng.h"

namespace mcast::test {

struct StationOptions {
  uint32_t ranks = 3;
  std::vector<uint32_t> host_of = {};  // empty: each rank has its own host
  FoldOrder fold = FoldOrder::kRank;
  size_t segment = 4096;
  size_t incast = 64 << 10;
  Nanos deadline = 100 * kMilli;
  bool keep = false;      // owners keep their own contribution where the order allows it
  uint32_t share = 2;     // this many of three segments are dealt to the station
  bool dealt = false;     // dealt by Deal, which deals none of a shard below four segments
  size_t list_bytes = 0;  // memory of one list
};

class StationWorld : private aggregation::Outlet, private aggregation::Planner {
 public:
  static constexpr uint32_t kRoster = 5;  // roster version by which operations are dealt

  explicit StationWorld(const StationOptions& options);

  // Adds an operation that ranks may call and returns its sequence, its index in the list of
  // operations. `bytes` is per rank (reduce_scatter) or the total (all_reduce).
  Sequence call(wire::Kind kind, Element element, Reduction reduction, uint64_t bytes,
                uint64_t seed = 1);
  // The planner then has no list for this operation.
  void refuse(Sequence op) { calls_[op].refused = true; }

  // A rank sends a frame, and the station receives it at once.
  void open(Member rank, Sequence op);
  void open_all(Sequence op);
  // Sends the contribution of the rank's host to entry `number`, truncated to `length` unless that
  // is 0.
  void contribute(Member rank, Sequence op, uint32_t number, size_t length = 0);
  // Sends the next contribution that the rank may send. Returns false if there is none.
  bool contribute_next(Member rank);
  void contribute_all();  // until no rank may send any more
  // Repeats a contribution that the rank has sent before, if it has sent any for this operation.
  void repeat(Member rank, Sequence op, Rng& rng);
  void send(Member rank, wire::FrameHeader header, ConstBytes body);
  void send_raw(Member rank, ConstBytes frame);
  wire::FrameHeader header(Member rank, wire::FrameType type, Sequence op) const;
  wire::Writer contribution(Member rank, Sequence op, uint32_t number) const;

  // Delivers up to `most` frames that are queued for the rank.
  void take(Member rank, size_t most = SIZE_MAX);
  void take_all();
  // Delivers grants only, as if they were ahead of the queued results.
  void take_grants(Member rank);
  // Bytes of the reduce channel that are queued and not yet delivered.
  size_t waiting(Member rank) const { return queued(rank, Channel::kReduce); }
  // Advances the time and polls the station.
  void turn(Nanos step = 0);

  uint32_t granted(Member rank, Sequence op) const;
  // Number of results that have arrived, summed over all ranks.
  size_t results(Sequence op) const { return calls_[op].results.size(); }
  uint32_t entries(Sequence op) const { return static_cast<uint32_t>(calls_[op].list.size()); }
  // Number of ranks that were notified that the operation is declined.
  size_t declined(Sequence op) const { return calls_[op].declined.size(); }
  bool all_done() const;
  // The first wrong result at a rank, or memory beyond the bound; "" if there is none.
  const std::string& wrong() const { return wrong_; }

  struct Other {
    Member to;
    wire::FrameHeader header;
    std::vector<std::byte> body;
  };
  // Frames other than grants, results and declines that ranks have received.
  const std::vector<Other>& others() const { return others_; }

  aggregation::Station& station() { return station_; }
  const aggregation::JobParams& params() const { return params_; }
  const Counters& counters() const { return counters_; }
  uint64_t count(Counter counter) const { return counters_.get(counter); }
  Nanos now() const { return now_; }
  uint32_t busy = 1;
  ~StationWorld() override;

 private:
  struct Call {
    wire::Descriptor descriptor;
    uint64_t share = 0;  // bytes of a shard
    size_t segment = 0;  // bytes of a block's segment: its contribution has StationOptions::segment
    std::vector<aggregation::ListEntry> list;
    std::vector<std::vector<std::byte>> inputs;  // by host: all shards in order
    bool refused = false;
    std::map<Member, uint32_t> granted;
    std::map<Member, uint32_t> sent;  // up to this number
    std::set<Member> opened, declined;
    std::set<uint32_t> results;
  };

  void send(Member to, Channel channel, std::span<const ConstBytes> parts) override;
  size_t queued(Member to, Channel channel) const override;
  uint32_t busy_jobs() const override { return busy; }
  Result<std::unique_ptr<const aggregation::WorkList>> plan(uint32_t roster,
                                                            const wire::Descriptor& descriptor,
                                                            size_t room) const override;

  bool speaks(Member rank, const aggregation::ListEntry& entry) const;
  // Contributions are in accumulators: hosts of several ranks have folded them.
  bool wide(const Call& call) const;
  bool kept(const Call& call, Member owner) const;
  void deal_all(Call& call, uint64_t total) const;
  void deal_in_turn(Call& call, uint64_t total) const;
  std::vector<std::byte> expected(const Call& call, const aggregation::ListEntry& entry) const;
  void on_frame(Member at, Channel channel, const std::vector<std::byte>& frame);
  void on_result(Member at, Sequence op, ConstBytes body);
  void check_memory();
  void complain(const std::string& what) {
    if (wrong_.empty()) wrong_ = what;
  }

  const StationOptions options_;
  aggregation::JobParams params_;
  Counters counters_;
  std::vector<Call> calls_;
  struct Queued {
    Channel channel;
    std::vector<std::byte> frame;
  };
  std::vector<std::deque<Queued>> queues_;  // by rank
  std::vector<Other> others_;
  std::string wrong_;
  Nanos now_ = kSecond;
  aggregation::Station station_;
};

}  // namespace mcast::test
