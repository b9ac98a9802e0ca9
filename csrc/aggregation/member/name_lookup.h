// NameLookup: resolves host names on a separate thread, because a name server that does not reply
// takes many seconds, in which the caller has others to serve. Numeric addresses are returned
// immediately, without a DNS lookup.
//
// Threads: one that resolves, from start() on. One caller makes all calls.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "aggregation/member/admission_link.h"
#include "base/net_address.h"

namespace mcast {

class NameLookup {
 public:
  using Addresses = Result<std::vector<Endpoint>>;
  using Resolve = std::function<Addresses(const NetAddress&)>;  // may take its time

  // `known` runs when a result has arrived, on the thread that resolves; it must not call back.
  NameLookup(Resolve resolve, std::function<void()> known);
  ~NameLookup() { stop(); }
  NameLookup(const NameLookup&) = delete;
  NameLookup& operator=(const NameLookup&) = delete;

  // Throws if no thread is available. Idempotent.
  void start();
  // Waits for the lookup in progress. Idempotent; no calls afterwards.
  void stop();
  // Returns the result, once. Null: the lookup is in progress, and starts now if necessary. A
  // result that nobody has taken is returned to the next caller.
  std::unique_ptr<Addresses> take(const NetAddress& address);

 private:
  void loop();

  const Resolve resolve_;
  const std::function<void()> known_;
  std::mutex mutex_;
  std::condition_variable asked_;
  std::deque<NetAddress> queue_;                              // lookups that have not begun
  std::map<NetAddress, std::unique_ptr<Addresses>> answers_;  // null: no result yet
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace mcast
