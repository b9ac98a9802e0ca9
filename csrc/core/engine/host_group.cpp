// The group: posts go to the lane's inbox under the group's lock, and the posting thread then does
// what needs no wait. Failures found by one lane reach the other through the board's notice.
//
// The meeting: rank 0's record names the descriptor of a fresh segment, every record its process's
// mailbox. Each rank maps them through /proc, checks that they hold what was announced, and reads a
// word of every peer's private memory; then all tell each other how it went.
#include "engine/host_group.h"

#include <unistd.h>

#include <utility>

#include "base/log.h"
#include "engine/clock.h"
#include "transport/shm/futex.h"

namespace mcast {

HostGroup::HostGroup(const GroupSpec& spec, HostHub& hub, std::shared_ptr<HostShared> shared,
                     bool direct, std::shared_ptr<Trace> trace)
    : GroupBase(spec), hub_(hub), direct_(direct), shared_(std::move(shared)) {
  trace_ = std::move(trace);
  fixed_.path = "shared memory";
  fixed_.reason = "all ranks are on one host";
  fixed_.transport = "shared memory: " + std::to_string(kHostDepth) + " slots of " +
                     std::to_string(kHostSlot / 1024) + " KiB per rank and lane, " +
                     (direct ? "large reductions read from the peers' memory"
                             : "large reductions too (peers' memory cannot be read)");
  fixed_.chunk = kHostSlot;
  fixed_.window = kHostDepth * kHostSlot;
  fixed_.segment = kHostSlot;
  fixed_.eager = kHostSlot;
  for (const LaneId lane : kBothLanes) {
    HostParams params;
    params.name = name_;
    params.self = rank_;
    params.size = size_;
    params.lane = static_cast<uint8_t>(lane);
    params.direct = direct;
    params.trace = trace_;
    lanes_[lane] = std::make_shared<HostLane>(params, config_.liveness_limit, shared_, hub,
                                              counters_[lane], [state = state_](const Status& why) {
                                                std::lock_guard<std::mutex> lock(state->mutex);
                                                if (state->failure.ok()) state->failure = why;
                                              });
    hub.thread(index_of(lane)).add(lanes_[lane]);
  }
}

HostGroup::~HostGroup() {
  if (!here()) {
    // The mappings are not in this process; unmapping could hit something else.
    (void)new auto(lanes_);
    return;
  }
  const Status status = close_with_linger();
  if (!status.ok()) log(LogLevel::kInfo, "group '%s': %s", name_.c_str(), status.message().c_str());
  for (const LaneId lane : kBothLanes) hub_.thread(index_of(lane)).remove(lanes_[lane].get());
}

Status HostGroup::push(LaneId lane, Post post) {
  lanes_[lane]->enqueue(std::move(post));
  return {};
}

// Callbacks run in these two; one of them may drop the last reference to this group.
void HostGroup::pushed(LaneId lane) {
  const auto kept = lanes_[lane];
  kept->run();
}

bool HostGroup::help(LaneId lane, const std::function<bool()>& done, Nanos until) {
  if (!here()) return false;
  const auto kept = lanes_[lane];
  return kept->help(done, until);
}

std::function<void()> HostGroup::waker() const {
  // May outlive the group, and so a fork, in whose child the lanes' memory is not mapped.
  return [pid = pid_,
          lanes = std::array{std::weak_ptr(lanes_.multicast), std::weak_ptr(lanes_.reduce)}] {
    if (::getpid() != pid) return;
    for (const auto& weak : lanes) {
      if (const auto lane = weak.lock()) lane->look_again();
    }
  };
}

void HostGroup::fail_lane(LaneId lane, const Status& why) { lanes_[lane]->fail(why, rank_); }

void HostGroup::close_lane(LaneId lane, Nanos deadline, bool force, Completion closed) {
  lanes_[lane]->close(deadline, force, std::move(closed));
}

Result<HostMeeting> HostMeeting::prepare(const GroupSpec& spec, const HostHub& hub, bool segment) {
  HostMeeting meeting;
  meeting.address_ = hub.address();
  if (spec.rank != 0 || !segment) return meeting;
  Result<Segment> made = Segment::create("mcast-group", HostBoard::bytes(spec.size));
  if (!made.ok()) return made.status();
  meeting.address_.segment = made->fd();
  meeting.shared_->segment = std::move(made).value();
  return meeting;
}

namespace {

std::string cannot(const GroupSpec& spec, size_t rank, const Status& why) {
  return "rank " + std::to_string(spec.rank) + " cannot share memory with rank " +
         std::to_string(rank) + ": " + why.message();
}

}  // namespace

// The process of `rank`, and whether its memory can be read; lowers the verdict if not.
void HostMeeting::find(size_t rank, const HostAddress& address, const GroupSpec& spec,
                       HostHub& hub) {
  auto peer = hub.find(address);
  if (!peer.ok()) {
    verdict_ = cannot(spec, rank, peer.status());
    return;
  }
  shared_->peers[rank] = std::move(peer).value();
  uint64_t copy = 0;
  const Status read = shared_->peers[rank]->process.read(
      address.private_copy, reinterpret_cast<std::byte*>(&copy), sizeof copy);
  if (!read.ok() || copy != address.token) verdict_ = "slots";
}

void HostMeeting::attach(const std::vector<HostAddress>& all, const GroupSpec& spec, HostHub& hub) {
  HostShared& s = *shared_;
  s.peers.resize(spec.size);
  verdict_ = "direct";
  if (spec.rank != 0) {
    Result<Segment> found = Segment::attach(static_cast<pid_t>(all[0].pid), all[0].segment,
                                            HostBoard::bytes(spec.size));
    if (!found.ok()) {
      verdict_ = cannot(spec, 0, found.status());
      return;
    }
    s.segment = std::move(found).value();
  }
  s.board = HostBoard(s.segment.data(), spec.size);
  for (size_t rank = 0; rank < spec.size; rank++) {
    if (rank != spec.rank) find(rank, all[rank], spec, hub);
    if (verdict_ != "direct" && verdict_ != "slots") return;
  }
}

void HostMeeting::attach_neighbours(const std::vector<HostAddress>& all,
                                    const std::vector<uint32_t>& host_of, const GroupSpec& spec,
                                    HostHub& hub) {
  shared_->peers.resize(spec.size);
  verdict_ = "direct";
  for (size_t rank = 0; rank < spec.size && verdict_ == "direct"; rank++) {
    if (rank != spec.rank && host_of[rank] == host_of[spec.rank]) find(rank, all[rank], spec, hub);
  }
}

HostReader HostMeeting::reader() const {
  return [peers = shared_->peers](Member from, uint64_t address, std::byte* to, size_t length) {
    return peers[from]->process.read(address, to, length).ok();
  };
}

std::string HostMeeting::unite(const std::vector<std::string>& verdicts, bool& direct) {
  direct = true;
  for (const std::string& verdict : verdicts) {
    if (verdict == "slots") direct = false;
    if (verdict != "slots" && verdict != "direct") return verdict;
  }
  return "";
}

Status HostMeeting::look_after(Nanos now, Nanos limit) {
  asked_.resize(shared_->peers.size());
  for (size_t rank = 0; rank < shared_->peers.size(); rank++) {
    if (shared_->peers[rank] == nullptr) continue;
    const HostPeer& peer = *shared_->peers[rank];
    const auto m = static_cast<Member>(rank);
    if (!peer.process.alive()) return peer.ended(m);
    Asked& a = asked_[rank];
    if (a.question == 0 || peer.answered(a.question)) {
      a.question = peer.ask();
      a.answered = now;
    } else if (now - a.answered >= limit) {
      return HostPeer::silent(m, now - a.answered, limit);
    }
  }
  return {};
}

std::shared_ptr<HostShared> HostMeeting::take() {
  shared_->segment.close_fd();
  return shared_;
}

}  // namespace mcast
