// The tenant's thread acts for the client's script: it reads records and posts them
// (tenant_records.cpp), replies to messages (tenant_messages.cpp), and sleeps in poll() if there
// are neither. Blocking work has threads of its own: the creation of a group, which uses the
// client's store, and the end of groups.
//
// The work of one poll is bounded whatever the client sends, so that the other tasks are done as
// well: the drain, completions kept because the ring was full, a page that does not come.
//
// A client that sends something no correct client sends is ended: its groups are aborted with the
// reason, which names it on all ranks. The same applies to a client whose process ends without Bye,
// and to one for which the engine has no memory: its exceptions do not leave this thread. Memory
// stays mapped until no operation uses it.
#include "host_engine/server/tenant.h"

#include <poll.h>
#include <unistd.h>

#include <exception>
#include <iterator>
#include <mutex>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "base/units.h"
#include "daemon/start_thread.h"
#include "host_engine/ipc/stats_record.h"
#include "host_engine/server/client_settings.h"

namespace mcast::service {
namespace {

constexpr int kBeatMs = 100;
constexpr int kFullMs = 1;   // between checks of a full completion ring
constexpr int kBatch = 256;  // records between two checks of the socket
constexpr size_t kSpareCompletions = 1024;
constexpr size_t kMostRemains = 16;

// Shared by all clients: a process may connect, send Hello and vanish as often as it likes.
class ClientWarnings {
 public:
  void warn(pid_t pid, const std::string& why) {
    const std::lock_guard<std::mutex> held(mutex_);
    const Nanos now = monotonic_now();
    std::string more;
    if (begun_ == kNever || now - begun_ >= kPeriod) {
      if (dropped_ > 0) more = " (and " + std::to_string(dropped_) + " more)";
      begun_ = now;
      lines_ = 0;
      dropped_ = 0;
    }
    if (lines_ == kLines) {
      dropped_++;
      return;
    }
    lines_++;
    log(LogLevel::kWarn, "client (process %d): %s%s", static_cast<int>(pid), why.c_str(),
        more.c_str());
  }

 private:
  static constexpr uint64_t kLines = 20;
  static constexpr Nanos kPeriod = 10 * kSecond;
  std::mutex mutex_;
  Nanos begun_ = kNever;
  uint64_t lines_ = 0, dropped_ = 0;
};

std::string end_of_drain(Nanos limit) {
  return "the engine of its host (process " + std::to_string(::getpid()) +
         ") is being replaced: its clients had " + seconds_text(limit) + " to leave";
}

}  // namespace

Status being_replaced() {
  return Status(Code::kUnavailable, "it (process " + std::to_string(::getpid()) +
                                        ") is being replaced and takes no new clients or groups");
}

Result<std::unique_ptr<Tenant>> Tenant::serve(LocalSocket&& socket, const TenantLimits& limits,
                                              const EngineContext& context,
                                              std::shared_ptr<void> threads,
                                              std::function<void()> over) {
  auto link = TenantLink::make(std::move(socket));
  if (!link.ok()) return link.status();
  std::unique_ptr<Tenant> tenant(
      new Tenant(*link, limits, context, std::move(threads), std::move(over)));
  if (Status started = tenant->start(); !started.ok()) {
    socket = (*link)->take_socket();
    return started;
  }
  return tenant;
}

Tenant::Tenant(std::shared_ptr<TenantLink> link, const TenantLimits& limits,
               const EngineContext& context, std::shared_ptr<void> threads,
               std::function<void()> over)
    : link_(std::move(link)),
      limits_(limits),
      over_(std::move(over)),
      threads_(std::move(threads)),
      maker_(context),
      pending_(limits.groups),
      closer_(link_) {}

Status Tenant::start() {
  Status started = closer_.start();
  if (started.ok()) started = start_thread(thread_, "mcast-tenant", [this] { run(); });
  if (!started.ok()) maker_.shutdown(true);
  return started;
}

Tenant::~Tenant() {
  link_->shutdown();
  if (thread_.joinable()) thread_.join();
}

TenantReport Tenant::report() const {
  TenantReport r;
  r.pid = link_->socket().peer_pid();
  r.uid = link_->socket().peer_uid();
  r.in_flight = in_flight_->load();
  const std::lock_guard<std::mutex> held(mutex_);
  for (const auto& [handle, group] : groups_) {
    r.groups.push_back(group->name());
    r.security.insert(group->shared()->security());
  }
  r.sent_bytes = maker_.context().share->bytes();
  r.share_waits = maker_.context().share->waits();
  r.arena_bytes = memory_.arena_bytes;
  if (memory_.mover) {
    r.bounce_bytes = memory_.mover->pool().bytes();
    r.mover = memory_.mover->report();
  }
  return r;
}

void Tenant::run() {
  std::string why;
  try {
    why = serve_until_its_end();
  } catch (const std::exception& error) {
    why = std::string("the engine cannot serve its process: ") + error.what();
  }
  wind_up(why);
  over_();
}

std::string Tenant::serve_until_its_end() {
  std::string why;
  while (why.empty() && !bye_) {
    why = serve_socket();
    if (why.empty() && greeted_) why = serve_ring();
    if (why.empty() && !bye_) why = heed_drain();
    link_->flush();
    if (memory_.mover) memory_.mover->check(monotonic_now());
    sweep(false);
    link_->page().engine_beats.fetch_add(1, std::memory_order_relaxed);
    if (const char* const trouble = link_->trouble(); why.empty() && trouble != nullptr) {
      why = trouble;
    }
    if (why.empty() && !bye_) sleep();
  }
  return bye_ ? "" : why;
}

std::string Tenant::serve_ring() {
  // A correct client has no more of them waiting than operations, plus messages about its groups.
  if (link_->waiting() > 2 * size_t{limits_.operations} + kSpareCompletions)
    return "its process broke the engine's protocol: it does not read its completions";
  for (int i = 0; i < kBatch; i++) {
    bool some = false;
    if (std::string why = take_record(some); !why.empty() || !some) return why;
  }
  return "";
}

std::string Tenant::heed_drain() {
  const bool ending = ending_;
  const Nanos limit = drain_limit_;
  if (greeted_ && limit != told_limit_) {
    told_limit_ = limit;
    link_->tell(control_of(ipc::ControlType::kDraining, 0, ipc::Draining{limit}));
  }
  return ending ? end_of_drain(limit) : "";
}

void Tenant::sleep() {
  if (greeted_ && !link_->submissions().announce_sleep(link_->page().engine_asleep)) return;
  pollfd ready{link_->socket().fd(), POLLIN, 0};
  (void)::poll(&ready, 1, link_->waiting() > 0 ? kFullMs : kBeatMs);
  link_->page().engine_asleep.store(0, std::memory_order_seq_cst);
}

// Removes creations that are over; optionally also those that have reported their end, whose
// threads end soon.
void Tenant::sweep(bool also_about_to_be_over) {
  for (auto it = creations_.begin(); it != creations_.end();) {
    Creation& creation = it->second;
    bool over = creation.over;
    if (also_about_to_be_over && !over) {
      const std::lock_guard<std::mutex> held(mutex_);
      over = creation.ended;
    }
    if (over) creation.thread.join();
    it = over ? creations_.erase(it) : std::next(it);
  }
}

std::string Tenant::on_group_ask(const ipc::Control& message) {
  ipc::GroupAsk asked;
  if (!read(message, asked)) return "a GroupAsk that cannot be read";
  if (creations_.count(message.call) != 0) return "two creations with one number";
  if (drain_limit_ != kNever) {
    link_->tell(refusal(message.call, being_replaced()));
    return "";
  }
  drop_local_settings(asked.settings);
  for (const auto& [key, value] : limits_.settings) asked.settings[key] = value;
  asked.settings["engine"] = "inproc";  // that is, in this process
  auto config = Config::resolve(asked.settings, {});
  Status wrong = config.ok() ? may_make(asked, *config) : config.status();
  if (wrong.ok()) wrong = begin(message.call, asked, std::move(config).value());
  if (!wrong.ok()) {
    link_->tell(control_of(ipc::ControlType::kGroupFailed, message.call, ipc::Verdict::of(wrong)));
  }
  return "";
}

// Operations that one rank calls alone are done where they are posted, which would be this thread,
// in blocks of any length: no client asks for that (GroupMaker).
Status Tenant::may_make(const ipc::GroupAsk& asked, const Config& config) const {
  if (asked.size < 2) {
    return Status(Code::kInvalidArgument, "an engine of the host does not make groups of one rank");
  }
  if (Status fits = bounded(config); !fits.ok()) return fits;
  if (Status fits = served(config, maker_.context()); !fits.ok()) return fits;
  const std::lock_guard<std::mutex> held(mutex_);
  size_t groups = groups_.size() + closer_.open();
  for (const auto& [call, creation] : creations_) groups += creation.ended ? 0 : 1;
  // Closed groups may still exist for a moment.
  const bool room = groups < limits_.groups && closer_.size() <= limits_.groups + kMostRemains;
  if (room) return {};
  return Status(Code::kResourceExhausted, "engine's limit of " + std::to_string(limits_.groups) +
                                              " groups (--groups) is reached");
}

Status Tenant::begin(uint64_t call, const ipc::GroupAsk& asked, Config config) {
  GroupSpec spec;
  spec.name = asked.name;
  spec.rank = asked.rank;
  spec.size = asked.size;
  spec.timeout = asked.timeout;
  spec.config = std::move(config);
  spec.fallback = asked.fallback;
  const auto& threads = maker_.context().threads;
  sweep(true);  // their places are free
  Result<std::shared_ptr<void>> place = threads ? threads->take(1) : std::shared_ptr<void>();
  if (!place.ok()) return place.status();
  auto store = std::make_unique<RelayStore>(
      call, [link = link_](const ipc::Control& m) { link->tell(m); }, asked.scope, asked.claims);
  Creation& creation = creations_[call];
  creation.place = std::move(place).value();
  creation.store = std::move(store);
  spec.interrupted = [&creation] { return creation.interrupted.load(); };
  const Status started =
      start_thread(creation.thread, "mcast-create", [this, call, spec, &creation] {
        try {
          create(call, spec, creation);
        } catch (const std::exception&) {
          link_->fail(TenantLink::kExhausted);
        }
        creation.over = true;
      });
  if (!started.ok()) creations_.erase(call);
  return started;
}

void Tenant::create(uint64_t call, const GroupSpec& spec, Creation& creation) {
  auto made = maker_.create_group(spec, *creation.store);
  const Status status = made.status();
  ipc::GroupMade answer;
  if (made.ok()) {
    answer.longest = (*made)->longest_block();
    answer.messages = (*made)->carries_messages();
    answer.stats = encode_stats((*made)->stats(), kMostStatsText);
  }
  {
    const std::lock_guard<std::mutex> held(mutex_);
    creation.ended = true;
    if (made.ok()) {
      answer.handle = next_handle_++;
      groups_[answer.handle] = std::make_shared<TenantGroup>(
          answer.handle, spec.name, std::move(made).value(), link_, in_flight_, limits_.operations);
    }
  }
  link_->tell(status.ok()
                  ? control_of(call, answer)
                  : control_of(ipc::ControlType::kGroupFailed, call, ipc::Verdict::of(status)));
}

// A lost client loses its groups, including those that it was closing. A client that left in order
// may have groups that are still being closed; these continue until the engine itself must end.
void Tenant::wind_up(const std::string& why) {
  if (!why.empty()) {
    static ClientWarnings& warnings = *new ClientWarnings;
    warnings.warn(link_->socket().peer_pid(), why);
  }
  for (auto& [call, creation] : creations_) {
    creation.interrupted = true;
    creation.store->give_up();
    if (creation.thread.joinable()) creation.thread.join();  // otherwise there was no memory for it
  }
  {
    const std::lock_guard<std::mutex> held(mutex_);
    for (auto& [handle, group] : groups_) {
      if (!why.empty()) {
        group->lose(why);
      } else {
        closer_.close(group, 0, {handle, group->shared()->linger(), false}, memory_.mover);
      }
    }
  }
  if (memory_.mover) memory_.mover->retire();  // the closer waits for it
  do {
    if (!why.empty()) {
      closer_.lose(why);
    } else if (ending_) {
      closer_.lose(end_of_drain(drain_limit_));
    }
  } while (!closer_.wait(kBeatMs * kMilli));
  maker_.shutdown(!why.empty());
  const std::lock_guard<std::mutex> held(mutex_);
  groups_.clear();
}

}  // namespace mcast::service
