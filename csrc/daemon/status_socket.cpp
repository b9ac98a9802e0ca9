// The text is made when a reader connects and written as far as the socket takes it; a slow reader
// is served again when there is room, until its time limit. All readers of one poll get the same
// text, and a poll accepts a limited number: any user may connect, and the thread that serves the
// socket has other work.
#include "daemon/status_socket.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>

namespace mcast::service {
namespace {

constexpr const char* kName = "aggregator.sock";

}  // namespace

std::string default_status_path() {
  const char* const own = getenv("XDG_RUNTIME_DIR");
  for (const std::string base : {"/run", own != nullptr ? own : ""}) {
    if (base.empty()) continue;
    const std::string folder = base + "/torch-mcast-aggregator";
    if (::mkdir(folder.c_str(), 0755) != 0 && errno != EEXIST) continue;
    if (::access(folder.c_str(), W_OK | X_OK) == 0) return folder + "/" + kName;
  }
  return "";
}

Status StatusSocket::open(const std::string& path, const char* who, bool replace) {
  // Users of the host may read it; the text grants no access.
  LocalListener::How how;
  how.backlog = kMostReaders;
  how.mode = 0666;
  how.who = who;
  how.replace = replace;
  Result<LocalListener> made = LocalListener::open(path, how);
  if (!made.ok()) return made.status();
  listener_ = std::move(made).value();
  return {};
}

void StatusSocket::close() {
  listener_ = {};
  readers_.clear();
}

void StatusSocket::watch(std::vector<pollfd>& list) {
  listening_ = listener_.valid();
  if (listening_) list.push_back({listener_.fd(), POLLIN, 0});
  for (const Reader& reader : readers_) list.push_back({reader.fd.get(), POLLOUT, 0});
}

bool StatusSocket::write(Reader& reader) {
  while (reader.sent < reader.text.size()) {
    const ssize_t sent = ::send(reader.fd.get(), reader.text.data() + reader.sent,
                                reader.text.size() - reader.sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) return errno == EAGAIN || errno == EWOULDBLOCK;
    reader.sent += static_cast<size_t>(sent);
  }
  return false;
}

void StatusSocket::add(Reader reader) {
  std::vector<HalfOpenSeat<uid_t>> seats;
  for (const Reader& one : readers_) seats.push_back(one.seat);
  const auto goes = kRules.displaced(seats, reader.seat.source, reader.seat.known);
  if (goes) readers_.erase(readers_.begin() + static_cast<ptrdiff_t>(*goes));
  readers_.push_back(std::move(reader));
}

void StatusSocket::serve(std::span<const pollfd> ready, Nanos now,
                         const std::function<std::string()>& text) {
  const bool asked = listening_ && ready[0].revents != 0;
  size_t at = listening_ ? 1 : 0;
  std::erase_if(readers_, [&](Reader& reader) {
    const bool writable = ready[at++].revents != 0;
    return now >= reader.until || (writable && !write(reader));
  });
  std::string told;
  for (size_t i = 0; asked && i < kMostReaders; i++) {
    Reader reader{Fd(::accept4(listener_.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC)), "",
                  0, now + kPatience};
    if (!reader.fd.valid()) return;
    if (told.empty()) told = text();
    reader.text = told;
    if (!write(reader)) continue;
    ucred who{0, static_cast<uid_t>(-1), 0};
    socklen_t size = sizeof who;
    (void)::getsockopt(reader.fd.get(), SOL_SOCKET, SO_PEERCRED, &who, &size);
    reader.seat = {who.uid, who.uid == 0 || who.uid == ::geteuid(), now};
    add(std::move(reader));
  }
}

Nanos StatusSocket::deadline() const {
  Nanos next = kNever;
  for (const Reader& reader : readers_) next = std::min(next, reader.until);
  return next;
}

}  // namespace mcast::service
