// One thread, poll(). A connection has one request at a time: its next record is read when the last
// one has been answered and the reply has been taken, and a client that sends more than one in
// advance is cut off. So a connection can keep two records here at most, and one poll serves it
// once. A request of more than a few KiB is read when its source's account has room for all of it;
// otherwise its bytes are skipped, and it is refused.
#include "host_engine/server/store_server.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <exception>

#include "base/accept.h"
#include "base/clock.h"
#include "base/descriptors.h"
#include "daemon/start_thread.h"
#include "transport/udp/socket.h"

namespace mcast::service {
namespace {

constexpr int kStoreBacklog = 1024;
constexpr Nanos kLook = 100 * kMilli;
constexpr uint64_t kMoreDescriptors = 256;  // requested when none is left
constexpr size_t kPiece = StoreTable::kClientBytes;
constexpr size_t kLongestQuestion = sizeof(uint32_t) + wire::kMostStoreRecord;

}  // namespace

Result<std::unique_ptr<StoreServer>> StoreServer::start(uint16_t port, StoreFilter filter) {
  Endpoint address{{}, port};
  Result<Fd> fd = listen_at(address, kStoreBacklog);
  if (!fd.ok()) return Status(fd.status().code(), fd.status().message() + " (--store-port)");
  std::unique_ptr<StoreServer> server(new StoreServer(std::move(filter)));
  server->listener_ = std::move(fd).value();
  server->port_ = address.port;
  const Status started =
      start_thread(server->thread_, "mcast-store", [s = server.get()] { s->run(); });
  if (!started.ok()) return started;
  return server;
}

StoreServer::~StoreServer() {
  stopping_ = true;
  if (thread_.joinable()) thread_.join();
}

// No input of a connection may end the engine: if there is no memory for it, the connection is
// closed.
void StoreServer::run() {
  while (!stopping_) {
    served_ = 0;
    try {
      wait();
      turn(monotonic_now());
    } catch (const std::exception& error) {
      const Nanos now = monotonic_now();
      if (warnings_.allow(now)) {
        log(LogLevel::kWarn, "stores of jobs: a connection is cut off: %s", error.what());
      }
      const auto it = connections_.find(served_);
      if (it != connections_.end()) it->second.ended = true;
      sweep(now);
    }
  }
}

void StoreServer::wait() {
  list_.clear();
  ids_.clear();
  if (!listening_) listener_.reset();
  if (listener_.valid() && monotonic_now() >= accept_from_) {
    list_.push_back({listener_.get(), POLLIN, 0});
    ids_.push_back(0);
  }
  for (const auto& [id, c] : connections_) {
    const bool full = c.in.waiting() > wire::kMostStoreRecord;
    const int events = (full ? 0 : POLLIN) | (c.out.empty() ? 0 : POLLOUT);
    list_.push_back({c.fd.get(), static_cast<short>(events), 0});
    ids_.push_back(id);
  }
  const Nanos left = std::clamp<Nanos>(table_.deadline() - monotonic_now(), 0, kLook);
  (void)::poll(list_.data(), list_.size(), static_cast<int>((left + kMilli - 1) / kMilli));
}

void StoreServer::turn(Nanos now) {
  for (size_t i = 0; i < list_.size(); i++) {
    if (list_[i].revents == 0) continue;
    if (ids_[i] == 0) {
      accept_all(now);
    } else if ((list_[i].revents & ~POLLOUT) != 0) {
      served_ = ids_[i];
      read(ids_[i], connections_.at(ids_[i]), now);
    }
  }
  for (auto& [id, c] : connections_) {
    served_ = id;
    take(id, c, now);
  }
  table_.advance(now);
  sweep(now);
}

void StoreServer::accept_all(Nanos now) {
  for (;;) {
    Accepted next = accept_connection(listener_.get(), kMoreDescriptors);
    if (!next.fd.valid()) {
      if (next.error == 0) return;
      if (warnings_.allow(now)) {
        log(LogLevel::kWarn, "stores of jobs: cannot accept a connection: %s; %s",
            std::strerror(next.error), descriptor_text().c_str());
      }
      accept_from_ = now + kAcceptPause;
      return;
    }
    const Endpoint& from = next.from;
    const IpAddress& source = from.address;
    if (filter_ && !filter_(source)) {
      if (warnings_.allow(now)) {
        log(LogLevel::kWarn, "stores of jobs: %s is refused: it is not in --store-allow",
            from.text().c_str());
      }
      continue;
    }
    if (!table_.admit(next_, source)) {
      if (warnings_.allow(now)) {
        log(LogLevel::kWarn, "stores of jobs: %s is refused: its host's share is used up",
            from.text().c_str());
      }
      continue;
    }
    keep_alive(next.fd.get());
    Connection& c = connections_[next_++];
    c.fd = std::move(next.fd);
    c.since = now;
  }
}

void StoreServer::read(StoreTable::Client id, Connection& c, Nanos now) {
  std::array<char, kPiece> piece;
  const ssize_t got = ::recv(c.fd.get(), piece.data(), piece.size(), 0);
  if (got > 0) {
    // The time limit is for the whole request, however it arrives.
    if (c.open && c.passed == 0 && c.in.waiting() == 0 && c.out.empty()) c.since = now;
    std::string_view bytes(piece.data(), static_cast<size_t>(got));
    const size_t over = std::min(c.passed, bytes.size());
    c.passed -= over;
    bytes.remove_prefix(over);
    if (over > 0 && c.passed == 0) table_.refuse(id);
    if (bytes.empty()) return;
    c.in.feed(bytes);
    if (!c.expected) expect(id, c);
  } else if (got == 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) {
    c.ended = true;
  }
}

// Records that open a store are short.
void StoreServer::expect(StoreTable::Client id, Connection& c) {
  const size_t bytes = c.in.expected();
  if (bytes == 0) return;
  if (bytes > (c.open ? kLongestQuestion : kPiece)) {
    c.ended = true;
    return;
  }
  c.expected = table_.expect(id, bytes);
  if (c.expected) return;
  if (c.in.waiting() > bytes) {
    c.ended = true;  // more than one request
    return;
  }
  c.passed = bytes - c.in.waiting();
  c.in.clear();
  if (c.passed == 0) table_.refuse(id);
}

void StoreServer::take(StoreTable::Client id, Connection& c, Nanos now) {
  write(id, c, now);
  if (c.ended || !c.out.empty() || c.passed > 0 || table_.waits(id)) return;
  const auto record = c.in.next();
  if (!record) {
    c.ended = c.in.broken();
    return;
  }
  c.expected = false;
  c.since = now;
  c.ended = c.in.waiting() != 0 || !table_.on_record(id, *record, now);
  c.open = true;
  write(id, c, now);
}

void StoreServer::write(StoreTable::Client id, Connection& c, Nanos now) {
  if (c.out.empty()) return;
  const ssize_t sent = ::send(c.fd.get(), c.out.data(), c.out.size(), MSG_NOSIGNAL);
  if (sent > 0) {
    c.out.erase(0, static_cast<size_t>(sent));
    c.since = now;
    if (c.out.empty()) {
      c.out.shrink_to_fit();
      table_.on_taken(id);
    }
  }
  if (sent < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) c.ended = true;
}

void StoreServer::sweep(Nanos now) {
  for (auto it = connections_.begin(); it != connections_.end();) {
    const Connection& c = it->second;
    const bool busy = c.in.waiting() > 0 || c.passed > 0 || !c.out.empty();
    const Nanos patience = !c.open ? kOpenPatience : busy ? kStallPatience : kNever;
    if (!c.ended && now - c.since < patience) {
      ++it;
      continue;
    }
    table_.on_end(it->first);
    it = connections_.erase(it);
  }
  count_ = connections_.size();
}

}  // namespace mcast::service
