// IP addresses as system calls take and give them: the only place that knows sockaddr_in and
// sockaddr_in6.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstring>

#include "base/ip_address.h"

namespace mcast {

inline in6_addr in6_of(const IpAddress& address) {
  in6_addr out{};
  std::memcpy(&out, address.bytes.data(), sizeof out);
  return out;
}
inline in_addr in4_of(const IpAddress& address) { return in_addr{htonl(address.v4())}; }

class SocketAddress {
 public:
  SocketAddress() { size_ = sizeof bytes_; }  // room for one that a system call writes
  explicit SocketAddress(const Endpoint& endpoint) {
    if (endpoint.address.is_v4()) {
      sockaddr_in at{};
      at.sin_family = AF_INET;
      at.sin_addr = in4_of(endpoint.address);
      at.sin_port = htons(endpoint.port);
      put(at);
    } else {
      sockaddr_in6 at{};
      at.sin6_family = AF_INET6;
      at.sin6_addr = in6_of(endpoint.address);
      at.sin6_port = htons(endpoint.port);
      put(at);
    }
  }
  // `from` may be null. An address of another family is none.
  static SocketAddress copy(const sockaddr* from) {
    SocketAddress out;
    if (from != nullptr && (from->sa_family == AF_INET || from->sa_family == AF_INET6)) {
      out.size_ = from->sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
      std::memcpy(&out.bytes_, from, out.size_);
    }
    return out;
  }

  sockaddr* get() { return reinterpret_cast<sockaddr*>(&bytes_); }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&bytes_); }
  socklen_t size() const { return size_; }
  socklen_t* size_room() { return &size_; }
  int family() const { return bytes_.ss_family; }

  Endpoint endpoint() const {
    Endpoint out;
    if (family() == AF_INET) {
      sockaddr_in at{};
      std::memcpy(&at, &bytes_, sizeof at);
      out = {IpAddress::v4(ntohl(at.sin_addr.s_addr)), ntohs(at.sin_port)};
    } else if (family() == AF_INET6) {
      sockaddr_in6 at{};
      std::memcpy(&at, &bytes_, sizeof at);
      std::memcpy(out.address.bytes.data(), &at.sin6_addr, sizeof at.sin6_addr);
      out.port = ntohs(at.sin6_port);
    }
    return out;
  }

 private:
  template <typename T>
  void put(const T& at) {
    std::memcpy(&bytes_, &at, sizeof at);
    size_ = sizeof at;
  }

  sockaddr_storage bytes_{};
  socklen_t size_ = 0;
};

inline int family_of(const IpAddress& address) { return address.is_v6() ? AF_INET6 : AF_INET; }

// Return 0, or -1 and errno, as the system calls.
inline int bind_to(int fd, const Endpoint& endpoint) {
  const SocketAddress at(endpoint);
  return ::bind(fd, at.get(), at.size());
}
inline int connect_to(int fd, const Endpoint& endpoint) {
  const SocketAddress at(endpoint);
  return ::connect(fd, at.get(), at.size());
}
// The socket's own address, or its peer's; none if the call fails.
inline Endpoint local_endpoint(int fd) {
  SocketAddress at;
  return ::getsockname(fd, at.get(), at.size_room()) == 0 ? at.endpoint() : Endpoint{};
}
inline Endpoint peer_endpoint(int fd) {
  SocketAddress at;
  return ::getpeername(fd, at.get(), at.size_room()) == 0 ? at.endpoint() : Endpoint{};
}

}  // namespace mcast
