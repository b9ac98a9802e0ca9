// An aggregator: a process's service for process groups that name it. It admits jobs
// (aggregation/server/jobs.h) over TCP, runs their stations, and reports its status on a unix
// socket. It handles no signals, so that tests and programs can have one in their own process.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "aggregation/server/admission_listener.h"
#include "aggregation/server/jobs.h"
#include "aggregation/server/options.h"
#include "base/log.h"
#include "base/mpsc_queue.h"
#include "daemon/status_socket.h"

namespace mcast::service {

class Aggregator {
 public:
  // Listens, and serves from now on. Returns an error if the requested address, interface or status
  // socket is not available. May throw if no thread can be started.
  static Result<std::unique_ptr<Aggregator>> start(const Options& options, DealWork deal);
  // Ends immediately, like stop(0).
  ~Aggregator();
  Aggregator(const Aggregator&) = delete;
  Aggregator& operator=(const Aggregator&) = delete;

  // Address at which groups ask: HOST:PORT, with the assigned port if 0 was requested.
  std::string address() const;
  uint16_t port() const;
  // Empty if there is none, since its folder is not available or another process has it.
  const std::string& status_path() const { return status_.path(); }

  // Notifies the groups that it is about to end, gives them at most `patience` to leave, sends the
  // goodbye to the remaining ones, and ends. Returns immediately; if called again, the earlier end
  // counts. Any thread.
  void end(Nanos patience);
  // Returns true once it has ended. Any thread.
  bool over() const { return over_.load(); }
  // Calls end() and waits until it has ended. One thread.
  void stop(Nanos patience);

  // Any thread; waits for the service's thread. Empty after stop().
  Report report();

 private:
  Aggregator(const Options& options, std::shared_ptr<const AskGuard> guard, DealWork deal);
  Status open();
  void loop();
  // Returns false once it has ended.
  bool turn();
  void wait_and_serve();
  Report describe(Nanos now) const;
  void wake() noexcept;

  const Options options_;
  AdmissionListener door_;
  Jobs jobs_;
  StatusSocket status_;
  Fd wake_;
  Nanos started_ = 0;
  std::vector<pollfd> list_;
  MpscQueue<std::function<void()>> commands_;
  std::vector<std::function<void()>> batch_;
  std::atomic<Nanos> stop_at_{kNever};  // end of the time that groups have to leave
  std::atomic<bool> over_{false};
  RateLimit trouble_{10 * kSecond};
  std::thread thread_;
};

}  // namespace mcast::service
