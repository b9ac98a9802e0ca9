// One thread, poll(). A connection has one question at a time: its next record is looked at when
// the last one has been answered and the answer has been taken, and who sends more than one ahead
// is cut off. So what one of them can keep here is two records, and one turn serves it once.
#include "service/store_server.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "engine/clock.h"
#include "service/start_thread.h"
#include "transport/udp/socket.h"

namespace mcast::service {
namespace {

constexpr int kStoreBacklog = 1024;
constexpr Nanos kLook = 100 * kMilli;
constexpr size_t kPiece = size_t{64} << 10;

}  // namespace

Result<std::unique_ptr<StoreServer>> StoreServer::start(uint16_t port) {
  Result<Fd> fd = open_socket(SOCK_STREAM);
  if (!fd.ok()) return fd.status();
  sockaddr_in address = ipv4_address({INADDR_ANY}, port);
  auto* const at = reinterpret_cast<sockaddr*>(&address);
  socklen_t length = sizeof address;
  Status status = set_option(fd->get(), SOL_SOCKET, SO_REUSEADDR, 1, "SO_REUSEADDR");
  if (!status.ok()) return status;
  if (::bind(fd->get(), at, length) != 0 || ::listen(fd->get(), kStoreBacklog) != 0 ||
      ::getsockname(fd->get(), at, &length) != 0) {
    return Status::system(errno, "listen at " + to_text(address) + " (--store-port)");
  }
  std::unique_ptr<StoreServer> server(new StoreServer);
  server->listener_ = std::move(fd).value();
  server->port_ = ntohs(address.sin_port);
  const Status started =
      start_thread(server->thread_, "mcast-store", [s = server.get()] { s->run(); });
  if (!started.ok()) return started;
  return server;
}

StoreServer::~StoreServer() {
  stopping_ = true;
  if (thread_.joinable()) thread_.join();
}

void StoreServer::run() {
  std::vector<pollfd> list;
  std::vector<StoreTable::Client> ids;
  while (!stopping_) {
    list.clear();
    ids.clear();
    if (!listening_) listener_.reset();
    if (listener_.valid() && connections_.size() < kMostConnections) {
      list.push_back({listener_.get(), POLLIN, 0});
      ids.push_back(0);
    }
    for (const auto& [id, c] : connections_) {
      const bool full = c.in.waiting() > wire::kMostStoreRecord;
      const int events = (full ? 0 : POLLIN) | (c.out.empty() ? 0 : POLLOUT);
      list.push_back({c.fd.get(), static_cast<short>(events), 0});
      ids.push_back(id);
    }
    const Nanos left = std::clamp<Nanos>(table_.deadline() - monotonic_now(), 0, kLook);
    (void)::poll(list.data(), list.size(), static_cast<int>((left + kMilli - 1) / kMilli));
    const Nanos now = monotonic_now();
    for (size_t i = 0; i < list.size(); i++) {
      if (list[i].revents == 0) continue;
      if (ids[i] == 0) {
        accept_all(now);
      } else if ((list[i].revents & ~POLLOUT) != 0) {
        read(connections_.at(ids[i]));
      }
    }
    for (auto& [id, c] : connections_) take(id, c, now);
    table_.advance(now);
    sweep(now);
  }
}

void StoreServer::accept_all(Nanos now) {
  while (connections_.size() < kMostConnections) {
    Fd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd.valid()) return;
    (void)set_option(fd.get(), SOL_SOCKET, SO_KEEPALIVE, 1, "SO_KEEPALIVE");
    Connection& c = connections_[next_++];
    c.fd = std::move(fd);
    c.since = now;
  }
}

void StoreServer::read(Connection& c) {
  std::array<char, kPiece> piece;
  const ssize_t got = ::recv(c.fd.get(), piece.data(), piece.size(), 0);
  if (got > 0) {
    c.in.feed({piece.data(), static_cast<size_t>(got)});
    c.ended = !c.open && c.in.waiting() > kPiece;  // what opens a store is short
  } else if (got == 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) {
    c.ended = true;
  }
}

void StoreServer::take(StoreTable::Client id, Connection& c, Nanos now) {
  write(c);
  if (c.ended || !c.out.empty() || table_.waits(id)) return;
  const auto record = c.in.next();
  if (!record) {
    c.ended = c.in.broken();
    return;
  }
  c.ended = c.in.waiting() != 0 || !table_.on_record(id, *record, now);
  c.open = true;
  write(c);
}

void StoreServer::write(Connection& c) {
  if (c.out.empty()) return;
  const ssize_t sent = ::send(c.fd.get(), c.out.data(), c.out.size(), MSG_NOSIGNAL);
  if (sent > 0) c.out.erase(0, static_cast<size_t>(sent));
  if (sent < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) c.ended = true;
}

void StoreServer::sweep(Nanos now) {
  for (auto it = connections_.begin(); it != connections_.end();) {
    const Connection& c = it->second;
    if (!c.ended && (c.open || now - c.since < kOpenPatience)) {
      ++it;
      continue;
    }
    table_.on_end(it->first);
    it = connections_.erase(it);
  }
  count_ = connections_.size();
}

}  // namespace mcast::service
