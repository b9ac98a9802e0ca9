// A rank's first record gives host and limit; it is forwarded when a process listens there, which
// is tried until the limit. From then on bytes are relayed without being interpreted, at most 64
// KiB in each direction. If the rank or the engine closes its connection, the other connection is
// closed too.
#include "host_engine/server/store_relay.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <exception>
#include <optional>

#include "base/clock.h"
#include "base/log.h"
#include "base/resolve.h"
#include "base/socket_address.h"
#include "base/units.h"
#include "daemon/start_thread.h"
#include "transport/udp/socket.h"
#include "wire/store_record.h"

namespace mcast::service {
namespace {

constexpr Nanos kRelayLook = 100 * kMilli;  // interval at which it checks whether the engine ends
constexpr Nanos kFirstPatience = 5 * kSecond;
constexpr Nanos kOneTry = 2 * kSecond, kBetweenTries = 100 * kMilli;
constexpr Nanos kMostPatience = 24 * 3600 * kSecond;
constexpr int kRelayBacklog = 64;
constexpr int kRelayAccepts = 16;  // per poll, so that every poll ends
constexpr size_t kCarried = size_t{64} << 10;

bool wait_for(int fd, short events, Nanos patience) {
  pollfd one{fd, events, 0};
  return ::poll(&one, 1, static_cast<int>(patience / kMilli)) > 0;
}

Result<Fd> connect_once(const Endpoint& address) {
  Result<Fd> fd = open_socket(SOCK_STREAM, address.address);
  if (!fd.ok()) return fd.status();
  int error = connect_to(fd->get(), address) == 0 ? 0 : errno;
  if (error == EINPROGRESS) {
    error = wait_for(fd->get(), POLLOUT, kOneTry) ? pending_error(fd->get()) : ETIMEDOUT;
  }
  if (error != 0) return Status::system(error, "connect to " + address.text());
  keep_alive(fd->get());
  return fd;
}

// Bytes in transit in one direction.
struct Way {
  int from, to;
  std::string bytes;
  bool ended = false;

  void read() {
    std::array<char, kCarried> piece;
    const ssize_t got = ::recv(from, piece.data(), piece.size() - bytes.size(), MSG_DONTWAIT);
    if (got > 0) bytes.append(piece.data(), static_cast<size_t>(got));
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) ended = true;
  }
  void write() {
    if (bytes.empty()) return;
    const ssize_t sent = ::send(to, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) bytes.erase(0, static_cast<size_t>(sent));
    if (sent < 0 && errno != EAGAIN && errno != EINTR) ended = true;
  }
};

void answer(int rank, const std::string& why) {
  const std::string bytes = wire::bytes_of({wire::StoreOp::kFailed, {why}});
  (void)::send(rank, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

}  // namespace

std::string store_path(const std::string& engine_path) { return engine_path + ".store"; }

Result<std::unique_ptr<StoreRelay>> StoreRelay::open(const std::string& engine_path,
                                                     LocalListener::How how, uint16_t port,
                                                     Admit admit, MayReach may_reach) {
  how.type = SOCK_STREAM;
  how.backlog = kRelayBacklog;
  return std::unique_ptr<StoreRelay>(
      new StoreRelay(engine_path, how, port, std::move(admit), std::move(may_reach)));
}

Status StoreRelay::listen() {
  Result<LocalListener> made = LocalListener::open(path_, how_);
  if (!made.ok()) return made.status();
  listener_ = std::move(made).value();
  return {};
}

StoreRelay::~StoreRelay() {
  stopping_ = true;
  for (Carried& one : carried_) one.thread.join();
}

void StoreRelay::serve() {
  carried_.remove_if([](Carried& one) {
    if (!one.over) return false;
    one.thread.join();
    return true;
  });
  for (int i = 0; i < kRelayAccepts; i++) {
    Fd fd(::accept4(listener_.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd.valid()) return;
    ucred who{};
    socklen_t length = sizeof who;
    if (::getsockopt(fd.get(), SOL_SOCKET, SO_PEERCRED, &who, &length) != 0) continue;
    auto hold = admit_(who.uid);
    if (!hold.ok()) {
      answer(fd.get(), hold.status().message());
      continue;
    }
    Carried& one = carried_.emplace_back();
    one.hold = std::move(hold).value();
    const auto rank = std::make_shared<Fd>(std::move(fd));
    const Status started = start_thread(one.thread, "mcast-relay", [this, &one, rank] {
      try {
        carry(rank->get());
      } catch (const std::exception& error) {
        log(LogLevel::kWarn, "a rank's connection to the store of its job ends: %s", error.what());
      }
      rank->reset();
      one.over = true;
    });
    if (started.ok()) continue;
    answer(rank->get(), started.message());
    carried_.pop_back();
  }
}

Result<Fd> StoreRelay::connect_to_host(const std::string& host, Status& out_of_reach) const {
  const auto addresses = resolve_host(host, port_);
  if (!addresses.ok()) return addresses.status();
  Result<Fd> store = Status(Code::kUnavailable, "");
  for (size_t i = 0; i < addresses->size() && !store.ok(); i++) {
    const Endpoint& one = (*addresses)[i];
    out_of_reach = may_reach_(one.address.text(), port_);
    if (!out_of_reach.ok()) break;
    store = connect_once(one);
  }
  return store;
}

void StoreRelay::carry(int rank) const {
  // Its first record.
  wire::StoreReader reader;
  std::optional<wire::StoreRecord> first;
  Way in{rank, -1, ""};
  const Nanos begun = monotonic_now();
  while (!stopping_ && !in.ended && !first && monotonic_now() - begun < kFirstPatience) {
    if (!wait_for(rank, POLLIN, kRelayLook)) continue;
    in.read();
    reader.feed(std::exchange(in.bytes, ""));
    first = reader.next();
    if (reader.broken()) return;
  }
  uint64_t limit = 0;
  if (!first || first->op != wire::StoreOp::kOpen || first->parts.size() != 4 ||
      reader.waiting() != 0 || !read_number(first->parts[3], limit)) {
    return;
  }
  const Nanos patience =
      limit == 0 ? kMostPatience : std::min<Nanos>(limit, kMostPatience / kMilli) * kMilli;
  Result<Fd> store = Status(Code::kUnavailable, "");
  for (;;) {
    if (first->parts[1] != std::to_string(port_)) {
      return answer(rank, "stores are at port " + std::to_string(port_) + " (--store-port)");
    }
    Status out_of_reach;
    store = connect_to_host(first->parts[0], out_of_reach);
    if (!out_of_reach.ok()) return answer(rank, out_of_reach.message());
    if (store.ok()) break;
    // A rank that has left meanwhile needs no reply.
    const bool gone = wait_for(rank, POLLRDHUP, kBetweenTries);
    if (stopping_ || gone) return;
    if (monotonic_now() - begun >= patience) {
      return answer(rank, store.status().message() + "; is an engine with --store-port " +
                              first->parts[1] + " there?");
    }
  }
  Way out{rank, store->get(), wire::bytes_of(*first)}, back{store->get(), rank, ""};
  while (!stopping_ && !out.ended && !back.ended) {
    std::array<pollfd, 2> both{
        pollfd{rank,
               static_cast<short>((out.bytes.size() < kCarried ? POLLIN : 0) |
                                  (back.bytes.empty() ? 0 : POLLOUT)),
               0},
        pollfd{store->get(),
               static_cast<short>((back.bytes.size() < kCarried ? POLLIN : 0) |
                                  (out.bytes.empty() ? 0 : POLLOUT)),
               0}};
    if (::poll(both.data(), both.size(), static_cast<int>(kRelayLook / kMilli)) <= 0) continue;
    if (both[0].revents != 0 && out.bytes.size() < kCarried) out.read();
    if (both[1].revents != 0 && back.bytes.size() < kCarried) back.read();
    out.write();
    back.write();
  }
  back.write();  // a reply that arrived with the end
}

}  // namespace mcast::service
