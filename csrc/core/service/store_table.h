// The stores of jobs that an engine of the host keeps: keys and values, and who waits for keys. A
// state machine: records and the time are passed in, answers come out.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <string>
#include <vector>

#include "base/source_shares.h"
#include "base/types.h"
#include "wire/store_record.h"

namespace mcast::service {

// Not thread-safe.
class StoreTable {
 public:
  using Client = uint64_t;
  using Answer = std::function<void(Client, const wire::StoreRecord&)>;
  // The account of each source (the address that its connections come from) has what it keeps here:
  // connections, stores, keys and values, keys that are waited for, questions and answers that are
  // under way. All sources together have kMostBytes, one at most what is left for the others
  // (SourceShares).
  static constexpr size_t kMostBytes = size_t{256} << 20;
  static constexpr size_t kEntryBytes = 128;                // besides key and value
  static constexpr size_t kStoreBytes = size_t{1} << 10;    // of a store without an entry
  static constexpr size_t kClientBytes = size_t{32} << 10;  // a question or an answer included

  explicit StoreTable(Answer answer) : answer_(std::move(answer)) {}

  // Comes before anything else of a client. False: its source has its share.
  bool admit(Client client, uint32_t source);
  // Whether there is room for a question of so many bytes, which is freed by on_record() or
  // refuse().
  bool expect(Client client, size_t bytes);
  // Answers a question for which there is no room.
  void refuse(Client client);
  // False: no sound client says that; it is to be cut off.
  bool on_record(Client client, const wire::StoreRecord& record, Nanos now);
  // The client has read its last answer.
  void on_taken(Client client);
  // A store goes with its last client: what is started again under its name finds nothing old.
  void on_end(Client client);
  // What the client has asked has no answer yet. (Each of its records gets one, at once or later.)
  bool waits(Client client) const;
  // Answers who has waited long enough.
  void advance(Nanos now);
  Nanos deadline() const;
  size_t stores() const { return stores_.size(); }
  size_t bytes() const { return shares_.used(); }

 private:
  struct Waiter {
    Client client;
    std::vector<std::string> keys;
    bool values;
    Nanos until;
    size_t cost;
    size_t missing = 0;  // the key that was not there when it was looked for last
  };
  struct Value {
    std::string text;
    uint32_t source = 0;  // which has it in its account
  };
  struct Store {
    std::map<std::string, Value> values;
    std::list<Waiter> waiters;
    size_t clients = 0;
    uint32_t source = 0;  // which has it in its account
  };
  struct Member {
    uint32_t source = 0;
    std::string store;
    bool open = false;
    bool waits = false;
    size_t question = 0, answer = 0;  // bytes of the account, besides kClientBytes
  };
  using Parts = std::vector<std::string>;

  bool open(Client client, Member& member, const Parts& parts);
  bool wait(Client client, Store& store, const Parts& parts, bool values, Nanos now);
  bool change(Client client, Store& store, const wire::StoreRecord& record);
  // The new value of `key`: `head` and `tail`. False: there is no room, which `client` was told.
  bool put(Client client, Store& store, const std::string& key, const std::string& head,
           const std::string& tail = "");
  void list(Client client, const Store& store);
  void wake(Store& store);
  // The waiter's place is free again: it is about to be answered, or gone.
  void let_go(const Waiter& waiter);
  bool all_there(const Store& store, const Parts& keys) const;
  bool all_there(const Store& store, Waiter& waiter) const;
  void give(const Store& store, const Waiter& waiter);
  // Whether an answer of so many parts with so many bytes together may be made; else the client is
  // told why not. Asked before anything of the answer's size is built.
  bool room_for(Client client, size_t parts, size_t bytes);
  void done(Client client, Parts parts = {}) {
    answer_(client, {wire::StoreOp::kDone, std::move(parts)});
  }
  void fail(Client client, const std::string& why) {
    answer_(client, {wire::StoreOp::kFailed, {why}});
  }

  const Answer answer_;
  std::map<std::string, Store> stores_;
  std::map<Client, Member> members_;
  SourceShares shares_{kMostBytes};
};

}  // namespace mcast::service
