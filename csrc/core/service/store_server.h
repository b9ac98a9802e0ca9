// The stores of jobs at an engine of the host: a thread that serves other engines' relays
// (store_relay.h) over TCP.
#pragma once

#include <netinet/in.h>
#include <poll.h>

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/fd.h"
#include "base/status.h"
#include "service/store_table.h"

namespace mcast::service {

// The calls are one caller's.
class StoreServer {
 public:
  static constexpr size_t kMostConnections = 8192;
  // Time to say which store it is about.
  static constexpr Nanos kOpenPatience = 5 * kSecond;

  // `port` of all addresses; 0: any. Not ok: it cannot be had (yet).
  static Result<std::unique_ptr<StoreServer>> start(uint16_t port);
  ~StoreServer();
  uint16_t port() const { return port_; }
  // No new connections; those that there are go on.
  void stop_listening() { listening_ = false; }
  size_t connections() const { return count_; }

 private:
  struct Connection {
    Fd fd;
    Nanos since = 0;
    bool open = false;  // it has named a store
    bool ended = false;
    std::string out;
    wire::StoreReader in;
  };
  StoreServer() = default;
  void run();
  void accept_all(Nanos now);
  static void read(Connection& c);
  void take(StoreTable::Client id, Connection& c, Nanos now);
  static void write(Connection& c);
  void sweep(Nanos now);

  uint16_t port_ = 0;
  std::atomic<bool> listening_{true}, stopping_{false};
  std::atomic<size_t> count_{0};
  Fd listener_;
  std::map<StoreTable::Client, Connection> connections_;
  StoreTable::Client next_ = 1;
  StoreTable table_{[this](StoreTable::Client client, const wire::StoreRecord& record) {
    const auto it = connections_.find(client);
    if (it != connections_.end()) it->second.out += wire::bytes_of(record);
  }};
  std::thread thread_;
};

}  // namespace mcast::service
