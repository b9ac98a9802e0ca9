// The stores of jobs at an engine of the host: a thread that serves other engines' relays
// (store_relay.h) over TCP.
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
#include "service/store_table.h"

namespace mcast::service {

// Where the connections of engines may come from; empty: everywhere.
using StoreFilter = std::function<bool(uint32_t address)>;

// The calls are one caller's.
class StoreServer {
 public:
  // Time to name a store, and to go on with a question or an answer that is under way. A connection
  // with neither may be silent for as long as its job runs.
  static constexpr Nanos kOpenPatience = 5 * kSecond;
  static constexpr Nanos kStallPatience = 30 * kSecond;

  // `port` of all addresses; 0: any. Not ok: it cannot be had (yet).
  static Result<std::unique_ptr<StoreServer>> start(uint16_t port, StoreFilter filter = nullptr);
  ~StoreServer();
  uint16_t port() const { return port_; }
  // No new connections; those that there are go on.
  void stop_listening() { listening_ = false; }
  size_t connections() const { return count_; }

 private:
  struct Connection {
    Fd fd;
    Nanos since = 0;    // when it came, or last went on
    bool open = false;  // it has named a store
    bool ended = false;
    bool expected = false;  // the table has room for the question that is under way
    size_t passed = 0;      // bytes of a refused question that are still to come
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
  std::vector<pollfd> list_;             // of the last wait()
  std::vector<StoreTable::Client> ids_;  // whose; 0: the listener's
  StoreTable::Client next_ = 1, served_ = 0;
  Nanos accept_from_ = 0;  // after a lack of descriptors
  RateLimit warnings_{10 * kSecond};
  StoreTable table_{[this](StoreTable::Client client, const wire::StoreRecord& record) {
    const auto it = connections_.find(client);
    if (it != connections_.end()) it->second.out += wire::bytes_of(record);
  }};
  std::thread thread_;
};

}  // namespace mcast::service
