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
  // Of all keys and values together, and of keys that somebody waits for; what keeping one takes is
  // counted besides.
  static constexpr size_t kMostBytes = size_t{256} << 20;
  static constexpr size_t kEntryBytes = 128;

  explicit StoreTable(Answer answer) : answer_(std::move(answer)) {}

  // False: no sound client says that; it is to be cut off.
  bool on_record(Client client, const wire::StoreRecord& record, Nanos now);
  // A store goes with its last client: what is started again under its name finds nothing old.
  void on_end(Client client);
  // What the client has asked has no answer yet. (Each of its records gets one, at once or later.)
  bool waits(Client client) const;
  // Answers who has waited long enough.
  void advance(Nanos now);
  Nanos deadline() const;
  size_t stores() const { return stores_.size(); }
  size_t bytes() const { return bytes_; }

 private:
  struct Waiter {
    Client client;
    std::vector<std::string> keys;
    bool values;
    Nanos until;
    size_t cost;
  };
  struct Store {
    std::map<std::string, std::string> values;
    std::list<Waiter> waiters;
    size_t clients = 0;
  };
  struct Member {
    std::string store;
    bool waits = false;
  };
  using Parts = std::vector<std::string>;

  bool open(Client client, const Parts& parts);
  bool wait(Client client, Store& store, const Parts& parts, bool values, Nanos now);
  bool change(Client client, Store& store, const wire::StoreRecord& record);
  // The new value of `key`. False: there is no room, which `client` was told.
  bool put(Client client, Store& store, const std::string& key, std::string value);
  void wake(Store& store);
  // The waiter's place is free again: it is about to be answered, or gone.
  void let_go(const Waiter& waiter);
  bool all_there(const Store& store, const Parts& keys) const;
  void give(const Store& store, const Waiter& waiter);
  // As an error where it is longer than a record may be.
  void say(Client client, const wire::StoreRecord& record);
  void done(Client client, Parts parts = {}) {
    say(client, {wire::StoreOp::kDone, std::move(parts)});
  }
  void fail(Client client, const std::string& why) {
    answer_(client, {wire::StoreOp::kFailed, {why}});
  }

  const Answer answer_;
  std::map<std::string, Store> stores_;
  std::map<Client, Member> members_;
  size_t bytes_ = 0;
};

}  // namespace mcast::service
