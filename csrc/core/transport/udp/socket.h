// Thin wrappers of the socket and epoll system calls: options with readable errors, IPv4 addresses.
// Single-threaded.
#pragma once

#include <netinet/in.h>
#include <sys/epoll.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "base/fd.h"
#include "base/status.h"
#include "base/types.h"

namespace mcast {

// Nonblocking, close-on-exec. `type`: SOCK_DGRAM or SOCK_STREAM.
Result<Fd> open_socket(int type);
Status set_option(int fd, int level, int name, int value, const char* what);
// A TCP connection whose other host has vanished ends within two minutes.
void keep_alive(int fd);
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
  Epoll() = default;
  Epoll(const Epoll&) = delete;
  Epoll& operator=(const Epoll&) = delete;
  ~Epoll();
  Status open();
  int fd() const noexcept { return fd_.get(); }
  Status add(int fd, uint32_t events, void* tag);
  void modify(int fd, uint32_t events, void* tag);
  void remove(int fd);
  // Up to events.size() ready descriptors; 0 after `timeout` (kNever: none) or a signal.
  size_t wait(std::span<epoll_event> events, Nanos timeout);
  // In the child of a fork, which may have been made at any moment of a call of another thread:
  // closes the instance; or also all that it watches, whose owners must not close it again.
  void abandon() noexcept { fd_.reset(); }
  void abandon_watched() noexcept;

 private:
  // What is watched: -1 is a free place. Blocks are added and stay, places are filled and emptied
  // by single stores, so the list is whole at every moment.
  struct Block {
    Block() noexcept {
      for (auto& place : places) place.store(-1, std::memory_order_relaxed);
    }
    std::array<std::atomic<int>, 62> places;
    std::atomic<Block*> next{nullptr};
  };
  // Puts `to` into the first place that holds `from`.
  void replace(int from, int to);

  Fd fd_;
  Block watched_;
};

}  // namespace mcast
