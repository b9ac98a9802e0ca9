// One run: each operation has its own endpoints, one for each rank, on the plane and the transmit
// queue of its lane; sends are frames that have only a length. A rank begins when it calls the
// operation, and is done when all its data has arrived and all its sends have been delivered.
// Background traffic starts earlier, until it is steady; accounts start at the call.
#include "sim/world/run_schedules.h"

#include <algorithm>

#include "sim/network/flows.h"
#include "sim/world/background.h"

namespace mcast::sim {
namespace {

// Other values: this rank begins.
constexpr uint32_t kNextStream = UINT32_MAX, kStart = UINT32_MAX - 1;

class ScheduleRun final : private FabricSink, private StreamsOwner {
 public:
  ScheduleRun(const ExperimentSpec& spec, std::vector<std::unique_ptr<Schedule>> schedules);

  Status run(const Progress& progress);
  OpResult result();

 private:
  struct Rank {
    bool begun = false, done = false;
    uint64_t received = 0, sent = 0;  // bytes, sends
    uint64_t on_the_way = 0;          // sends that are not delivered yet
    Nanos done_at = 0;
    std::vector<uint64_t> early;  // notes of sends that arrived before it began
  };

  void on_train(HostId, const TrainRef& train, uint64_t mask, bool) override {
    flows_.on_train(train, mask);
  }
  void on_departure(const Train& train) override { flows_.on_departure(train); }
  void on_stream_frame(EndpointId, EndpointId, Channel, Frame) override {}
  void on_stream_length(EndpointId from, EndpointId to, Channel, uint64_t bytes,
                        uint64_t note) override;
  void on_stream_closed(EndpointId, EndpointId) override {}
  Place place_of(EndpointId endpoint) const override;
  TrafficClass class_of(EndpointId from, Channel) const override {
    return from < ranks_.size() ? TrafficClass::kRing : TrafficClass::kBackground;
  }

  void handle(const Event& event);
  void on_action(uint32_t index);
  void next_stream();
  void begin(EndpointId endpoint);
  void send(EndpointId endpoint);
  void look_if_done(EndpointId endpoint);
  uint32_t op_of(EndpointId endpoint) const { return endpoint / spec_.all_ranks(); }
  uint32_t rank_of(EndpointId endpoint) const { return endpoint % spec_.all_ranks(); }
  HostId host_of(EndpointId endpoint) const { return hosts_[rank_of(endpoint) / spec_.ranks]; }
  Schedule& schedule_of(EndpointId endpoint) { return *schedules_[op_of(endpoint)]; }

  const ExperimentSpec& spec_;
  std::vector<std::unique_ptr<Schedule>> schedules_;
  std::vector<OpTimes> ops_;
  EventQueue events_;
  TrainPool trains_;
  Fabric fabric_;
  Flows flows_;
  std::unique_ptr<Background> background_;
  Background::Stream stream_;  // the next background stream
  Nanos start_ = 0;
  std::unique_ptr<Timeline> timeline_;
  std::vector<HostId> hosts_;  // in the order in which ranks are assigned to them
  std::vector<Rank> ranks_;    // by endpoint
  Sends sends_;                // of the schedule's current callback
  size_t open_ = 0;            // endpoints that are not done
  uint64_t expected_ = 0, received_ = 0;
};

ScheduleRun::ScheduleRun(const ExperimentSpec& spec,
                         std::vector<std::unique_ptr<Schedule>> schedules)
    : spec_(spec),
      schedules_(std::move(schedules)),
      fabric_(fabric_of(spec).links, events_, *this),
      flows_(fabric_of(spec).flows, fabric_, events_, trains_, *this),
      hosts_(order_of_hosts(spec)),
      ranks_(schedules_.size() * spec.all_ranks()),
      open_(ranks_.size()) {
  set_link_faults(spec, fabric_);
  for (const Collective op : spec.ops) {
    ops_.emplace_back();
    ops_.back().op = op;
    ops_.back().bound = bound_of(spec);
  }
  for (EndpointId e = 0; e < ranks_.size(); e++) {
    expected_ += schedule_of(e).expected(rank_of(e));
  }
  if (spec.background.load > 0) {
    background_ = std::make_unique<Background>(spec.background.load, spec.background.size,
                                               spec.net.rate, spec.hosts, spec.seed);
    start_ = background_->settled();
  }
}

// ---- the network's side ----

Place ScheduleRun::place_of(EndpointId endpoint) const {
  Place place;
  if (endpoint >= ranks_.size()) {
    place.host = static_cast<HostId>(endpoint - ranks_.size());
    return place;
  }
  place.host = host_of(endpoint);
  place.plane = static_cast<uint16_t>(op_of(endpoint) % spec_.net.topology.planes);
  place.queue = op_of(endpoint);
  return place;
}

void ScheduleRun::on_stream_length(EndpointId from, EndpointId to, Channel, uint64_t bytes,
                                   uint64_t note) {
  if (from >= ranks_.size()) return;
  received_ += bytes;
  ranks_[to].received += bytes;
  ranks_[from].on_the_way--;
  schedule_of(from).delivered(rank_of(from), &sends_);
  send(from);
  if (!ranks_[to].begun) return ranks_[to].early.push_back(note);
  schedule_of(to).arrived(rank_of(to), note, &sends_);
  send(to);
}

// ---- ranks ----

void ScheduleRun::begin(EndpointId endpoint) {
  Rank& rank = ranks_[endpoint];
  rank.begun = true;
  schedule_of(endpoint).begin(rank_of(endpoint), &sends_);
  for (const uint64_t note : rank.early) {
    schedule_of(endpoint).arrived(rank_of(endpoint), note, &sends_);
  }
  rank.early = {};
  send(endpoint);
}

void ScheduleRun::send(EndpointId endpoint) {
  const EndpointId first = op_of(endpoint) * spec_.all_ranks();
  ranks_[endpoint].sent += sends_.size();
  ranks_[endpoint].on_the_way += sends_.size();
  for (const Send& s : sends_) {
    flows_.send_length(endpoint, first + s.to, Channel::kRepair, s.bytes, s.note);
  }
  sends_.clear();
  look_if_done(endpoint);
}

void ScheduleRun::look_if_done(EndpointId endpoint) {
  Rank& rank = ranks_[endpoint];
  if (rank.done || !rank.begun || rank.on_the_way > 0) return;
  if (rank.received < schedule_of(endpoint).expected(rank_of(endpoint))) return;
  rank.done = true;
  rank.done_at = events_.now();
  open_--;
}

// ---- time ----

void ScheduleRun::next_stream() {
  stream_ = background_->next();
  events_.push(stream_.at, EventKind::kAction, kNextStream);
}

void ScheduleRun::on_action(uint32_t index) {
  if (index == kStart) {
    fabric_.reset_traffic(ranks_.size());
    timeline_ = std::make_unique<Timeline>(2 * fabric_.topology().levels(), events_.now());
    return fabric_.set_timeline(timeline_.get());
  }
  if (index != kNextStream) return begin(index);
  const auto others = static_cast<EndpointId>(ranks_.size());
  flows_.send_length(others + stream_.from, others + stream_.to, Channel::kRepair,
                     spec_.background.size, 0);
  next_stream();
}

void ScheduleRun::handle(const Event& event) {
  switch (event.kind) {
    case EventKind::kHop:
      return fabric_.on_hop(event.index);
    case EventKind::kNic:
      return fabric_.on_nic(event.index);
    case EventKind::kAction:
      return on_action(event.index);
    default:
      return flows_.on_event(event.kind, event.index);
  }
}

Status ScheduleRun::run(const Progress& progress) {
  events_.push(start_, EventKind::kAction, kStart);
  if (background_) next_stream();
  std::vector<Nanos> late(spec_.all_ranks(), 0);
  for (const LateRank& l : spec_.late) late[l.rank] = l.by;
  for (EndpointId e = 0; e < ranks_.size(); e++) {
    events_.push(start_ + late[rank_of(e)], EventKind::kAction, e);
  }
  while (open_ > 0) {
    if (events_.empty()) {
      return Status(Code::kInternal, "the schedule is stuck: " + std::to_string(open_) +
                                         " ranks wait for data that nobody sends");
    }
    if (events_.next() > start_ + spec_.course.limit) {
      return Status(Code::kTimeout, "not done after " + seconds_text(spec_.course.limit) +
                                        " of virtual time; limit= allows more");
    }
    handle(events_.pop());
    if (progress && events_.handled() % kBetweenReports == 0) {
      progress(events_.now(), static_cast<double>(received_) / static_cast<double>(expected_));
    }
  }
  // Acknowledgements of the last data belong to the operation, too.
  while (!background_ && !fabric_.idle()) handle(events_.pop());
  return {};
}

OpResult ScheduleRun::result() {
  OpResult result;
  for (EndpointId e = 0; e < ranks_.size(); e++) {
    OpTimes& op = ops_[op_of(e)];
    op.per_rank.push_back(ranks_[e].done_at - start_);
    op.time = std::max(op.time, op.per_rank.back());
  }
  result.ops = ops_;
  for (uint32_t r = 0; r < spec_.all_ranks(); r++) {
    uint64_t sent = 0;
    for (EndpointId e = r; e < ranks_.size(); e += spec_.all_ranks()) sent += ranks_[e].sent;
    result.frames.all += sent;
    if (sent <= result.frames.most) continue;
    result.frames.most = sent;
    result.frames.rank = r;
  }
  std::vector<SentOfRank> by_rank(spec_.all_ranks());
  std::vector<uint32_t> whose;
  for (EndpointId e = 0; e < ranks_.size(); e++) {
    whose.push_back(rank_of(e));
    by_rank[rank_of(e)][static_cast<size_t>(TrafficClass::kRing)].frames += ranks_[e].sent;
  }
  account_ranks(fabric_, whose, std::move(by_rank), &result);
  account_fabric(fabric_, start_, &result);
  result.trace_hash = fabric_.trace().value();
  result.bin = timeline_->width();
  result.timeline = timeline_->bins();
  result.events = events_.handled();
  result.counters = {{"stream_segments", flows_.totals().segments},
                     {"stream_segments_again", flows_.totals().again},
                     {"stream_timeouts", flows_.totals().timeouts},
                     {"stream_halvings", flows_.totals().halvings}};
  return result;
}

}  // namespace

Result<OpResult> run_schedules(const ExperimentSpec& spec,
                               std::vector<std::unique_ptr<Schedule>> schedules,
                               const Progress& progress) {
  ScheduleRun run(spec, std::move(schedules));
  if (Status status = run.run(progress); !status.ok()) return status;
  OpResult result = run.result();
  result.algorithm = spec.algorithm;
  return result;
}

}  // namespace mcast::sim
