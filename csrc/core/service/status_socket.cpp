// A process that was killed leaves its socket's file behind. Whether somebody still listens there
// is told by connecting to it.
#include "service/status_socket.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace mcast::service {
namespace {

constexpr const char* kName = "aggregator.sock";

bool address_of(const std::string& path, sockaddr_un& out) {
  out = {};
  out.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof out.sun_path) return false;
  std::memcpy(out.sun_path, path.data(), path.size());
  return true;
}

Fd unix_socket() { return Fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)); }

bool somebody_listens(const sockaddr_un& address) {
  const Fd fd = unix_socket();
  const auto* const to = reinterpret_cast<const sockaddr*>(&address);
  return ::connect(fd.get(), to, sizeof address) == 0 || errno == EAGAIN;
}

}  // namespace

std::string default_status_path() {
  const char* const own = getenv("XDG_RUNTIME_DIR");
  for (const std::string base : {"/run", own != nullptr ? own : ""}) {
    if (base.empty()) continue;
    const std::string folder = base + "/torch-mcast";
    if (::mkdir(folder.c_str(), 0755) != 0 && errno != EEXIST) continue;
    if (::access(folder.c_str(), W_OK | X_OK) == 0) return folder + "/" + kName;
  }
  return "";
}

Status StatusSocket::open(const std::string& path) {
  sockaddr_un address;
  if (!address_of(path, address)) {
    return Status(Code::kInvalidArgument, "a path of a socket has 1 to 107 bytes: " + path);
  }
  if (somebody_listens(address)) {
    return Status(Code::kUnavailable, "another aggregator answers at " + path);
  }
  struct stat there {};
  if (::lstat(path.c_str(), &there) == 0 && S_ISSOCK(there.st_mode)) (void)::unlink(path.c_str());
  Fd fd = unix_socket();
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    return Status::system(errno, "status socket " + path);
  }
  // Users of the host may ask; what is told opens nothing.
  (void)::chmod(path.c_str(), 0666);
  if (::listen(fd.get(), static_cast<int>(kMostReaders)) != 0) {
    return Status::system(errno, "status socket " + path);
  }
  listener_ = std::move(fd);
  path_ = path;
  return {};
}

void StatusSocket::close() {
  if (!listener_.valid()) return;
  listener_.reset();
  readers_.clear();
  (void)::unlink(path_.c_str());
  path_.clear();
}

void StatusSocket::watch(std::vector<pollfd>& list) {
  listening_ = listener_.valid() && readers_.size() < kMostReaders;
  if (listening_) list.push_back({listener_.get(), POLLIN, 0});
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

void StatusSocket::serve(std::span<const pollfd> ready, Nanos now,
                         const std::function<std::string()>& text) {
  const bool asked = listening_ && ready[0].revents != 0;
  size_t at = listening_ ? 1 : 0;
  std::erase_if(readers_, [&](Reader& reader) {
    const bool writable = ready[at++].revents != 0;
    return now >= reader.until || (writable && !write(reader));
  });
  while (asked && readers_.size() < kMostReaders) {
    Reader reader{Fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC)),
                  "", 0, now + kPatience};
    if (!reader.fd.valid()) return;
    reader.text = text();
    if (write(reader)) readers_.push_back(std::move(reader));
  }
}

Nanos StatusSocket::deadline() const {
  Nanos next = kNever;
  for (const Reader& reader : readers_) next = std::min(next, reader.until);
  return next;
}

}  // namespace mcast::service
