// The runs of a record are converted to slices of arenas, each checked against the arena's size, or
// of the memory into which a mover copies slices of the client's own memory
// (host_engine/server/transfer.h). The group checks the call again, as it would check a script's.
// Its own sequence number must be the record's: a client that counts differently would match other
// ranks' operations with the wrong ones of its own.
#include "host_engine/server/tenant_group.h"

#include <algorithm>
#include <utility>

namespace mcast::service {
namespace {

constexpr size_t kFinalStep = size_t{256} << 10;  // output bytes per notification

// Time from `moment` to `done`.
Nanos before(Nanos moment, Nanos done) {
  return moment == kNever ? kNever : std::max<Nanos>(done - moment, 0);
}

// Converts a run to slices of an arena. Returns false if it is outside its arena, or the arena does
// not exist.
bool lay_out_run(const ipc::SliceRun& run, const Arenas& arenas, bool staged,
                 std::vector<Slice>& out) {
  if (run.space < ipc::Space::kFirstArena) return false;
  const size_t number =
      static_cast<size_t>(run.space) - static_cast<size_t>(ipc::Space::kFirstArena);
  if (number >= arenas.size()) return false;
  const std::shared_ptr<Segment>& memory = arenas[number];
  // These sums do not wrap: the parser has checked that.
  const uint64_t reach = run.stride * (run.count - 1) + run.length;
  if (run.base + reach > memory->size()) return false;
  std::byte* const base = memory->data() + run.base;
  if (staged) {
    for (uint32_t i = 0; i < run.count; i++) {
      auto region = std::make_shared<Region>(base + i * run.stride, run.length, memory);
      region->set_readable(0);
      out.push_back({std::move(region), 0, run.length});
    }
    return true;
  }
  const auto region = std::make_shared<Region>(base, reach, memory);
  for (uint32_t i = 0; i < run.count; i++) out.push_back({region, i * run.stride, run.length});
  return true;
}

// Returns true if the final parts of an output are reported by index before the end (PostOptions).
bool tells_final(wire::Kind kind) {
  return kind == wire::Kind::kBroadcast || kind == wire::Kind::kAllgather ||
         kind == wire::Kind::kReduceScatter;
}

ipc::FailedRecord failed(uint32_t handle, const Status& why) {
  return {handle, static_cast<uint8_t>(why.code()), why.message()};
}

}  // namespace

const TenantGroup::Staged* TenantGroup::Flights::find(const ipc::ReadyRecord& record) const {
  if (record.message) {
    const auto it = messages.find(record.sequence);
    return it == messages.end() ? nullptr : &it->second;
  }
  const auto it = staged.find({record.lane, record.sequence});
  return it == staged.end() ? nullptr : &it->second;
}

TenantGroup::TenantGroup(uint32_t handle, std::string name, std::shared_ptr<GroupBase> group,
                         std::shared_ptr<TenantLink> link,
                         std::shared_ptr<std::atomic<uint32_t>> in_flight, uint32_t most)
    : handle_(handle),
      name_(std::move(name)),
      group_(std::move(group)),
      link_(std::move(link)),
      in_flight_(std::move(in_flight)),
      most_(most),
      waker_(group_->waker()) {}

PostOptions TenantGroup::options_of(const ipc::PostRecord& head, const Laid& laid) {
  PostOptions options;
  options.timeout = head.timeout;
  options.label = {head.descriptor.element, head.descriptor.name};
  auto contributors = std::make_shared<std::atomic<uint32_t>>(group_->size());
  options.contributors = contributors;
  const auto moments = std::make_shared<Moments>();
  options.moments = moments;
  const auto finish = [flights = flights_, link = link_, in_flight = in_flight_, contributors,
                       moments, handle = handle_, lane = head.lane,
                       sequence = head.sequence](const Status& status, bool held) {
    {
      const std::lock_guard<std::mutex> locked(flights->mutex);
      flights->staged.erase({lane, sequence});
    }
    if (first_failure(*flights, status)) link->complete(failed(handle, status));
    in_flight->fetch_sub(1);
    link->complete(ipc::DoneRecord{lane, handle, sequence, contributors->load(),
                                   static_cast<uint8_t>(status.code()), status.message(),
                                   before(moments->first_byte, moments->done),
                                   before(moments->last_byte, moments->done), held});
  };
  if (!laid.transfer) {
    options.done = [finish](const Status& status) { finish(status, false); };
    // A barrier's end says that everything before it is complete, so outputs still being copied are
    // finished first.
    if (head.descriptor.kind == wire::Kind::kBarrier && laid.mover) {
      options.done = [mover = laid.mover, group = handle_, finish](const Status& status) {
        mover->after(group, [finish, status] { finish(status, false); });
      };
    }
    return options;
  }
  end_by_mover(laid, finish, tells_final(head.descriptor.kind), options);
  return options;
}

void TenantGroup::end_by_mover(const Laid& laid, Finish finish, bool tells_final,
                               PostOptions& options) const {
  laid.transfer->hooks = hooks_for(group_, waker_);
  laid.transfer->hooks.finish = std::move(finish);
  options.done = [mover = laid.mover, transfer = laid.transfer](const Status& status) {
    mover->end(transfer, status);
  };
  if (!tells_final) return;
  options.completed_step = kFinalStep;
  options.on_completed = [mover = laid.mover, transfer = laid.transfer](uint32_t output,
                                                                        uint64_t bytes) {
    mover->mark(transfer, output, bytes);
  };
}

Status TenantGroup::lost(const std::string& why) const {
  return Status(Code::kPeerLost, "rank " + std::to_string(group_->rank()) + " is lost: " + why);
}

void TenantGroup::lose(const std::string& why) { group_->fail_part(lost(why)); }

void TenantGroup::lose_closing(const std::string& why) { group_->fail_in_flight(lost(why)); }

void TenantGroup::refuse(const ipc::Completed& end, const Status& why) {
  link_->complete(failed(handle_, why));
  link_->complete(end);
  group_->abort(why.message());
}

void TenantGroup::refuse(const ipc::PostRecord& head, const Status& why) {
  refuse(ipc::DoneRecord{head.lane, handle_, head.sequence, 0, static_cast<uint8_t>(why.code()),
                         why.message()},
         why);
}

bool TenantGroup::first_failure(Flights& flights, const Status& status) {
  const std::lock_guard<std::mutex> held(flights.mutex);
  return !status.ok() && !std::exchange(flights.told_failure, true);
}

Transfer::Hooks TenantGroup::hooks_for(const std::weak_ptr<GroupBase>& group,
                                       std::function<void()> wake) {
  Transfer::Hooks hooks;
  hooks.wake = std::move(wake);
  hooks.fault = [group](const Status& why) {
    if (const auto there = group.lock()) there->fail_part(why);
  };
  return hooks;
}

Status TenantGroup::room() const {
  if (in_flight_->load() < most_) return {};
  return Status(Code::kResourceExhausted, "engine's limit of " + std::to_string(most_) +
                                              " operations in flight (--operations) is reached");
}

Status TenantGroup::lay_out(const std::vector<ipc::SliceRun>& runs, bool staged,
                            const Arenas& arenas, Laid& laid) {
  for (const ipc::SliceRun& run : runs) {
    const bool input = run.role == ipc::Role::kInput;
    auto& slices = input ? laid.inputs : laid.outputs;
    if (run.length == 0) {
      slices.insert(slices.end(), run.count, Slice());
    } else if (run.space == ipc::Space::kOwn) {
      for (uint32_t i = 0; i < run.count; i++) {
        laid.own.push_back({run.role, static_cast<uint32_t>(slices.size()),
                            run.base + i * run.stride, run.length});
        slices.push_back({nullptr, 0, run.length});
      }
    } else if (!lay_out_run(run, arenas, input && staged, slices)) {
      return Status(Code::kInvalidArgument, "a slice is outside its arena");
    }
  }
  return {};
}

Status TenantGroup::start_transfer(const Transfer::What& what, Laid& laid, Status& refused) {
  if (!laid.mover) return Status(Code::kInvalidArgument, "a slice of memory that was not offered");
  refused = laid.mover->usable();
  if (refused.code() == Code::kInvalidArgument) return refused;
  if (!refused.ok()) return {};
  auto made = Transfer::make(what, laid.own, laid.inputs, laid.outputs, laid.mover->pool());
  refused = made.status();
  if (made.ok()) laid.transfer = std::move(made).value();
  return {};
}

Status TenantGroup::post(const ipc::PostRecord& head, const std::vector<ipc::SliceRun>& runs,
                         const Arenas& arenas, const std::shared_ptr<Mover>& mover) {
  Laid laid;
  laid.mover = mover;
  if (Status fits = lay_out(runs, head.staged, arenas, laid); !fits.ok()) return fits;
  const wire::Descriptor& d = head.descriptor;
  const RequestShape wants = shape_of(d.kind, group_->size(), d.root == group_->rank());
  if (laid.inputs.size() != wants.inputs || laid.outputs.size() != wants.outputs) {
    return Status(Code::kInvalidArgument, "a post with a wrong number of slices");
  }
  Status refused = room();
  if (refused.ok() && !laid.own.empty()) {
    const Transfer::What what{handle_,        head.descriptor.kind, head.descriptor.name,
                              group_->rank(), head.timeout,         head.staged};
    if (Status sound = start_transfer(what, laid, refused); !sound.ok()) return sound;
  }
  if (!refused.ok()) {
    refuse(head, refused);
    return {};
  }
  if (head.staged) {
    const std::lock_guard<std::mutex> held(flights_->mutex);
    flights_->staged[{head.lane, head.sequence}] = {laid.inputs, laid.mover, laid.transfer};
  }
  in_flight_->fetch_add(1);
  PostOptions options = options_of(head, laid);
  const Result<Sequence> taken = group_->post(
      {d.kind,
       std::move(laid.inputs),
       std::move(laid.outputs),
       d.root,
       {static_cast<Element>(d.element), static_cast<Reduction>(d.reduction), head.factor}},
      std::move(options));
  if (!taken.ok()) {
    in_flight_->fetch_sub(1);
    {
      const std::lock_guard<std::mutex> held(flights_->mutex);
      flights_->staged.erase({head.lane, head.sequence});
    }
    refuse(head, taken.status());
    return {};
  }
  if (laid.transfer) mover->submit(laid.transfer);
  if (*taken == head.sequence) return {};
  return Status(Code::kInvalidArgument, "expected operation " + std::to_string(*taken) +
                                            " next, got " + std::to_string(head.sequence));
}

void TenantGroup::ready(const ipc::ReadyRecord& record) {
  Staged own;
  {
    const std::lock_guard<std::mutex> held(flights_->mutex);
    const Staged* const found = flights_->find(record);
    if (found == nullptr) return;  // it has ended already
    const Staged& staged = *found;
    if (record.input >= staged.inputs.size()) return;
    if (staged.transfer && staged.transfer->has_input(record.input)) {
      own.mover = staged.mover;
      own.transfer = staged.transfer;
    } else {
      const Slice& input = staged.inputs[record.input];
      const uint64_t now = std::min<uint64_t>(record.bytes, input.length);
      if (!input.region || now <= input.region->readable()) return;
      input.region->set_readable(now);
    }
  }
  if (own.transfer) return own.mover->allow(own.transfer, record.input, record.bytes);
  waker_();
}

}  // namespace mcast::service
