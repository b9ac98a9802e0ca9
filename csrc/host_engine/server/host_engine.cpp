// One thread accepts, a thread per client serves. Clients are counted per user, by the kernel's
// credentials of the socket's other end, so no user can take the places of others.
//
// The accepting thread continues until the last tenant has ended, so the guardian sees beats as
// long as there is a client to serve.
#include "host_engine/server/host_engine.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "base/version.h"
#include "daemon/start_thread.h"
#include "host_engine/client/client_link.h"

namespace mcast::service {
namespace {

constexpr int kClientBacklog = 64;
constexpr int kAcceptMs = 100;
constexpr int kMostAccepts = 16;  // per poll, so that each poll ends and beats
constexpr Nanos kRefusedPatience = kSecond;
constexpr size_t kMostRefused = 64;
constexpr Nanos kOtherPatience = 500 * kMilli;  // for another engine's reply

// How a client's tensors are copied, for the status.
const char* copies_text(const Mover::Report& mover) {
  if (!mover.method) return "none";
  if (mover.hangs) return "hangs";
  return *mover.method == ipc::AccessMethod::kVm ? "process_vm" : "descriptor";
}

}  // namespace

Result<std::unique_ptr<HostEngine>> HostEngine::start(HostEngineOptions options) {
  auto security = security_of(options.security);
  if (!security.ok()) return security.status();
  std::unique_ptr<HostEngine> engine(
      new HostEngine(std::move(options), std::move(security).value()));
  if (Status opened = engine->open(); !opened.ok()) return opened;
  const Status started =
      start_thread(engine->thread_, "mcast-engine", [e = engine.get()] { e->run(); });
  if (!started.ok()) return started;
  return engine;
}

// The clients' socket is created last: a client that finds it finds a complete engine.
Status HostEngine::open() {
  if (!options_.replace) {
    // Requires its reply, not only that it listens: an engine that drains makes room.
    Status other = connect_to(options_.path, SOCK_SEQPACKET).status();
    if (other.ok()) other = ClientLink::connect(options_.path, kOtherPatience).status();
    if (other.code() != Code::kUnavailable) {
      const std::string why = other.ok() ? "" : " (" + other.message() + ")";
      return Status(Code::kUnavailable, "another engine answers at " + options_.path + why);
    }
  }
  if (Status started = reaper_.start(); !started.ok()) return started;
  if (Status opened = open_stores(); !opened.ok()) return opened;
  return listen();
}

// Called again if the files were removed.
Status HostEngine::listen() {
  if (Status opened = drain_.open(options_.path, true); !opened.ok()) return opened;
  const std::string status = options_.path + ".status";
  if (Status opened = status_.open(status, "engine", true); !opened.ok()) return opened;
  if (stores_.relay) {
    if (Status opened = stores_.relay->listen(); !opened.ok()) return opened;
  }
  LocalListener::How how;
  how.type = SOCK_SEQPACKET;
  how.backlog = kClientBacklog;
  how.mode = options_.mode;
  how.group = options_.group;
  how.who = "engine";
  how.replace = true;
  Result<LocalListener> made = LocalListener::open(options_.path, how);
  if (!made.ok()) return made.status();
  listener_ = std::move(made).value();
  return {};
}

HostEngine::~HostEngine() {
  if (!thread_.joinable()) return;
  if (!over_) (void)drain(0);
  thread_.join();
}

Nanos HostEngine::drain(Nanos limit) {
  const Nanos until = monotonic_now() + limit;
  const std::lock_guard<std::mutex> held(mutex_);
  if (until < until_) {
    log(LogLevel::kInfo, "engine drains: no new clients or groups; %zu client(s) have %s to leave",
        places_.size(), seconds_text(limit).c_str());
    limit_ = limit;
    until_ = until;
    for (const Place& place : places_) place.tenant->drain(limit);
  }
  return limit_;
}

void HostEngine::run() {
  while (!over_) {
    if (options_.beats != nullptr) options_.beats->fetch_add(1, std::memory_order_relaxed);
    try {
      turn();
    } catch (const std::exception& error) {  // no memory for a new connection
      if (news_.trouble.allow(monotonic_now())) {
        log(LogLevel::kWarn, "engine: a client could not be served: %s", error.what());
      }
    }
  }
}

void HostEngine::turn() {
  wait_and_serve();
  look_after_file();
  sweep();
  serve_stores(monotonic_now());
  advance(monotonic_now());
}

void HostEngine::wait_and_serve() {
  std::vector<pollfd> list{{listener_.fd(), POLLIN, 0}};
  drain_.watch(list);
  const size_t status_from = list.size();
  status_.watch(list);
  if (stores_.relay)
    list.push_back({stores_.relay->fd(), POLLIN, 0});  // serve_stores() is called in any case
  (void)::poll(list.data(), list.size(), kAcceptMs);
  const std::span<const pollfd> all(list);
  const Nanos now = monotonic_now();
  drain_.serve(all.subspan(1, status_from - 1), now, [this](Nanos limit) { return drain(limit); });
  status_.serve(all.subspan(status_from), now, [this] { return status_text(); });
  for (int i = 0; i < kMostAccepts; i++) {
    Fd fd(::accept4(listener_.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd.valid()) break;
    admit(std::move(fd));
  }
}

Status HostEngine::open_stores() {
  if (options_.store_port == 0) return {};
  LocalListener::How how;
  how.mode = options_.mode;
  how.group = options_.group;
  how.who = "engine";
  how.replace = true;
  const auto admit = [this](uid_t uid) -> Result<std::shared_ptr<void>> {
    const std::lock_guard<std::mutex> held(mutex_);
    if (Status may = may_use(uid); !may.ok()) return may;
    return threads_of(uid)->take(1);
  };
  auto relay = StoreRelay::open(options_.path, how, options_.store_port, admit, may_reach());
  if (!relay.ok()) return relay.status();
  stores_.relay = std::move(relay).value();
  serve_stores(monotonic_now());
  return {};
}

// An engine that drains releases the port, for which the next one is waiting; stores that are in
// use stay with their engine.
void HostEngine::serve_stores(Nanos now) {
  if (!stores_.relay) return;
  stores_.relay->serve();
  bool drains = false;
  {
    const std::lock_guard<std::mutex> held(mutex_);
    drains = until_ != kNever;
  }
  if (drains && stores_.server) stores_.server->stop_listening();
  if (drains || stores_.server) return;
  const auto& allowed = options_.store_allow;
  auto started = StoreServer::start(
      options_.store_port,
      [reach = allowed.empty() ? reach_ : std::make_shared<ReachPolicy>(allowed)](
          const IpAddress& from) { return reach->includes(from); });
  if (started.ok()) {
    stores_.server = std::move(started).value();
  } else if (news_.stores.allow(now)) {
    log(LogLevel::kWarn, "stores of jobs: %s; the engine tries again",
        started.status().message().c_str());
  }
}

size_t HostEngine::stores_in_use() const {
  return (stores_.server ? stores_.server->connections() : 0) +
         (stores_.relay ? stores_.relay->connections() : 0);
}

// A process that may write to the folder may put another engine in this one's place.
void HostEngine::look_after_file() {
  const LocalListener::File file = listener_.file();
  if (file == LocalListener::File::kOwn || replaced_) return;
  if (file == LocalListener::File::kGone) {
    const Status again = listen();
    if (again.ok()) {
      log(LogLevel::kWarn, "somebody removed %s: this engine listens there again",
          options_.path.c_str());
    } else if (news_.lost.allow(monotonic_now())) {
      log(LogLevel::kWarn,
          "clients cannot reach this engine: %s was removed and cannot be created again: %s",
          options_.path.c_str(), again.message().c_str());
    }
  } else {
    replaced_ = true;
    log(LogLevel::kInfo, "another engine has taken over %s", options_.path.c_str());
    (void)drain(kDrain);
  }
}

void HostEngine::advance(Nanos now) {
  const std::lock_guard<std::mutex> held(mutex_);
  if (until_ == kNever) return;
  for (const Place& place : places_) {
    if (now >= until_) place.tenant->end(limit_);
  }
  over_ = places_.empty() && reaper_.waiting() == 0 && (now >= until_ || stores_in_use() == 0);
  if (!over_ && news_.drain.allow(now)) {
    log(LogLevel::kInfo,
        "engine drains: %zu client(s) are left; the limit is %s, of which %s have passed",
        places_.size(), seconds_text(limit_).c_str(), seconds_text(now - until_ + limit_).c_str());
  }
}

Status HostEngine::may_use(uid_t uid) const {
  const std::vector<uid_t>& users = options_.users;
  if (users.empty() || std::find(users.begin(), users.end(), uid) != users.end()) return {};
  return Status(Code::kInvalidArgument,
                "user " + std::to_string(uid) + " is not in the engine's --allow");
}

Status HostEngine::may_come(uid_t uid) const {
  if (Status may = may_use(uid); !may.ok()) return may;
  if (until_ != kNever) return being_replaced();
  const auto same = std::count_if(places_.begin(), places_.end(),
                                  [uid](const Place& p) { return p.uid == uid && !p.over; });
  if (static_cast<uint64_t>(same) < options_.clients) return {};
  return Status(Code::kResourceExhausted, "engine's limit of " + std::to_string(options_.clients) +
                                              " clients of one user (--clients) is reached");
}

void HostEngine::admit(Fd fd) {
  LocalSocket socket(std::move(fd));
  const uid_t uid = socket.peer_uid();
  const std::lock_guard<std::mutex> held(mutex_);
  if (const Status may = may_come(uid); !may.ok()) return refuse(socket, may);
  EngineContext context = context_for(uid);
  auto threads = context.threads->take(Tenant::kThreads);
  if (!threads.ok()) return refuse(socket, threads.status());
  Place& place = places_.emplace_back();
  place.uid = uid;
  auto tenant = Tenant::serve(std::move(socket), options_.limits, context,
                              std::move(threads).value(), [&place] { place.over = true; });
  if (tenant.ok()) {
    place.tenant = std::move(tenant).value();
  } else {
    log(LogLevel::kWarn, "a client is refused: %s", tenant.status().message().c_str());
    places_.pop_back();
    refuse(socket, tenant.status());
  }
}

std::shared_ptr<Quota> HostEngine::threads_of(uid_t uid) {
  std::shared_ptr<Quota> threads = threads_[uid].lock();
  if (!threads) {
    threads = std::make_shared<Quota>(options_.threads,
                                      "engine's limit of " + std::to_string(options_.threads) +
                                          " threads of one user (--threads) is reached");
    threads_[uid] = threads;
  }
  return threads;
}

MayReach HostEngine::may_reach() const {
  return
      [reach = reach_](const std::string& host, uint16_t port) { return reach->may(host, port); };
}

EngineContext HostEngine::context_for(uid_t uid) {
  const auto weight = options_.weights.find(uid);
  return {directory_, shares_->add(uid, weight == options_.weights.end() ? 1 : weight->second),
          threads_of(uid), may_reach(), security_};
}

void HostEngine::refuse(LocalSocket& socket, const Status& why) {
  (void)socket.send(ipc::bytes_of(control_of(ipc::ControlType::kRefused, 0, ipc::Verdict::of(why))),
                    {}, 0);
  if (refused_.size() < kMostRefused) {
    refused_.push_back({std::move(socket), monotonic_now() + kRefusedPatience});
  }
}

void HostEngine::sweep() {
  std::erase_if(refused_, [now = monotonic_now()](Refused& one) {
    Packet packet;
    return now >= one.until || one.socket.receive(packet) == LocalSocket::Got::kEnd;
  });
  std::list<Place> over;
  {
    const std::lock_guard<std::mutex> held(mutex_);
    for (auto it = places_.begin(); it != places_.end();) {
      const auto next = std::next(it);
      if (it->over) over.splice(over.end(), places_, it);
      it = next;
    }
  }
  if (!over.empty()) reaper_.take(std::move(over));
}

Status HostEngine::Reaper::start() {
  return start_thread(thread_, "mcast-reaper", [this] { run(); });
}

HostEngine::Reaper::~Reaper() {
  {
    const std::lock_guard<std::mutex> held(mutex_);
    stopping_ = true;
  }
  news_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void HostEngine::Reaper::take(std::list<Place> over) {
  const std::lock_guard<std::mutex> held(mutex_);
  waiting_ += over.size();
  over_.splice(over_.end(), over);
  news_.notify_all();
}

void HostEngine::Reaper::run() {
  std::unique_lock<std::mutex> held(mutex_);
  for (;;) {
    news_.wait(held, [this] { return stopping_ || !over_.empty(); });
    if (over_.empty()) return;
    std::list<Place> one;
    one.splice(one.end(), over_, over_.begin());
    held.unlock();
    one.clear();
    waiting_--;
    held.lock();
  }
}

std::string HostEngine::status_text() const {
  Json json;
  json.open('{').field("version", version()).field("pid", static_cast<uint64_t>(::getpid()));
  json.field("socket", options_.path);
  const TenantLimits& most = options_.limits;
  json.key("limits").open('{').field("clients", options_.clients).field("groups", most.groups);
  json.field("threads", options_.threads);
  json.field("operations", most.operations).field("arena_bytes", most.arenas);
  json.field("bounce_bytes", most.bounce);
  json.field("silence_s", static_cast<double>(most.silence) / 1e9).close('}');
  json.field("store_port", uint32_t{options_.store_port});
  tell(json, *security_);
  tell_drain(json);
  json.key("clients").open('[');
  for (const TenantReport& one : report()) {
    json.open('{').field("pid", static_cast<uint64_t>(one.pid));
    json.field("uid", static_cast<uint64_t>(one.uid)).field("in_flight", one.in_flight);
    json.field("arena_bytes", one.arena_bytes).field("bounce_bytes", one.bounce_bytes);
    json.field("copies", std::string_view(copies_text(one.mover)));
    json.field("pulled_bytes", one.mover.pulled).field("pushed_bytes", one.mover.pushed);
    json.field("sent_bytes", one.sent_bytes).field("share_waits", one.share_waits);
    json.key("groups").open('[');
    for (const std::string& name : one.groups) json.value(std::string_view(name));
    json.close(']').key("security").open('[');
    for (const std::string& mode : one.security) json.value(std::string_view(mode));
    json.close(']').close('}');
  }
  json.close(']').close('}');
  return json.take() + "\n";
}

void HostEngine::tell_drain(Json& json) const {
  const std::lock_guard<std::mutex> held(mutex_);
  json.field("draining", until_ != kNever);
  if (until_ == kNever) return;
  const Nanos left = std::max<Nanos>(until_ - monotonic_now(), 0);
  json.field("drain_limit_s", static_cast<double>(limit_) / 1e9);
  json.field("drain_left_s", static_cast<double>(left) / 1e9);
}

std::vector<TenantReport> HostEngine::report() const {
  const std::lock_guard<std::mutex> held(mutex_);
  std::vector<TenantReport> all;
  for (const Place& place : places_) {
    if (!place.over) all.push_back(place.tenant->report());
  }
  return all;
}

}  // namespace mcast::service
