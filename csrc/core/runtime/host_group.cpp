// Posts go to the lane's inbox under the group's lock, and the posting thread then does the work
// that needs no waiting. Failures found by one lane reach the other through the failure record of
// the control block.
#include "runtime/host_group.h"

#include <utility>

#include "base/log.h"
#include "base/own_pid.h"

namespace mcast {

namespace {

const char* how_large(PeerMemory memory, bool in_engine) {
  if (memory == PeerMemory::kMapped && in_engine) {
    return "large operations on the peers' memory where their engine has it mapped";
  }
  switch (memory) {
    case PeerMemory::kSlots:
      return "large reductions too (peers' memory cannot be read)";
    case PeerMemory::kRead:
      return "large reductions read from the peers' memory";
    case PeerMemory::kMapped:
      break;
  }
  return "large operations on the peers' tensors, which are mapped (engine_memory=map_all)";
}

}  // namespace

HostGroup::HostGroup(const GroupSpec& spec, PeerRegistry& registry,
                     std::shared_ptr<HostShared> shared, PeerMemory memory,
                     std::shared_ptr<Trace> trace)
    : GroupBase(spec), registry_(registry), memory_(memory), shared_(std::move(shared)) {
  trace_ = std::move(trace);
  fixed_.path = "shared memory";
  fixed_.reason = "all ranks are on one host";
  fixed_.transport = "shared memory: " + std::to_string(kHostDepth) + " slots of " +
                     std::to_string(kHostSlot / 1024) + " KiB per rank and lane, " +
                     how_large(memory, shared_->own != nullptr);
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
    params.memory = memory;
    params.fold = fold_order(config_.fold);
    params.trace = trace_;
    lanes_[lane] = std::make_shared<HostLane>(
        params, config_.liveness_limit, Patience(config_.wait == "auto"), shared_, registry,
        counters_[lane], [state = state_](const Status& why) { state->note_failure(why); });
    registry.thread(index_of(lane)).add(lanes_[lane]);
  }
  // Another rank may have filled its ring of messages to this one and signalled it before the
  // thread knew the lane.
  registry.thread(kMessageLane).ring();
}

HostGroup::~HostGroup() {
  if (!here()) {
    // The mappings do not exist in this process; unmapping could hit something else.
    (void)new auto(lanes_);
    return;
  }
  const Status status = close_with_linger();
  if (!status.ok()) log(LogLevel::kInfo, "group '%s': %s", name_.c_str(), status.message().c_str());
  for (const LaneId lane : kBothLanes) {
    registry_.thread(index_of(lane)).remove(lanes_[lane].get());
  }
}

Status HostGroup::push(LaneId lane, Post post) {
  lanes_[lane]->enqueue(std::move(post));
  return {};
}

Status HostGroup::push_message(MessagePost post) {
  lanes_.reduce->enqueue(std::move(post));
  return {};
}

// Callbacks run in these three functions; one of them may drop the last reference to this group.
void HostGroup::pushed(LaneId lane, std::optional<Sequence> awaited) {
  const auto kept = lanes_[lane];
  kept->run(awaited);
}

void HostGroup::pushed_message() { pushed(LaneId::kReduce, std::nullopt); }

bool HostGroup::help(LaneId lane, const std::function<bool()>& done, Nanos until) {
  if (!here()) return false;
  const auto kept = lanes_[lane];
  return kept->help(done, until);
}

std::function<void()> HostGroup::waker() const {
  // May outlive the group, and so a fork; in the child the lanes' memory is not mapped.
  return [pid = pid_,
          lanes = std::array{std::weak_ptr(lanes_.multicast), std::weak_ptr(lanes_.reduce)}] {
    if (own_pid() != pid) return;
    for (const auto& weak : lanes) {
      if (const auto lane = weak.lock()) lane->look_again();
    }
  };
}

void HostGroup::fail_lanes(const Status& why) {
  for (const LaneId lane : kBothLanes) lanes_[lane]->fail(why, rank_);
}

void HostGroup::close_lanes(Nanos deadline, bool force, Completion closed) {
  const Completion left = after_both_lanes(std::move(closed));
  for (const LaneId lane : kBothLanes) lanes_[lane]->close(deadline, force, left);
}

}  // namespace mcast
