// Thin wrappers of the socket and epoll system calls: options with readable errors.
// Single-threaded.
#pragma once

#include <sys/epoll.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "base/fd.h"
#include "base/ip_address.h"
#include "base/status.h"
#include "base/types.h"

namespace mcast {

// Nonblocking, close-on-exec. `type`: SOCK_DGRAM or SOCK_STREAM; `address`: the socket's own or its
// peer's, which decides whether it is one of IPv4 or of IPv6 (then of IPv6 only).
Result<Fd> open_socket(int type, const IpAddress& address);
Status set_option(int fd, int level, int name, int value, const char* what);
// Makes a TCP connection end within two minutes after the peer's host has vanished.
void keep_alive(int fd);
// Requests a SO_RCVBUF or SO_SNDBUF of `bytes`, beyond the system limit if permitted. Returns the
// kernel's figure (twice the granted size; bookkeeping is charged to it too).
size_t set_buffer(int fd, bool receive, uint64_t bytes);
// getsockopt(SO_ERROR): returns the pending error and clears it. Returns errno if the call itself
// fails.
int pending_error(int fd);

// A TCP socket that listens at `at` (port 0: any; no address: all addresses of both versions, or of
// IPv4 on a host without IPv6), and restarts at a port that a previous run has left. Sets `at` to
// the address it got.
Result<Fd> listen_at(Endpoint& at, int backlog);

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
  // Returns up to events.size() ready descriptors; 0 after `timeout` (kNever: no timeout) or a
  // signal.
  size_t wait(std::span<epoll_event> events, Nanos timeout);
  // For the child of a fork, which may have happened at any moment of another thread's call.
  // abandon() closes the instance; abandon_watched() also closes all watched descriptors, and their
  // owners must not close them again.
  void abandon() noexcept { fd_.reset(); }
  void abandon_watched() noexcept;

 private:
  // Watched descriptors; -1 is a free place. Blocks are added and never removed, places are filled
  // and emptied by single stores, so the list is consistent at every moment.
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
