// Thin wrappers of the socket and epoll system calls: an owning descriptor, options with readable
// errors, IPv4 addresses. Single-threaded.
#pragma once

#include <netinet/in.h>
#include <sys/epoll.h>

#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "base/status.h"
#include "base/types.h"

namespace mcast {

// Owns one file descriptor.
class Fd {
 public:
  Fd() noexcept = default;
  explicit Fd(int fd) noexcept : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  ~Fd() { reset(); }

  int get() const noexcept { return fd_; }
  bool valid() const noexcept { return fd_ >= 0; }
  void reset() noexcept;  // close(2) and nothing else: safe in the child of a fork

 private:
  int fd_ = -1;
};

// Nonblocking, close-on-exec. `type`: SOCK_DGRAM or SOCK_STREAM.
Result<Fd> open_socket(int type);
Status set_option(int fd, int level, int name, int value, const char* what);
// Asks for a SO_RCVBUF or SO_SNDBUF of `bytes`, beyond the system limit where we are allowed to.
// Returns the kernel's figure (twice what it grants, the amount that bookkeeping is charged to).
size_t set_buffer(int fd, bool receive, uint64_t bytes);
// getsockopt(SO_ERROR): the pending error, which it clears. errno if the call itself fails.
int pending_error(int fd);

sockaddr_in ipv4_address(in_addr address, uint16_t port);
// kInvalidArgument unless `host` is a numeric IPv4 address.
Result<sockaddr_in> parse_ipv4(const std::string& host, uint16_t port);
std::string to_text(in_addr address);
std::string to_text(const sockaddr_in& address);  // "192.0.2.1:80"

// One epoll instance. Descriptors are removed explicitly before they are closed, because a copy in
// a forked child would keep them registered.
class Epoll {
 public:
  Status open();
  int fd() const noexcept { return fd_.get(); }
  Status add(int fd, uint32_t events, void* tag);
  void modify(int fd, uint32_t events, void* tag);
  void remove(int fd);
  // Up to events.size() ready descriptors; 0 after `timeout` (kNever: none) or a signal.
  size_t wait(std::span<epoll_event> events, Nanos timeout);
  void abandon() noexcept { fd_.reset(); }

 private:
  Fd fd_;
};

}  // namespace mcast
