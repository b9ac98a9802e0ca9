// Common parts of the registrar's tests: a group's side and two aggregators.
#pragma once

#include <gtest/gtest.h>

#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "aggregation/aggregator_stub.h"
#include "aggregation/member/registrar_thread.h"
#include "base/log.h"

namespace mcast::test {

inline constexpr uint64_t kGroup = 42;

// A group's side: records the offers in order.
class Offers {
 public:
  Registrar::Job job(const std::vector<NetAddress>& aggregators) {
    Registrar::Job job;
    job.aggregators = aggregators;
    job.ask.version = "1.2.3";
    job.ask.protocol = 6;
    job.ask.transport = "udp";
    job.ask.tag = kGroup;
    job.ask.name = "grads";
    job.ask.uids = {1, 2, 3};
    job.ask.host_of = {0, 1, 2};
    job.ask.chunk = 1408;
    job.ask.incast = 2 << 20;
    job.ask.fold = "rank";
    job.ask.aggregate = "careful";
    job.offer = [this](std::vector<wire::StationEntry> stations) {
      const std::lock_guard<std::mutex> held(mutex_);
      offers_.push_back(std::move(stations));
      came_.notify_all();
    };
    return job;
  }
  // The uids of the next offer, or nothing if none arrived within `patience`.
  std::optional<std::vector<uint64_t>> next(Nanos patience = 5 * kSecond) {
    std::unique_lock<std::mutex> held(mutex_);
    if (!came_.wait_for(held, std::chrono::nanoseconds(patience),
                        [this] { return !offers_.empty(); })) {
      return std::nullopt;
    }
    std::vector<uint64_t> uids;
    for (const wire::StationEntry& s : offers_.front()) uids.push_back(s.uid);
    offers_.pop_front();
    return uids;
  }

 private:
  std::mutex mutex_;
  std::condition_variable came_;
  std::deque<std::vector<wire::StationEntry>> offers_;
};

using Uids = std::vector<uint64_t>;

inline std::string state(const Registrar& registrar, size_t aggregator = 0) {
  return registrar.stats(kGroup).at(aggregator).state;
}
inline std::string reason(const Registrar& registrar, size_t aggregator = 0) {
  return registrar.stats(kGroup).at(aggregator).reason;
}
inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

class RegistrarTest : public testing::Test {
 protected:
  RegistrarTest() { set_log_level(LogLevel::kError); }
  ~RegistrarTest() override { set_log_level(LogLevel::kWarn); }
  // Declared after the offers and the aggregators, whose connections it closes.
  Offers offers;
  AggregatorStub a, b;
  RegistrarThread registrar;
};

}  // namespace mcast::test
