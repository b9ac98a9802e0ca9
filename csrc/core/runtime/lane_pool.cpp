// A lane is found by the settings that its sockets and its thread depend on. A lane that has lost a
// peer can never talk to that process again (neither side would know what the other had received),
// so the next group gets a new one, with new sockets and a new identity; the poisoned one ends with
// its last group. The same applies to a lane whose interface has a new address.
#include "runtime/lane_pool.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <thread>
#include <utility>

#include "base/log.h"
#include "runtime/lane_cpu.h"
#include "runtime/security.h"
#include "runtime/transport_choice.h"
#include "transport/fault_classifier.h"
#include "transport/interceptor.h"

namespace mcast {
namespace {

// To close connections to remaining peers in order.
constexpr Nanos kPoisonedPatience = 500 * kMilli;

// Gives each lane a separate transmit queue by XPS.
int pin_cpu(const Config& config, LaneId lane) {
  cpu_set_t mask;
  if (config.pin == 0 || ::sched_getaffinity(0, sizeof mask, &mask) != 0) return -1;
  std::vector<int> allowed;
  for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
    if (CPU_ISSET(static_cast<size_t>(cpu), &mask)) allowed.push_back(cpu);
  }
  const auto number = [](const char* name, int least) {
    const char* const text = getenv(name);
    return static_cast<size_t>(text != nullptr ? std::max(least, atoi(text)) : least);
  };
  const auto online = static_cast<size_t>(std::max(1L, ::sysconf(_SC_NPROCESSORS_ONLN)));
  return lane_cpu(allowed, online, kLanes, index_of(lane), number("LOCAL_WORLD_SIZE", 1),
                  number("LOCAL_RANK", 0));
}

}  // namespace

Result<std::shared_ptr<LaneThread>> LanePool::lane_for(const Config& config, LaneId id,
                                                       const TransportType& type, uint32_t number,
                                                       const crypto::JobSecret* secret) {
  const std::string key = (secret ? secret->fingerprint() : "") + "\n" + config.lane_key() +
                          type.name + " lane " + std::to_string(index_of(id)) + "." +
                          std::to_string(number);
  if (closed_) return Status(Code::kClosed, "the engine is shut down");
  if (const auto it = lanes_.find(key); it != lanes_.end()) {
    if (!it->second->poisoned() && it->second->transport().has_its_address()) return it->second;
    poisoned_.push_back(it->second);
    lanes_.erase(it);
  }
  sweep_poisoned();
  std::shared_ptr<const LaneIdentity> identity;
  if (secret != nullptr) {
    Result<std::shared_ptr<const LaneIdentity>> own = LaneIdentity::make(config, *secret);
    if (!own.ok()) return own.status();
    identity = std::move(own).value();
  }
  Result<std::unique_ptr<Transport>> made =
      type.make(config, id, identity ? identity->endpoint() : nullptr);
  if (!made.ok()) return made.status();
  Result<std::unique_ptr<Transport>> wrapped =
      intercept(std::move(made).value(), config.faults, &wire_fault_classifier());
  if (!wrapped.ok()) return wrapped.status().with_context("setting faults (MCAST_FAULTS)");
  const bool multicast = id == LaneId::kMulticast;
  LaneAccounts accounts{multicast ? arrived_ : nullptr, context_.share, nullptr,
                        config.watches_sources(), context_.may_reach};
  // The first ones are always granted to the client.
  if (context_.threads && lanes_.size() >= kLanes) {
    Result<std::shared_ptr<void>> place = context_.threads->take(1);
    if (!place.ok()) return place.status();
    accounts.hold = std::move(place).value();
  }
  auto lane = std::make_shared<LaneThread>(
      std::move(wrapped).value(),
      (multicast ? "mcast-lane" : "mcast-red") + std::to_string(lanes_.size() / kLanes),
      number == 0 ? pin_cpu(config, id) : -1, std::move(accounts));
  log(LogLevel::kInfo, "%s lane: transport %s", multicast ? "multicast" : "reduce",
      lane->description().c_str());
  lane->set_identity(std::move(identity));
  lanes_[key] = lane;
  return lane;
}

Result<Lanes> LanePool::lanes_for(const Config& config, const TransportType& type, uint32_t number,
                                  const crypto::JobSecret* secret) {
  const std::lock_guard<std::mutex> held(mutex_);
  Lanes made;
  for (const LaneId id : kBothLanes) {
    Result<std::shared_ptr<LaneThread>> lane =
        lane_for(config, id, type, id == LaneId::kMulticast ? number : 0, secret);
    if (!lane.ok()) return lane.status();
    made[id] = std::move(lane).value();
  }
  return made;
}

void LanePool::retire(Lanes lanes) {
  const std::lock_guard<std::mutex> held(mutex_);
  for (const LaneId id : kBothLanes) {
    LaneDriver* const which = lanes[id].get();
    lanes[id].reset();
    const auto it = std::find_if(lanes_.begin(), lanes_.end(), [which](const auto& entry) {
      return entry.second.get() == which;
    });
    if (it == lanes_.end() || it->second.use_count() > 1) continue;
    it->second->stop(0);
    lanes_.erase(it);
  }
}

std::string LanePool::problem_of(const TransportType& type, const Config& config) {
  const std::string key =
      std::string(type.name) + "\n" + config.transport + "\n" + config.lane_key();
  const std::lock_guard<std::mutex> held(mutex_);
  const auto it = problems_.find(key);
  if (it != problems_.end()) return it->second;
  return problems_[key] = transport_problem(type, config);
}

// Ends the poisoned lanes that no group uses any more.
void LanePool::sweep_poisoned() {
  for (size_t i = 0; i < poisoned_.size();) {
    if (poisoned_[i].use_count() > 1) {
      i++;
      continue;
    }
    poisoned_[i]->stop(kPoisonedPatience);
    poisoned_.erase(poisoned_.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

std::vector<std::shared_ptr<LaneThread>> LanePool::close() {
  const std::lock_guard<std::mutex> held(mutex_);
  closed_ = true;
  std::vector<std::shared_ptr<LaneThread>> all = poisoned_;
  for (const auto& [key, lane] : lanes_) all.push_back(lane);
  return all;
}

void LanePool::abandon_after_fork() noexcept {
  for (const auto& [key, lane] : lanes_) lane->abandon_after_fork();
  for (const auto& lane : poisoned_) lane->abandon_after_fork();
}

}  // namespace mcast
