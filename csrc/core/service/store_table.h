// The stores of jobs that an engine of the host keeps: keys and values, and who waits for keys. A
// state machine: records and the time are passed in, answers come out.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <string>
#include <vector>

#include "base/types.h"
#include "wire/store_record.h"

namespace mcast::service {

// Not thread-safe.
class StoreTable {
 public:
  using Client = uint64_t;
  using Answer = std::function<void(Client, const wire::StoreRecord&)>;
  static constexpr size_t kMostStores = 256;
  static constexpr size_t kMostBytes = size_t{256} << 20;  // of all keys and values together

  explicit StoreTable(Answer answer) : answer_(std::move(answer)) {}

  // False: no sound client says that; it is to be cut off.
  bool on_record(Client client, const wire::StoreRecord& record, Nanos now);
  // A store goes with its last client: what is started again under its name finds nothing old.
  void on_end(Client client);
  // Answers who has waited long enough.
  void advance(Nanos now);
  Nanos deadline() const;
  // Whether the client has a question that is not answered.
  bool waits(Client client) const;
  size_t stores() const { return stores_.size(); }

 private:
  struct Waiter {
    Client client;
    std::vector<std::string> keys;
    bool values;
    Nanos until;
  };
  struct Store {
    std::map<std::string, std::string> values;
    std::list<Waiter> waiters;
    size_t clients = 0;
  };
  using Parts = std::vector<std::string>;

  bool open(Client client, const Parts& parts);
  bool wait(Client client, Store& store, const Parts& parts, bool values, Nanos now);
  bool change(Client client, Store& store, const wire::StoreRecord& record);
  // The new value of `key`. False: there is no room, which `client` was told.
  bool put(Client client, Store& store, const std::string& key, std::string value);
  void wake(Store& store);
  bool all_there(const Store& store, const Parts& keys) const;
  void give(const Store& store, const Waiter& waiter);
  void done(Client client, Parts parts = {}) { answer_(client, {wire::StoreOp::kDone, parts}); }
  void fail(Client client, const std::string& why) {
    answer_(client, {wire::StoreOp::kFailed, {why}});
  }

  const Answer answer_;
  std::map<std::string, Store> stores_;
  std::map<Client, std::string> store_of_;
  size_t bytes_ = 0;
};

}  // namespace mcast::service
