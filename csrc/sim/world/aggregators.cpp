// Names are those of the setting: aggregator i is "aggregator<i>", at the port on which the product
// listens. A restarted process has a new endpoint and a new uid.
#include "sim/world/aggregators.h"

#include <utility>

#include "base/rng.h"

namespace mcast::sim {
namespace {

constexpr uint16_t kPort = 7117;

std::string name_of(size_t i) { return "aggregator" + std::to_string(i); }

}  // namespace

Aggregators::Aggregators(SimNetwork& network, const std::vector<AggregatorSpec>& all, uint64_t seed,
                         const Place& place, SimSecurity& security)
    : network_(network), seed_(seed), place_(place), security_(security) {
  for (const AggregatorSpec& spec : all) all_.push_back({spec, nullptr});
  for (size_t i = 0; i < all_.size(); i++) start(i);
}

// Registrars send no more goodbyes.
Aggregators::~Aggregators() {
  for (const auto& [rank, registrar] : registrars_) registrar->kill();
}

std::string Aggregators::addresses() const {
  std::string text;
  for (size_t i = 0; i < all_.size(); i++) {
    const NetAddress address{name_of(i), kPort, all_[i].spec.rack};
    text += (i == 0 ? "" : ",") + address.text();
  }
  return text;
}

std::unique_ptr<SimTransport> Aggregators::attach(HostId host, SimThread& thread) {
  Place place = place_;
  place.host = host;
  std::unique_ptr<SimTransport> endpoint = network_.attach(place);
  const size_t number = endpoint->index();
  if (endpoints_.size() <= number) endpoints_.resize(number + 1);
  endpoints_[number] = {&thread, host};
  for (const One& one : all_) {
    if (one.spec.host == host && one.isolated) network_.isolate(number);
  }
  return endpoint;
}

void Aggregators::forget(SimThread& thread) {
  for (Endpoint& endpoint : endpoints_) {
    if (endpoint.thread == &thread) endpoint.thread = nullptr;
  }
}

bool Aggregators::on_news(size_t endpoint) {
  if (endpoint >= endpoints_.size() || endpoints_[endpoint].thread == nullptr) return false;
  endpoints_[endpoint].thread->on_news();
  return true;
}

bool Aggregators::on_turn(uint32_t what) {
  if (what >= endpoints_.size() || endpoints_[what].thread == nullptr) return false;
  return endpoints_[what].thread->on_turn();
}

Registrar& Aggregators::registrar_of(uint32_t rank, HostId host, const SimClock& clock,
                                     const LaneCosts& costs) {
  auto& registrar = registrars_[rank];
  if (!registrar) {
    const auto find = [this](const NetAddress& address) -> std::optional<PeerId> {
      for (size_t i = 0; i < all_.size(); i++) {
        if (address.host == name_of(i) && address.port == kPort && runs(i)) {
          return all_[i].process->peer();
        }
      }
      return std::nullopt;
    };
    registrar = std::make_unique<SimRegistrar>(host, find, threads_, clock, costs);
  }
  return *registrar;
}

void Aggregators::kill_rank(uint32_t rank) {
  const auto at = registrars_.find(rank);
  if (at == registrars_.end()) return;
  at->second->kill();
  for (size_t number = 0; number < endpoints_.size(); number++) {
    if (endpoints_[number].thread == at->second.get()) network_.kill(number);
  }
}

void Aggregators::pause_rank(uint32_t rank, bool paused) {
  const auto at = registrars_.find(rank);
  if (at != registrars_.end()) at->second->pause(paused);
}

void Aggregators::isolate_rank(uint32_t rank, bool isolated) {
  const auto at = registrars_.find(rank);
  for (size_t number = 0; at != registrars_.end() && number < endpoints_.size(); number++) {
    if (endpoints_[number].thread != at->second.get()) continue;
    isolated ? network_.isolate(number) : network_.heal(number);
  }
}

void Aggregators::look_again(uint32_t rank) {
  const auto at = registrars_.find(rank);
  if (at != registrars_.end()) at->second->look_again();
}

// All threads of the process on this host.
void Aggregators::kill_at(HostId host) {
  for (size_t number = 0; number < endpoints_.size(); number++) {
    Endpoint& endpoint = endpoints_[number];
    if (endpoint.thread == nullptr || endpoint.host != host || endpoint.thread->killed()) continue;
    endpoint.thread->kill();
    network_.kill(number);
  }
}

void Aggregators::kill(size_t i) {
  if (runs(i)) kill_at(all_[i].spec.host);
}

void Aggregators::end(size_t i, Nanos patience) {
  if (runs(i)) all_[i].process->end(patience);
}

void Aggregators::pause(size_t i, bool paused) {
  One& one = all_[i];
  if (!runs(i)) return;
  for (const Endpoint& endpoint : endpoints_) {
    if (endpoint.thread != nullptr && endpoint.host == one.spec.host) {
      endpoint.thread->pause(paused);
    }
  }
}

void Aggregators::isolate(size_t i, bool isolated) {
  all_[i].isolated = isolated;
  for (size_t number = 0; number < endpoints_.size(); number++) {
    const Endpoint& endpoint = endpoints_[number];
    if (endpoint.host != all_[i].spec.host) continue;
    // Also heals threads that ended meanwhile; otherwise ranks would resend to them forever.
    if (isolated && endpoint.thread == nullptr) continue;
    isolated ? network_.isolate(number) : network_.heal(number);
  }
}

void Aggregators::start(size_t i) {
  One& one = all_[i];
  if (runs(i)) return;
  if (one.process) past_.push_back(std::move(one.process));
  one.process =
      std::make_unique<SimAggregator>(one.spec.options, one.spec.host, mix64(seed_ + ++started_),
                                      threads_, one.spec.clock, one.spec.costs);
}

std::optional<size_t> Aggregators::at(size_t endpoint) const {
  for (size_t i = 0; i < all_.size() && endpoint < endpoints_.size(); i++) {
    const Endpoint& one = endpoints_[endpoint];
    if (one.thread != nullptr && one.host == all_[i].spec.host) return i;
  }
  return std::nullopt;
}

bool Aggregators::runs(size_t i) const {
  const SimAggregator* const process = all_[i].process.get();
  return process != nullptr && !process->killed() && !process->over();
}

}  // namespace mcast::sim
