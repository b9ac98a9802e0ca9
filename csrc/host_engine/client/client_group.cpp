// A post becomes a record: the descriptor, and the place of its memory in the arenas. Small inputs
// are copied before the record is written. For large ones the record says that nothing can be read
// yet. The posting thread then copies them piece by piece, without holding a lock of the group, and
// reports its progress, so that the engine sends the first piece while the second is copied. Inputs
// that come from a device use the same path: the thread that raises their readable end calls the
// waker.
//
// Results are copied by the thread that reads the completion, usually the one that waits for it.
#include "host_engine/client/client_group.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/errors.h"
#include "base/log.h"
#include "base/own_pid.h"
#include "collective/error_text.h"
#include "host_engine/client/client_feed.h"
#include "host_engine/client/client_messages.h"
#include "host_engine/ipc/stats_record.h"

namespace mcast {
namespace {

constexpr Nanos kStatsPatience = 2 * kSecond;
// They are in the ring by then; another thread may be passing them on.
constexpr Nanos kLastWords = 5 * kSecond;
// Short sends end about as fast as they are posted, and an engine keeps only a limited number of
// unread completions and unfinished posts. So a thread that posts a message with this many in
// flight reads completions; with this many sends in flight, it also waits a moment for one of them
// to end.
constexpr size_t kManyMessages = 256, kManySends = 1024;
constexpr Nanos kSendPause = kMilli;

using Key = std::pair<LaneId, Sequence>;

struct Flight {
  LaneId lane = LaneId::kMulticast;
  Sequence sequence = 0;
  Post post;
  std::optional<Sequence> reduce_sequence;  // of a barrier on both lanes
  std::unique_ptr<ClientStaging> staging;
  ClientFeed feed;
};

ipc::Control abort_of(uint32_t group, const std::string& reason) {
  return control_of(ipc::Abort{group, reason.substr(0, ipc::kMostText)});
}

// Memory of another user's process is copied by a slower method, so only with the setting `copy`.
ClientAccess access_of(const std::string& setting, ClientLink& link) {
  ClientAccess access;
  access.mapped = setting != "slots" && setting != "copy";
  if (setting == "copy" || setting == "auto") {
    const auto method = link.own_memory().method(setting.c_str());
    access.moved = method && (setting == "copy" || *method == ipc::AccessMethod::kVm);
  }
  return access;
}

}  // namespace

class ClientGroup::Flights final : public ClientListener {
 public:
  // `trace` may be null; `params` describes the group in the trace.
  struct Params {
    std::string name;
    Member self = 0;
    uint8_t lane = 0;
  };
  Flights(std::shared_ptr<ClientLink> link, uint32_t handle, std::shared_ptr<State> state,
          std::shared_ptr<Trace> trace, Params params, ClientMessages::Params messages)
      : messages_(link, std::move(messages)),
        link_(std::move(link)),
        handle_(handle),
        state_(std::move(state)),
        trace_(std::move(trace)),
        params_(std::move(params)) {}

  // An error means that the engine is lost, and would never end the operation.
  Status add(const std::shared_ptr<Flight>& flight) {
    const std::lock_guard<std::mutex> held(mutex_);
    if (!lost_.ok()) return lost_;
    flights_[{flight->lane, flight->sequence}] = flight;
    return {};
  }

  // Its record is written, so the engine may be informed of the progress of its inputs.
  void feed_from_now_on(const std::shared_ptr<Flight>& flight) {
    const std::lock_guard<std::mutex> held(mutex_);
    if (flights_.count({flight->lane, flight->sequence}) != 0) {
      to_feed_[flight->lane].push_back(flight);
    }
  }

  // Copies all inputs that can be read and informs the engine, in the order of the posts.
  void feed(LaneId lane) {
    for (;;) {
      std::shared_ptr<Flight> flight;
      {
        const std::lock_guard<std::mutex> held(mutex_);
        if (to_feed_[lane].empty()) return;
        flight = to_feed_[lane].front();
      }
      if (!feed(lane, *flight)) return;
      const std::lock_guard<std::mutex> held(mutex_);
      std::erase(to_feed_[lane], flight);
    }
  }

  void on_completed(ipc::Completed record) override {
    if (const auto* done = std::get_if<ipc::DoneRecord>(&record)) {
      const Status status =
          done->code == 0 ? Status() : Status(static_cast<Code>(done->code), done->text);
      if (auto flight = take({done->lane, done->sequence})) {
        if (done->held) flight->staging->keep_outputs();
        end(*flight, status, *done);
      }
    } else if (const auto* message = std::get_if<ipc::MessageDoneRecord>(&record)) {
      messages_.on_done(*message);
    } else if (const auto* failed = std::get_if<ipc::FailedRecord>(&record)) {
      state_->note_failure(Status(static_cast<Code>(failed->code), failed->text));
    }
  }

  void on_lost(const Status& why) override {
    state_->note_failure(why);
    end_all(why, link_->engine_may_run());
  }

  bool empty() {
    const std::lock_guard<std::mutex> held(mutex_);
    return flights_.empty() && messages_.in_flight().all == 0;
  }

  // `may_run`: the engine may still be copying.
  void end_all(const Status& why, bool may_run) {
    std::map<Key, std::shared_ptr<Flight>> all;
    {
      const std::lock_guard<std::mutex> held(mutex_);
      lost_ = why;
      all.swap(flights_);
      to_feed_ = {};
    }
    for (const auto& [key, flight] : all) {
      if (!flight->staging->withdraw(may_run)) flight->staging->keep_outputs();
      end(*flight, why.with_context(flight->post.descriptor.name), {});
    }
    messages_.end_all(why, may_run);
  }

  ClientMessages& messages() { return messages_; }

 private:
  // Returns false if some of its inputs are not complete.
  bool feed(LaneId lane, Flight& flight) {
    return flight.feed.next(
        flight.staging, [&, sequence = flight.sequence](uint32_t input, uint64_t bytes) {
          return link_->submit(ipc::ReadyRecord{lane, handle_, sequence, input, bytes}).ok();
        });
  }

  std::shared_ptr<Flight> take(Key key) {
    const std::lock_guard<std::mutex> held(mutex_);
    const auto it = flights_.find(key);
    if (it == flights_.end()) return nullptr;
    auto flight = std::move(it->second);
    flights_.erase(it);
    std::erase(to_feed_[key.first], flight);
    return flight;
  }

  void end(Flight& flight, const Status& status, const ipc::DoneRecord& how) {
    flight.feed.end();
    if (status.ok()) {
      flight.staging->copy_out();
      if (flight.post.reduce) flight.post.note_contributors(how.contributors);
    }
    flight.staging.reset();
    trace(flight.lane, flight.post, status.ok(), how);
    if (flight.reduce_sequence) {
      flight.post.sequence = *flight.reduce_sequence;
      trace(LaneId::kReduce, flight.post, status.ok(), how);
    }
    const Post post = std::move(flight.post);
    if (post.done) post.done(status);
  }

  // Uses this process's clock, which may differ from the engine's.
  void trace(LaneId lane, const Post& post, bool ok, const ipc::DoneRecord& how) const {
    if (!trace_) return;
    const Nanos now = monotonic_now();
    const auto moment = [&](Nanos before) {
      return before == kNever ? kNever : std::max(now - before, post.posted);
    };
    struct {
      const Post& post;
      Nanos first_byte, last_byte;
    } const operation{post, moment(how.first_byte), moment(how.last_byte)};
    Params params = params_;
    params.lane = static_cast<uint8_t>(lane);
    trace_->record(trace_event(operation, post.descriptor, params, now, ok));
  }

  ClientMessages messages_;
  const std::shared_ptr<ClientLink> link_;
  const uint32_t handle_;
  const std::shared_ptr<State> state_;
  const std::shared_ptr<Trace> trace_;
  const Params params_;
  std::mutex mutex_;
  Status lost_;
  std::map<Key, std::shared_ptr<Flight>> flights_;
  PerLane<std::deque<std::shared_ptr<Flight>>> to_feed_;
};

ClientGroup::ClientGroup(const GroupSpec& spec, std::shared_ptr<ClientLink> link,
                         const ipc::GroupMade& made, std::shared_ptr<Trace> trace)
    : GroupBase(spec),
      link_(std::move(link)),
      handle_(made.handle),
      carries_messages_(made.messages),
      access_(access_of(config_.engine_memory, *link_)),
      flights_(std::make_shared<Flights>(
          link_, handle_, state_, std::move(trace), Flights::Params{name_, rank_},
          ClientMessages::Params{name_, rank_, size_, handle_, access_, counters_.reduce})) {
  read_stats(made.stats, fixed_);
  max_block_ = made.longest;
  const std::string by =
      "engine of this host (process " + std::to_string(link_->engine_pid()) + "): ";
  fixed_.transport_reason = by + fixed_.transport_reason;
  link_->listen(handle_, flights_);
}

// The engine reports the ends of operations before it reports, on another channel, that their group
// is closed: reads those first. Operations without a reported end are ended here, so that no thread
// waits for them.
void ClientGroup::part(const std::shared_ptr<ClientLink>& link, uint32_t handle,
                       const std::shared_ptr<Flights>& flights) {
  const Nanos until = link->on_own_thread() ? 0 : monotonic_now() + kLastWords;
  (void)link->help([&] { return flights->empty(); }, until);
  link->forget(handle);
  const Status lost = link->lost();
  flights->end_all(lost.ok() ? Status(Code::kClosed,
                                      "the engine of this host has closed the group without "
                                      "reporting how this operation ended")
                             : lost,
                   lost.ok() || link->engine_may_run());
}

ClientGroup::~ClientGroup() {
  if (!here()) {
    // In the child of a fork there is no link thread, and the arenas are not mapped.
    (void)new auto(flights_);
    (void)new auto(link_);
    return;
  }
  if (link_->on_own_thread()) {  // that thread reads the reply, which the link keeps until then
    begin_close(linger(), false,
                [weak = std::weak_ptr(link_), handle = handle_, flights = flights_](const Status&) {
                  if (const auto link = weak.lock()) part(link, handle, flights);
                });
    return;
  }
  if (const Status status = close_with_linger(); !status.ok()) {
    log(LogLevel::kInfo, "group '%s': %s", name_.c_str(), status.message().c_str());
  }
  part(link_, handle_, flights_);
}

Status ClientGroup::push(LaneId lane, Post post) {
  return push_record(lane, std::move(post), std::nullopt);
}

// The engine's group splits it.
Status ClientGroup::push_barrier(Post post, Sequence reduce_sequence) {
  return push_record(LaneId::kMulticast, std::move(post), reduce_sequence);
}

Status ClientGroup::push_record(LaneId lane, Post post, std::optional<Sequence> reduce_sequence) {
  counters_[lane]->add(Counter::ops_posted);
  auto staging = ClientStaging::make(post, rank_, link_->arenas(), access_);
  if (!staging.ok()) return staging.status();
  (*staging)->count(*counters_[lane]);
  ipc::PostRecord record;
  record.lane = lane;
  record.group = handle_;
  record.sequence = post.sequence;
  record.descriptor = post.descriptor;
  record.timeout = post.timeout;
  if (post.reduce) record.factor = post.reduce->factor;
  auto flight = std::make_shared<Flight>();
  flight->lane = lane;
  flight->staging = std::move(staging).value();
  flight->post = std::move(post);
  flight->reduce_sequence = reduce_sequence;
  record.staged = !ClientFeed::begin(*flight->staging);
  const std::vector<ipc::SliceRun> runs = flight->staging->runs();
  size_t sent = std::min(runs.size(), ipc::kRunsInPost);
  record.runs.assign(runs.begin(), runs.begin() + static_cast<ptrdiff_t>(sent));
  record.more = sent < runs.size();
  flight->sequence = record.sequence;
  const bool staged = record.staged;
  // Before it is written: it may end at once.
  if (Status lost = flights_->add(flight); !lost.ok()) {
    return lost.with_context(flight->post.descriptor.name);
  }
  Status status = link_->submit(std::move(record));
  while (status.ok() && sent < runs.size()) {
    const size_t count = std::min(runs.size() - sent, ipc::kRunsInPart);
    const auto from = runs.begin() + static_cast<ptrdiff_t>(sent);
    sent += count;
    status = link_->submit(
        ipc::PartRecord{handle_, sent < runs.size(), {from, from + static_cast<ptrdiff_t>(count)}});
  }
  if (staged) flights_->feed_from_now_on(flight);
  return {};  // if the link is lost, all flights are notified
}

void ClientGroup::pushed(LaneId lane, std::optional<Sequence>) { flights_->feed(lane); }

Status ClientGroup::push_message(MessagePost post) {
  if (!carries_messages_) return GroupBase::push_message(std::move(post));
  return flights_->messages().post(std::move(post));
}

void ClientGroup::pushed_message() {
  ClientMessages& messages = flights_->messages();
  messages.feed();
  static thread_local bool reading = false;  // callbacks of what is read may post again
  const auto flying = messages.in_flight();
  if (reading || flying.all < kManyMessages || link_->on_own_thread()) return;
  reading = true;
  const Nanos until = flying.sends < kManySends ? 0 : monotonic_now() + kSendPause;
  (void)link_->help([&] { return messages.in_flight().sends < kManySends; }, until);
  reading = false;
}

bool ClientGroup::help(LaneId, const std::function<bool()>& done, Nanos until) {
  return here() && link_->help(done, until);
}

std::function<void()> ClientGroup::waker() const {
  return [pid = pid_, weak = std::weak_ptr(flights_)] {
    if (own_pid() != pid) return;
    const auto flights = weak.lock();
    if (!flights) return;
    for (const LaneId lane : kBothLanes) flights->feed(lane);
    flights->messages().feed();
  };
}

// The engine reports the same error to all ranks.
void ClientGroup::abort(const std::string& reason) {
  if (!here()) return;
  (void)link_->tell(abort_of(handle_, reason));
  state_->note_failure(make_error<ErrorId::aborted>(rank_, reason));
}

void ClientGroup::fail_lanes(const Status& why) {
  (void)link_->tell(abort_of(handle_, why.message()));
}

void ClientGroup::close_lanes(Nanos deadline, bool force, Completion closed) {
  const Nanos left = deadline == kNever ? kNever : deadline - now();
  link_->ask(control_of(0, ipc::Close{handle_, left, force}),
             [closed = std::move(closed)](const Result<ipc::Control>& answer) {
               ipc::Verdict verdict;
               Status status = answer.status();
               if (status.ok() && !read(*answer, verdict)) {
                 status = Status(Code::kInternal, "the engine's answer to Close cannot be read");
               } else if (status.ok()) {
                 status = verdict.status();
               }
               closed(status);
             });
}

Status ClientGroup::maps_pool() {
  if (!here()) return make_error<ErrorId::group_of_parent>(name_);
  if (!access_.mapped) {
    return Status(Code::kUnavailable,
                  "engine_memory=" + config_.engine_memory +
                      " makes ranks copy all tensors; engine_memory=map does not");
  }
  if (Status lost = link_->lost(); !lost.ok()) return lost;
  const auto pool = ArenaPool::open_for_process();
  return pool.ok() ? link_->arenas().map(**pool) : pool.status();
}

GroupStats ClientGroup::stats() const {
  GroupStats s = common_stats();
  const GroupStats own = s;
  if (!here() || !link_->lost().ok() || link_->on_own_thread()) return s;
  const auto answer = link_->ask(
      ipc::Control{ipc::ControlType::kStatsAsk, 0, {std::to_string(handle_)}}, kStatsPatience);
  if (answer.ok() && answer->type == ipc::ControlType::kStats && answer->parts.size() == 1) {
    read_stats(answer->parts[0], s);
    s.transport_reason = own.transport_reason;
    for (const Counter way : kWaysOfMemory) {  // counted by this process
      const auto i = static_cast<size_t>(way);
      s.counters[i] = own.counters[i];
      s.reduce_counters[i] = own.reduce_counters[i];
    }
  }
  if (s.failure.empty()) s.failure = own.failure;
  return s;
}

}  // namespace mcast
