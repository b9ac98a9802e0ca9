// One packet is the request, one the reply, then the connection is closed. A client that sends no
// request is dropped after a moment.
#include "host_engine/server/drain_socket.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>

#include "base/log.h"

namespace mcast::service {
namespace {

constexpr size_t kMostAskers = 8;
constexpr Nanos kPatience = 5 * kSecond;

std::string path_for(const std::string& engine) { return engine + ".drain"; }

}  // namespace

Status DrainSocket::open(const std::string& engine, bool replace) {
  LocalListener::How how;
  how.type = SOCK_SEQPACKET;
  how.backlog = kMostAskers;
  how.who = "engine";
  how.replace = replace;
  Result<LocalListener> made = LocalListener::open(path_for(engine), how);
  if (!made.ok()) return made.status();
  listener_ = std::move(made).value();
  return {};
}

void DrainSocket::watch(std::vector<pollfd>& list) {
  list.push_back({listener_.fd(), POLLIN, 0});
  for (const Asker& asker : askers_) list.push_back({asker.socket.fd(), POLLIN, 0});
}

void DrainSocket::serve(std::span<const pollfd> ready, Nanos now,
                        const std::function<Nanos(Nanos)>& drain) {
  size_t at = 1;
  std::erase_if(askers_, [&](Asker& asker) {
    const bool said = ready[at++].revents != 0;
    return now >= asker.until || (said && !answer(asker, drain));
  });
  while (ready[0].revents != 0 && askers_.size() < kMostAskers) {
    Fd fd(::accept4(listener_.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd.valid()) return;
    askers_.push_back({LocalSocket(std::move(fd)), now + kPatience});
  }
}

bool DrainSocket::answer(Asker& asker, const std::function<Nanos(Nanos)>& drain) {
  Packet packet;
  const LocalSocket::Got got = asker.socket.receive(packet);
  if (got != LocalSocket::Got::kPacket) return got == LocalSocket::Got::kNothing;
  const auto message = ipc::parse_control(packet.bytes);
  ipc::Draining asked;
  const bool sound = message && message->type == ipc::ControlType::kDrain && read(*message, asked);
  if (!sound || asker.socket.peer_pid() <= 0) {
    const Status why(Code::kInvalidArgument,
                     sound ? "the process that requests it is in another pid namespace"
                           : "the request cannot be read");
    const auto refusal = control_of(ipc::ControlType::kRefused, 0, ipc::Verdict::of(why));
    (void)asker.socket.send(ipc::bytes_of(refusal), {}, 0);
    return false;
  }
  log(LogLevel::kInfo, "process %d requests a drain", static_cast<int>(asker.socket.peer_pid()));
  const ipc::Draining holds{drain(asked.limit)};
  const auto told = control_of(ipc::ControlType::kDraining, 0, holds);
  (void)asker.socket.send(ipc::bytes_of(told), {}, 0);
  return false;
}

Result<ipc::Draining> ask_to_drain(const std::string& engine, Nanos limit,
                                   const TrustedUser& trusted) {
  Result<Fd> fd = connect_to(path_for(engine), SOCK_SEQPACKET, trusted);
  if (!fd.ok()) return fd.status().with_context("no engine answers");
  LocalSocket socket(std::move(fd).value());
  const auto question = control_of(ipc::ControlType::kDrain, 0, ipc::Draining{limit});
  if (Status sent = socket.send(ipc::bytes_of(question), {}, kPatience); !sent.ok()) return sent;
  pollfd ready{socket.fd(), POLLIN, 0};
  (void)::poll(&ready, 1, static_cast<int>(kPatience / kMilli));
  Packet packet;
  const LocalSocket::Got got = socket.receive(packet);
  const auto message =
      got == LocalSocket::Got::kPacket ? ipc::parse_control(packet.bytes) : std::nullopt;
  ipc::Verdict refused;
  if (message && message->type == ipc::ControlType::kRefused && read(*message, refused)) {
    return Status(refused.code, "the engine at " + engine + " does not drain: " + refused.text);
  }
  ipc::Draining draining;
  if (message && message->type == ipc::ControlType::kDraining && read(*message, draining)) {
    return draining;
  }
  return Status(Code::kTimeout, "the engine at " + engine + " has not answered");
}

}  // namespace mcast::service
