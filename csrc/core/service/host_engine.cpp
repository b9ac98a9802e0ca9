// One thread accepts, a thread per client serves. Clients of one user are counted by what the
// kernel says of the socket's other end, so nobody takes the places of others.
#include "service/host_engine.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/json.h"
#include "base/log.h"
#include "base/signals_blocked.h"
#include "base/version.h"
#include "engine/clock.h"

namespace mcast::service {
namespace {

constexpr int kClientBacklog = 64;
constexpr int kAcceptMs = 100;
constexpr Nanos kRefusedPatience = kSecond;
constexpr size_t kMostRefused = 64;

}  // namespace

Result<std::unique_ptr<HostEngine>> HostEngine::start(HostEngineOptions options) {
  std::unique_ptr<HostEngine> engine(new HostEngine(std::move(options)));
  Result<Fd> fd = listen_at(engine->options_.path, SOCK_SEQPACKET, kClientBacklog,
                            engine->options_.mode, "engine");
  if (!fd.ok()) return fd.status();
  engine->listener_ = std::move(fd).value();
  const std::string status = engine->options_.path + ".status";
  if (Status opened = engine->status_.open(status, "engine"); !opened.ok()) return opened;
  engine->thread_ = named_thread("mcast-engine", [e = engine.get()] { e->run(); });
  return engine;
}

HostEngine::~HostEngine() {
  ending_ = true;
  if (thread_.joinable()) thread_.join();
  stop_listening(listener_, options_.path);
  for (Place& place : places_) place.tenant->end();
  places_.clear();
}

void HostEngine::run() {
  while (!ending_) {
    std::vector<pollfd> list{{listener_.get(), POLLIN, 0}};
    status_.watch(list);
    (void)::poll(list.data(), list.size(), kAcceptMs);
    status_.serve(std::span<const pollfd>(list).subspan(1), monotonic_now(),
                  [this] { return status_text(); });
    sweep();
    for (;;) {
      Fd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (!fd.valid()) break;
      admit(std::move(fd));
    }
  }
}

void HostEngine::admit(Fd fd) {
  LocalSocket socket(std::move(fd));
  const uid_t uid = socket.peer_uid();
  const std::lock_guard<std::mutex> held(mutex_);
  const auto same = std::count_if(places_.begin(), places_.end(),
                                  [uid](const Place& p) { return p.uid == uid && !p.over; });
  if (static_cast<uint64_t>(same) >= options_.clients) {
    return refuse(
        std::move(socket),
        Status(Code::kResourceExhausted, "engine's limit of " + std::to_string(options_.clients) +
                                             " clients of one user (--clients) is reached"));
  }
  Place& place = places_.emplace_back();
  place.uid = uid;
  auto tenant = Tenant::serve(std::move(socket), options_.limits, [&place] { place.over = true; });
  if (tenant.ok()) {
    place.tenant = std::move(tenant).value();
  } else {
    log(LogLevel::kWarn, "a client is refused: %s", tenant.status().message().c_str());
    places_.pop_back();
  }
}

void HostEngine::refuse(LocalSocket socket, const Status& why) {
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
  const std::lock_guard<std::mutex> held(mutex_);
  places_.remove_if([](const Place& place) { return place.over.load(); });
}

std::string HostEngine::status_text() const {
  Json json;
  json.open('{').field("version", version()).field("pid", static_cast<uint64_t>(::getpid()));
  json.field("socket", options_.path).key("clients").open('[');
  for (const TenantReport& one : report()) {
    json.open('{').field("pid", static_cast<uint64_t>(one.pid));
    json.field("uid", static_cast<uint64_t>(one.uid)).field("in_flight", one.in_flight);
    json.field("arena_bytes", one.arena_bytes).key("groups").open('[');
    for (const std::string& name : one.groups) json.value(std::string_view(name));
    json.close(']').close('}');
  }
  json.close(']').close('}');
  return json.take() + "\n";
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
