// One non-blocking socket. Addresses are tried one after the other; queued data is sent to the one
// that is reached. The end of a connection is reported after all data before it has been read.
#include "aggregation/member/admission_link.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/resolve.h"
#include "base/socket_address.h"

namespace mcast {
namespace {

constexpr size_t kReadAtOnce = 64u << 10;

}  // namespace

Result<std::vector<Endpoint>> resolve(const NetAddress& address) {
  return resolve_host(address.host, address.port);
}

AdmissionLink::AdmissionLink(std::vector<Endpoint> addresses) : addresses_(std::move(addresses)) {
  std::reverse(addresses_.begin(), addresses_.end());
  failure_ = connect_next();
}

AdmissionLink::~AdmissionLink() {
  if (fd_ >= 0) ::close(fd_);
}

// Tries the next address that does not fail at once. Returns an error if none is left.
Status AdmissionLink::connect_next() {
  Status why(Code::kUnavailable, "it has no address");
  while (!addresses_.empty()) {
    const Endpoint to = addresses_.back();
    addresses_.pop_back();
    if (fd_ >= 0) ::close(fd_);
    fd_ = ::socket(family_of(to.address), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd_ < 0) {
      why = Status::system(errno, "no socket");
      continue;
    }
    connecting_ = true;
    if (connect_to(fd_, to) == 0 || errno == EINPROGRESS || errno == EINTR) {
      return {};
    }
    why = Status::system(errno, "cannot connect");
  }
  return why;
}

short AdmissionLink::events() const {
  return static_cast<short>(connecting_ || !out_.empty() ? POLLIN | POLLOUT : POLLIN);
}

void AdmissionLink::send_text(const std::string& text) {
  out_ += wire::framed(text);
  // A Bye may be the last data before the end.
  if (!connecting_) (void)write();
}

Status AdmissionLink::serve(short ready) {
  if (!failure_.ok()) return failure_;
  if (connecting_) {
    if ((ready & (POLLOUT | POLLERR | POLLHUP)) == 0) return {};
    if (Status status = connected(); !status.ok() || connecting_) return status;
  }
  if (Status status = write(); !status.ok()) return status;
  return (ready & (POLLIN | POLLERR | POLLHUP)) != 0 ? read() : Status();
}

Status AdmissionLink::connected() {
  int error = 0;
  socklen_t size = sizeof error;
  if (::getsockopt(fd_, SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
  if (error == 0) {
    connecting_ = false;
    return {};
  }
  Status why = Status::system(error, "cannot connect");
  return connect_next().ok() ? Status() : why;
}

Status AdmissionLink::write() {
  while (!out_.empty()) {
    const ssize_t sent = ::send(fd_, out_.data(), out_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return {};
    if (sent < 0) return Status::system(errno, "the connection broke");
    out_.erase(0, static_cast<size_t>(sent));
  }
  return {};
}

Status AdmissionLink::read() {
  std::array<char, kReadAtOnce> buffer;
  const ssize_t got = ::recv(fd_, buffer.data(), buffer.size(), MSG_DONTWAIT);
  if (got > 0) {
    in_.append({buffer.data(), static_cast<size_t>(got)});
    return {};
  }
  if (got == 0) return Status(Code::kPeerLost, "it has closed the connection");
  if (errno == EINTR || errno == EAGAIN || errno == EWOULDBLOCK) return {};
  return Status::system(errno, "the connection broke");
}

Result<bool> AdmissionLink::next(wire::Admission& record, std::string& text) {
  if (in_.next(text)) {
    Status status = wire::decode_admission(text, record);
    if (status.ok()) return true;
    return status;
  }
  if (in_.broken()) {
    return Status(Code::kInvalidArgument, "its message is not a record of an aggregator");
  }
  return false;
}

}  // namespace mcast
