// One thread, one transport, one job: drives a station in the product. Jobs share only the CPUs and
// the link, so a job that floods or breaks its stations does not harm others.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "aggregation/server/station_loop.h"
#include "aggregation/server/station_runner.h"

namespace mcast::service {

class StationThread final : public StationRunner {
 public:
  // `transport` must expect no peers yet. Throws if no thread can be started.
  StationThread(StationSpec spec, std::unique_ptr<Transport> transport);
  // Ends the thread, within the time limit that end() was given.
  ~StationThread() override;

  wire::Accept::Station where() const override { return station_.where(); }
  uint32_t largest_datagram() const override { return station_.largest_datagram(); }
  void end(Nanos patience) override;
  std::optional<std::string> ended() const override;
  bool finished() const override { return finished_.load(); }
  StationReport report() const override;

 private:
  void loop();
  // Returns true if any frame had arrived.
  bool turn();
  // Sleeps until traffic, a wake-up or the next deadline.
  void sleep();
  void say_goodbye();
  void publish(Nanos now);

  const StationSpec spec_;
  StationLoop station_;
  // Used by the thread, once it runs.
  Nanos now_ = 0, published_ = 0;

  std::atomic<Nanos> end_at_{kNever};  // end of the goodbye; kNever: end() was not called
  std::atomic<bool> finished_{false};
  mutable std::mutex mutex_;
  StationReport report_;              // under mutex_
  std::optional<std::string> ended_;  // under mutex_
  std::thread thread_;
};

}  // namespace mcast::service
