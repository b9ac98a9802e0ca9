// The tenant's thread stands for the client's script: it reads records and posts them, answers
// messages, and sleeps in poll() where there is neither. What blocks has a thread of its own: the
// creation of a group, which asks the client's store, and its close.
//
// A client that says what no sound one says is ended: its groups are aborted with the reason, which
// names it on all ranks. The same goes for one whose process ends without Bye. Memory stays mapped
// until no operation uses it.
#include "service/tenant.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <iterator>
#include <utility>

#include "base/log.h"
#include "base/signals_blocked.h"
#include "base/units.h"
#include "base/version.h"
#include "engine/clock.h"
#include "engine/stats_record.h"
#include "service/client_settings.h"

namespace mcast::service {
namespace {

constexpr int kBeatMs = 100;
constexpr int kFullMs = 1;  // between looks at a full completion ring
constexpr Nanos kSettle = 10 * kSecond;
constexpr int kBatch = 256;  // records between two looks at the socket
constexpr size_t kSpareCompletions = 1024;
constexpr size_t kMostArenas = 4096;
constexpr size_t kMostStats = ipc::kMostControl - 256;  // beside the other parts of a message

ipc::Control refusal(uint64_t call, const Status& why) {
  return control_of(ipc::ControlType::kRefused, call, ipc::Verdict::of(why));
}

}  // namespace

Status being_replaced() {
  return Status(Code::kUnavailable, "it (process " + std::to_string(::getpid()) +
                                        ") is being replaced and takes no new clients or groups");
}

Result<std::unique_ptr<Tenant>> Tenant::serve(LocalSocket socket, const TenantLimits& limits,
                                              const EngineContext& context,
                                              std::shared_ptr<void> threads,
                                              std::function<void()> over) {
  auto link = TenantLink::make(std::move(socket));
  if (!link.ok()) return link.status();
  return std::unique_ptr<Tenant>(
      new Tenant(std::move(link).value(), limits, context, std::move(threads), std::move(over)));
}

Tenant::Tenant(std::shared_ptr<TenantLink> link, const TenantLimits& limits,
               const EngineContext& context, std::shared_ptr<void> threads,
               std::function<void()> over)
    : link_(std::move(link)),
      limits_(limits),
      over_(std::move(over)),
      threads_(std::move(threads)),
      maker_(context) {
  thread_ = named_thread("mcast-tenant", [this] { run(); });
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
  while (why.empty() && !bye_) {
    why = serve_socket();
    if (why.empty() && greeted_) why = serve_ring();
    if (why.empty() && !bye_) why = heed_drain();
    link_->flush();
    if (memory_.mover) memory_.mover->check(monotonic_now());
    sweep();
    link_->page().engine_beats.fetch_add(1, std::memory_order_relaxed);
    if (why.empty() && !bye_) sleep();
  }
  wind_up(bye_ ? "" : why);
  over_();
}

std::string Tenant::heed_drain() {
  const bool ending = ending_;
  const Nanos limit = drain_limit_;
  if (greeted_ && limit != told_limit_) {
    told_limit_ = limit;
    link_->tell(control_of(ipc::ControlType::kDraining, 0, ipc::Draining{limit}));
  }
  if (!ending) return "";
  return "the engine of its host (process " + std::to_string(::getpid()) +
         ") is being replaced: its clients had " + seconds_text(limit) + " to go";
}

void Tenant::sleep() {
  if (greeted_ && !link_->submissions().announce_sleep(link_->page().engine_asleep)) return;
  pollfd ready{link_->socket().fd(), POLLIN, 0};
  (void)::poll(&ready, 1, link_->waiting() > 0 ? kFullMs : kBeatMs);
  link_->page().engine_asleep.store(0, std::memory_order_seq_cst);
}

Tenant::Worker Tenant::start(const char* name, std::function<void()> work) {
  auto over = std::make_shared<std::atomic<bool>>(false);
  return {over, named_thread(name, [over, work = std::move(work)]() mutable {
            work();
            work = nullptr;
            *over = true;
          })};
}

void Tenant::sweep() {
  const auto over = [](Worker& worker) {
    if (!*worker.over) return false;
    worker.thread.join();
    return true;
  };
  std::erase_if(closing_, over);
  for (auto it = creations_.begin(); it != creations_.end();) {
    it = over(it->second.worker) ? creations_.erase(it) : std::next(it);
  }
}

void Tenant::wind_up(const std::string& why) {
  if (!why.empty()) {
    log(LogLevel::kWarn, "client (process %d): %s", static_cast<int>(link_->socket().peer_pid()),
        why.c_str());
  }
  for (auto& [call, creation] : creations_) {
    creation.interrupted = true;
    creation.store->give_up();
    creation.worker.thread.join();
  }
  {
    const std::lock_guard<std::mutex> held(mutex_);
    for (auto& [handle, group] : groups_) {
      if (!why.empty()) group->lose(why);
    }
  }
  if (memory_.mover) memory_.mover->retire();  // closings wait for it
  for (Worker& worker : closing_) worker.thread.join();
  maker_.shutdown(!why.empty());
  const std::lock_guard<std::mutex> held(mutex_);
  groups_.clear();
}

std::string Tenant::serve_ring() {
  // A sound client has no more of them than operations, and what is said of its groups.
  if (link_->waiting() > 2 * size_t{limits_.operations} + kSpareCompletions)
    return "its process broke the engine's protocol: it does not read what is over";
  for (int i = 0; i < kBatch; i++) {
    bool some = false;
    if (std::string why = take_record(some); !why.empty() || !some) return why;
  }
  return "";
}

// What was written before a message comes before it.
std::string Tenant::catch_up() {
  const uint64_t end = link_->page().submission.tail.load(std::memory_order_acquire);
  for (bool some = true; some && link_->submissions().position() < end;) {
    if (std::string why = take_record(some); !why.empty()) return why;
  }
  return "";
}

std::string Tenant::take_record(bool& some) {
  const ipc::RingReader::Found found = link_->submissions().read();
  some = found == ipc::RingReader::Found::kRecord;
  if (found == ipc::RingReader::Found::kNothing) return "";
  const std::string where = std::to_string(link_->submissions().position());
  if (!some) return "its process broke the engine's ring at byte " + where;
  auto record = ipc::parse_submission(link_->submissions().record());
  if (record) return on_record(std::move(*record));
  return "its process broke the engine's protocol: a record before byte " + where +
         " cannot be read";
}

TenantGroup* Tenant::find(uint32_t handle) {
  const std::lock_guard<std::mutex> held(mutex_);
  const auto it = groups_.find(handle);
  return it == groups_.end() ? nullptr : it->second.get();
}

std::string Tenant::on_record(ipc::Submission record) {
  if (auto* post = std::get_if<ipc::PostRecord>(&record)) {
    if (pending_.count(post->group) != 0)
      return "its process broke the engine's protocol: a post inside a post";
    std::vector<ipc::SliceRun> runs = std::move(post->runs);
    if (!post->more) return on_post(std::move(*post), std::move(runs));
    const uint32_t group = post->group;
    pending_[group] = {std::move(*post), std::move(runs)};
    return pending_.size() <= limits_.groups ? "" : "its process began too many posts";
  }
  if (auto* part = std::get_if<ipc::PartRecord>(&record)) {
    const auto it = pending_.find(part->group);
    if (it == pending_.end()) return "its process broke the engine's protocol: a part of no post";
    auto& runs = it->second.runs;
    runs.insert(runs.end(), part->runs.begin(), part->runs.end());
    if (runs.size() > ipc::kMostSlices) return "its process posted too many slices";
    if (part->more) return "";
    Pending whole = std::move(it->second);
    pending_.erase(it);
    return on_post(std::move(whole.head), std::move(whole.runs));
  }
  const auto& ready = std::get<ipc::ReadyRecord>(record);
  if (TenantGroup* const group = find(ready.group)) group->ready(ready);
  return "";
}

// Records of a group that is closed may still be on their way.
std::string Tenant::on_post(ipc::PostRecord head, std::vector<ipc::SliceRun> runs) {
  uint64_t slices = 0;
  for (const ipc::SliceRun& run : runs) slices += run.count;
  if (slices > ipc::kMostSlices) return "its process posted too many slices";
  TenantGroup* const group = find(head.group);
  if (group == nullptr) {
    link_->complete(ipc::DoneRecord{head.lane, head.group, head.sequence, 0,
                                    static_cast<uint8_t>(Code::kClosed), "the group is closed"});
    return "";
  }
  const Status status = group->post(head, runs, memory_.arenas, memory_.mover);
  return status.ok() ? "" : "its process broke the engine's protocol: " + status.message();
}

std::string Tenant::serve_socket() {
  for (;;) {
    Packet packet;
    switch (link_->receive(packet)) {
      case LocalSocket::Got::kNothing:
        return "";
      case LocalSocket::Got::kEnd:
        bye_ = !greeted_;  // somebody who looked whether there is an engine
        if (bye_) return "";
        return "its process " + std::to_string(link_->socket().peer_pid()) + " has ended";
      case LocalSocket::Got::kPacket:
        break;
    }
    const auto message = ipc::parse_control(packet.bytes);
    if (!message) return "its process broke the engine's protocol: a message cannot be read";
    std::string why = greeted_ ? catch_up() : "";
    if (!why.empty()) return why;
    why = greeted_ ? on_message(*message, std::move(packet.descriptors)) : greet(*message);
    if (!why.empty()) return "its process broke the engine's protocol: " + why;
    if (bye_) return "";
  }
}

std::string Tenant::greet(const ipc::Control& message) {
  ipc::Hello hello;
  if (message.type != ipc::ControlType::kHello || !read(message, hello)) return "no Hello";
  if (hello.oldest > ipc::kControlVersion || hello.newest < ipc::kControlVersion) {
    link_->tell(refusal(0, Status(Code::kMismatch, std::string("it is of version ") + version() +
                                                       ", this process of " + hello.product +
                                                       "; install the same on both sides")));
    bye_ = true;
    return "";
  }
  if (drain_limit_ != kNever) {
    link_->tell(refusal(0, being_replaced()));
    bye_ = true;
    return "";
  }
  ipc::Welcome welcome;
  welcome.silence = limits_.silence;
  if (const auto& security = maker_.context().security) {
    welcome.security = security->modes_text();
    if (security->secret) welcome.secret_id = security->secret->id_text();
  }
  const int memory = link_->memory().fd();
  greeted_ = true;
  link_->tell(control_of(welcome), std::span<const int>(&memory, 1));
  return "";
}

std::string Tenant::on_message(const ipc::Control& message, std::vector<Fd> files) {
  ipc::StoreAnswer answer;
  ipc::Arena arena;
  ipc::Close close;
  ipc::Abort abort;
  const auto creation = creations_.find(message.call);
  switch (message.type) {
    case ipc::ControlType::kLook:
      return "";
    case ipc::ControlType::kBye:
      bye_ = true;
      return "";
    case ipc::ControlType::kGroupAsk:
      return on_group_ask(message);
    case ipc::ControlType::kStoreAnswer:
      if (!read(message, answer)) return "an answer of a store that cannot be read";
      if (creation != creations_.end()) creation->second.store->answered(std::move(answer));
      return "";
    case ipc::ControlType::kInterrupt:
      if (creation != creations_.end()) creation->second.interrupted = true;
      return "";
    case ipc::ControlType::kArenaOffer:
      if (!read(message, arena) || files.size() != 1) return "an ArenaOffer that cannot be read";
      on_arena_offer(message.call, arena, std::move(files[0]));
      return "";
    case ipc::ControlType::kMemoryOffer:
      return on_memory_offer(message, std::move(files));
    case ipc::ControlType::kClose:
      if (!read(message, close)) return "a Close that cannot be read";
      on_close(message.call, close);
      return "";
    case ipc::ControlType::kAbort:
      if (!read(message, abort)) return "an Abort that cannot be read";
      if (TenantGroup* const group = find(abort.handle)) group->group().abort(abort.reason);
      return "";
    case ipc::ControlType::kStatsAsk:
      on_stats_ask(message);
      return "";
    default:
      return "a message that a client does not send";
  }
}

std::string Tenant::on_group_ask(const ipc::Control& message) {
  ipc::GroupAsk asked;
  if (!read(message, asked)) return "a GroupAsk that cannot be read";
  if (creations_.count(message.call) != 0) return "two creations of one number";
  if (drain_limit_ != kNever) {
    link_->tell(refusal(message.call, being_replaced()));
    return "";
  }
  drop_local_settings(asked.settings);
  for (const auto& [key, value] : limits_.settings) asked.settings[key] = value;
  asked.settings["engine"] = "inproc";  // that is, in this one
  auto config = Config::resolve(asked.settings, {});
  size_t groups = 0;
  {
    const std::lock_guard<std::mutex> held(mutex_);
    groups = groups_.size();
    for (const auto& [call, creation] : creations_) groups += creation.ended ? 0 : 1;
  }
  Status wrong = config.ok() ? bounded(*config) : config.status();
  if (wrong.ok()) wrong = served(*config, maker_.context());
  if (wrong.ok() && groups >= limits_.groups) {
    wrong = Status(Code::kResourceExhausted, "engine's limit of " + std::to_string(limits_.groups) +
                                                 " groups (--groups) is reached");
  }
  if (!wrong.ok()) {
    link_->tell(control_of(ipc::ControlType::kGroupFailed, message.call, ipc::Verdict::of(wrong)));
    return "";
  }
  GroupSpec spec;
  spec.name = asked.name;
  spec.rank = asked.rank;
  spec.size = asked.size;
  spec.timeout = asked.timeout;
  spec.config = std::move(config).value();
  Creation& creation = creations_[message.call];
  creation.store = std::make_unique<RelayStore>(
      message.call, [link = link_](const ipc::Control& m) { link->tell(m); }, asked.scope);
  spec.interrupted = [&creation] { return creation.interrupted.load(); };
  creation.worker = start("mcast-create", [this, call = message.call, spec, &creation] {
    create(call, spec, creation);
  });
  return "";
}

void Tenant::create(uint64_t call, const GroupSpec& spec, Creation& creation) {
  auto made = maker_.create_group(spec, *creation.store);
  const Status status = made.status();
  ipc::GroupMade answer;
  if (made.ok()) {
    answer.longest = (*made)->longest_block();
    answer.stats = encode_stats((*made)->stats(), kMostStats);
  }
  {
    const std::lock_guard<std::mutex> held(mutex_);
    creation.ended = true;
    if (made.ok()) {
      answer.handle = next_handle_++;
      groups_[answer.handle] = std::make_unique<TenantGroup>(
          answer.handle, spec.name, std::move(made).value(), link_, in_flight_, limits_.operations);
    }
  }
  link_->tell(status.ok()
                  ? control_of(call, answer)
                  : control_of(ipc::ControlType::kGroupFailed, call, ipc::Verdict::of(status)));
}

void Tenant::on_arena_offer(uint64_t call, const ipc::Arena& offered, Fd file) {
  if (offered.bytes == 0 || offered.bytes > limits_.arenas - memory_.arena_bytes) {
    return link_->tell(refusal(call, Status(Code::kResourceExhausted,
                                            "engine's limit of " + std::to_string(limits_.arenas) +
                                                " bytes of arenas (--arenas) is reached")));
  }
  if (memory_.arenas.size() >= kMostArenas) {
    return link_->tell(refusal(call, Status(Code::kResourceExhausted, "too many arenas")));
  }
  Result<Segment> mapped = Segment::adopt(std::move(file), offered.bytes, "an arena");
  if (!mapped.ok()) return link_->tell(refusal(call, mapped.status()));
  const size_t space = static_cast<size_t>(ipc::Space::kFirstArena) + memory_.arenas.size();
  const ipc::Arena answer{static_cast<uint16_t>(space), offered.bytes};
  memory_.arenas.push_back(std::make_shared<Segment>(std::move(mapped).value()));
  {
    const std::lock_guard<std::mutex> held(mutex_);
    memory_.arena_bytes += offered.bytes;
  }
  link_->tell(control_of(ipc::ControlType::kArena, call, answer));
}

// The answer comes by the mover: to look at what is offered may block.
std::string Tenant::on_memory_offer(const ipc::Control& message, std::vector<Fd> files) {
  ipc::MemoryOffer offer;
  if (!read(message, offer) || files.size() > 1) return "a MemoryOffer that cannot be read";
  if (memory_.mover) return "a second MemoryOffer";
  const ClientMemory::Client client{link_->socket().peer_pid(), link_->socket().peer_uid()};
  auto account = BounceAccount::of(client.uid);
  if (const Status may = account->may_move(); !may.ok()) {
    link_->tell(refusal(message.call, may));
    return "";
  }
  const auto& threads = maker_.context().threads;
  Result<std::shared_ptr<void>> place = threads ? threads->take(1) : std::shared_ptr<void>();
  if (!place.ok()) {
    link_->tell(refusal(message.call, place.status()));
    return "";
  }
  const auto opened = [link = link_, call = message.call](const Result<ipc::Memory>& how) {
    link->tell(how.ok() ? control_of(call, *how) : refusal(call, how.status()));
  };
  auto mover =
      Mover::start(offer, client, files.empty() ? Fd() : std::move(files[0]),
                   std::make_shared<BouncePool>(std::move(account), limits_.bounce), opened);
  if (!mover.ok()) {
    link_->tell(refusal(message.call, mover.status()));
    return "";
  }
  const std::lock_guard<std::mutex> held(mutex_);
  memory_.thread = std::move(place).value();
  memory_.mover = std::move(mover).value();
  return "";
}

void Tenant::on_close(uint64_t call, const ipc::Close& close) {
  std::shared_ptr<GroupBase> group;
  {
    const std::lock_guard<std::mutex> held(mutex_);
    const auto it = groups_.find(close.handle);
    if (it != groups_.end()) {
      group = it->second->shared();
      groups_.erase(it);
    }
  }
  pending_.erase(close.handle);
  const auto finish = [link = link_, call](const Status& status) {
    link->tell(control_of(ipc::ControlType::kClosed, call, ipc::Verdict::of(status)));
  };
  if (!group) return finish({});
  closing_.push_back(
      start("mcast-close", [group = std::move(group), mover = memory_.mover, close, finish] {
        const Nanos start = monotonic_now();
        const Status status = close.force ? group->give_up(close.limit) : group->close(close.limit);
        // What it has completed is copied before its end is told.
        const Nanos end = close.limit > kNever - start ? kNever : start + close.limit;
        if (mover) mover->settle(close.handle, std::max(end, monotonic_now() + kSettle));
        finish(status);
      }));
}

void Tenant::on_stats_ask(const ipc::Control& message) {
  uint32_t handle = 0;
  std::shared_ptr<GroupBase> group;
  if (message.parts.size() == 1 && read_number(message.parts[0], handle)) {
    if (TenantGroup* const found = find(handle)) group = found->shared();
  }
  if (!group) return link_->tell(refusal(message.call, Status(Code::kClosed, "no such group")));
  link_->tell({ipc::ControlType::kStats, message.call, {encode_stats(group->stats(), kMostStats)}});
}

}  // namespace mcast::service
