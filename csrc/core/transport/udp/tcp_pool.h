// Owns the connections of a TcpStream and frees them.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "transport/udp/tcp_connection.h"

namespace mcast {

class TcpPool {
 public:
  explicit TcpPool(Epoll& epoll) : epoll_(epoll) {}  // outlives this

  // Adds a connection that is watched for `events`; returns null if it cannot be watched.
  TcpConnection* add(Fd fd, TcpConnection::State state, uint32_t events) {
    auto c = std::make_unique<TcpConnection>(epoll_, std::move(fd), state);
    if (!c->watch(events).ok()) return nullptr;
    c->index = live_.size();
    live_.push_back(std::move(c));
    return live_.back().get();
  }
  // Closes the connection now; bury() frees it. Has no effect the second time.
  void retire(TcpConnection& c) {
    if (c.state == TcpConnection::State::kDead) return;
    c.close();
    const size_t index = c.index;
    graveyard_.push_back(std::move(live_[index]));
    if (index + 1 != live_.size()) {
      live_[index] = std::move(live_.back());
      live_[index]->index = index;
    }
    live_.pop_back();
  }
  // Frees the retired connections: no event can refer to them any more.
  void bury() { graveyard_.clear(); }

  const std::vector<std::unique_ptr<TcpConnection>>& live() const noexcept { return live_; }

 private:
  Epoll& epoll_;
  std::vector<std::unique_ptr<TcpConnection>> live_;
  std::vector<std::unique_ptr<TcpConnection>> graveyard_;
};

}  // namespace mcast
