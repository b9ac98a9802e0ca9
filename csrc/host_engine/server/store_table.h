// The stores of jobs that a host engine keeps: keys and values, and the clients that wait for keys.
// A state machine: records and the time are inputs, replies are outputs.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <string>
#include <vector>

#include "base/ip_address.h"
#include "base/source_shares.h"
#include "base/types.h"
#include "wire/store_record.h"

namespace mcast::service {

// Not thread-safe.
class StoreTable {
 public:
  using Client = uint64_t;
  using Answer = std::function<void(Client, const wire::StoreRecord&)>;
  // The account of each source (the address from which its connections come) covers everything it
  // keeps here: connections, stores, keys and values, awaited keys, requests and replies in
  // transfer. All sources together have kMostBytes; one source has at most the share left by the
  // others (SourceShares).
  static constexpr size_t kMostBytes = size_t{256} << 20;
  static constexpr size_t kEntryBytes = 128;                // in addition to key and value
  static constexpr size_t kStoreBytes = size_t{1} << 10;    // of a store without entries
  static constexpr size_t kClientBytes = size_t{32} << 10;  // including one request or reply

  explicit StoreTable(Answer answer) : answer_(std::move(answer)) {}

  // Call it before any other function for a client. Returns false if its source has used its share.
  bool admit(Client client, const IpAddress& source);
  // Returns true if there is room for a request of this many bytes, which is released by
  // on_record() or refuse().
  bool expect(Client client, size_t bytes);
  // Replies to a request for which there is no room.
  void refuse(Client client);
  // Returns false if no correct client sends this record; the client is to be cut off.
  bool on_record(Client client, const wire::StoreRecord& record, Nanos now);
  // The client has read its last reply.
  void on_taken(Client client);
  // A store is deleted with its last client: a job that is restarted under its name finds no old
  // keys.
  void on_end(Client client);
  // Returns true while the client's request has no reply. (Each of its records gets one,
  // immediately or later.)
  bool waits(Client client) const;
  // Replies to clients whose time limit has passed.
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
    size_t missing = 0;  // index of the key that was missing at the last lookup
  };
  struct Value {
    std::string text;
    IpAddress source{};  // the source whose account it counts in
  };
  struct Store {
    std::map<std::string, Value> values;
    std::list<Waiter> waiters;
    size_t clients = 0;
    IpAddress source{};  // the source whose account it counts in
  };
  struct Member {
    IpAddress source{};
    std::string store;
    bool open = false;
    bool waits = false;
    size_t question = 0, answer = 0;  // bytes in the account, in addition to kClientBytes
  };
  using Parts = std::vector<std::string>;

  bool open(Client client, Member& member, const Parts& parts);
  bool wait(Client client, Store& store, const Parts& parts, bool values, Nanos now);
  bool change(Client client, Store& store, const wire::StoreRecord& record);
  // The new value of `key` is `head` followed by `tail`. Returns false if there is no room;
  // `client` was sent that error.
  bool put(Client client, Store& store, const std::string& key, const std::string& head,
           const std::string& tail = "");
  void list(Client client, const Store& store);
  void wake(Store& store);
  // The waiter's entry is free again: it is about to get a reply, or is gone.
  void let_go(const Waiter& waiter);
  bool all_there(const Store& store, const Parts& keys) const;
  bool all_there(const Store& store, Waiter& waiter) const;
  void give(const Store& store, const Waiter& waiter);
  // Returns true if a reply of this many parts and bytes may be made; otherwise the client was sent
  // the reason. Called before anything of the reply's size is built.
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
  SourceShares<IpAddress> shares_{kMostBytes};
};

}  // namespace mcast::service
