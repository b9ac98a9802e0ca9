// An aggregator: a process's service for process groups that name it. It admits jobs
// (service/jobs.h) over TCP, runs their stations, and tells of itself at a unix socket. Knows no
// signals, so that tests and programs can have one in their own process.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/log.h"
#include "base/mpsc_queue.h"
#include "service/door.h"
#include "service/jobs.h"
#include "service/options.h"
#include "service/status_socket.h"

namespace mcast::service {

class Aggregator {
 public:
  // Listens, and serves from now on. Not ok: the address, the interface or the status socket that
  // was asked for cannot be had. May throw where a thread cannot be had.
  static Result<std::unique_ptr<Aggregator>> start(const Options& options, DealWork deal);
  // Ends at once, as stop(0).
  ~Aggregator();
  Aggregator(const Aggregator&) = delete;
  Aggregator& operator=(const Aggregator&) = delete;

  // Where groups ask: HOST:PORT, the port being the one that was given where 0 was asked for.
  std::string address() const;
  uint16_t port() const;
  // Empty: there is none, since its folder cannot be had or another process has it.
  const std::string& status_path() const { return status_.path(); }

  // Tells the groups that it is about to end, gives them at most `patience` to go, says goodbye to
  // those that are left, and ends. Returns at once; called again, the earlier end counts. Any
  // thread.
  void end(Nanos patience);
  // All is over. Any thread.
  bool over() const { return over_.load(); }
  // end(), and waits until it is over. One thread.
  void stop(Nanos patience);

  // Any thread; waits for the service's thread. Empty after stop().
  Report report();

 private:
  Aggregator(const Options& options, std::shared_ptr<const AskGuard> guard, DealWork deal);
  Status open();
  void loop();
  // False: all is over.
  bool turn();
  void wait_and_serve();
  Report describe(Nanos now) const;
  void wake() noexcept;

  const Options options_;
  Door door_;
  Jobs jobs_;
  StatusSocket status_;
  Fd wake_;
  Nanos started_ = 0;
  std::vector<pollfd> list_;
  MpscQueue<std::function<void()>> commands_;
  std::vector<std::function<void()>> batch_;
  std::atomic<Nanos> stop_at_{kNever};  // the end of the groups' time to go
  std::atomic<bool> over_{false};
  RateLimit trouble_{10 * kSecond};
  std::thread thread_;
};

}  // namespace mcast::service
