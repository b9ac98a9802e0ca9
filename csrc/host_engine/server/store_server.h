// The stores of jobs at a host engine: a thread that serves other engines' relays (store_relay.h)
// over TCP.
#pragma once

#include <netinet/in.h>
#include <poll.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/fd.h"
#include "base/log.h"
#include "base/status.h"
#include "host_engine/server/store_table.h"

namespace mcast::service {

// Addresses from which engines may connect; empty: all.
using StoreFilter = std::function<bool(const IpAddress& address)>;

// One caller makes the calls.
class StoreServer {
 public:
  // Time limit for naming a store, and for progress of a request or reply in transfer. A connection
  // with neither may be silent for as long as its job runs.
  static constexpr Nanos kOpenPatience = 5 * kSecond;
  static constexpr Nanos kStallPatience = 30 * kSecond;

  // `port` on all addresses; 0: any. Returns an error if it is not available (yet).
  static Result<std::unique_ptr<StoreServer>> start(uint16_t port, StoreFilter filter = nullptr);
  ~StoreServer();
  uint16_t port() const { return port_; }
  // Accepts no new connections; existing ones continue.
  void stop_listening() { listening_ = false; }
  size_t connections() const { return count_; }

 private:
  struct Connection {
    Fd fd;
    Nanos since = 0;    // when it connected, or last made progress
    bool open = false;  // it has named a store
    bool ended = false;
    bool expected = false;  // the table has room for the request being read
    size_t passed = 0;      // bytes of a refused request still to be skipped
    std::string out;
    wire::StoreReader in;
  };
  explicit StoreServer(StoreFilter filter) : filter_(std::move(filter)) {}
  void run();
  void turn(Nanos now);
  void wait();
  void accept_all(Nanos now);
  void read(StoreTable::Client id, Connection& c, Nanos now);
  void expect(StoreTable::Client id, Connection& c);
  void take(StoreTable::Client id, Connection& c, Nanos now);
  void write(StoreTable::Client id, Connection& c, Nanos now);
  void sweep(Nanos now);

  const StoreFilter filter_;
  uint16_t port_ = 0;
  std::atomic<bool> listening_{true}, stopping_{false};
  std::atomic<size_t> count_{0};
  Fd listener_;
  std::map<StoreTable::Client, Connection> connections_;
  std::vector<pollfd> list_;             // list of the last wait()
  std::vector<StoreTable::Client> ids_;  // client of each entry; 0: the listener
  StoreTable::Client next_ = 1, served_ = 0;
  Nanos accept_from_ = 0;  // set after a lack of descriptors
  RateLimit warnings_{10 * kSecond};
  StoreTable table_{[this](StoreTable::Client client, const wire::StoreRecord& record) {
    const auto it = connections_.find(client);
    if (it != connections_.end()) it->second.out += wire::bytes_of(record);
  }};
  std::thread thread_;
};

}  // namespace mcast::service
