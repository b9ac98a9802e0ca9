// NameLookup: where hosts are, asked for on a thread of its own, since a name server that does not
// answer takes many seconds, in which the caller has others to serve. Addresses that are numbers
// are no matter of a name server and known at once.
//
// Threads: one that looks up, from start() on; the calls are one caller's.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/net_address.h"
#include "engine/admission_link.h"

namespace mcast {

class NameLookup {
 public:
  using Addresses = Result<std::vector<SocketAddress>>;
  using Resolve = std::function<Addresses(const NetAddress&)>;  // may take its time

  // `known`: when an answer has come. On the thread that looks up; must not call back.
  NameLookup(Resolve resolve, std::function<void()> known);
  ~NameLookup() { stop(); }
  NameLookup(const NameLookup&) = delete;
  NameLookup& operator=(const NameLookup&) = delete;

  // Throws where no thread can be had. Idempotent.
  void start();
  // Waits for the lookup that is under way. Idempotent; no calls afterwards.
  void stop();
  // The answer, once; null: it is being looked up from now on, if it was not. What nobody has
  // taken is the answer to whoever asks next.
  std::unique_ptr<Addresses> take(const NetAddress& address);

 private:
  void loop();

  const Resolve resolve_;
  const std::function<void()> known_;
  std::mutex mutex_;
  std::condition_variable asked_;
  std::deque<NetAddress> queue_;                              // whose turn has not come
  std::map<NetAddress, std::unique_ptr<Addresses>> answers_;  // null: not yet
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace mcast
