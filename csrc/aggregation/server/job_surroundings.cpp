// The environment of jobs in an aggregator's process: stations on threads of their own, each with a
// transport of the kind that the group uses.
#include "aggregation/server/job_surroundings.h"

#include <array>
#include <utility>

#include "aggregation/server/station_thread.h"
#include "base/descriptors.h"
#include "base/random.h"
#include "transport/fault_classifier.h"
#include "transport/guarded/lane_identity.h"
#include "transport/interceptor.h"
#include "transport/registry.h"

namespace mcast::service {
namespace {

Result<std::unique_ptr<Transport>> make_transport(const Config& config, const AskGuard* guard,
                                                  const wire::Ask& ask) {
  const TransportType* const type = find_transport(ask.transport);
  if (type == nullptr || (config.transport != "auto" && config.transport != ask.transport)) {
    return Status(Code::kUnavailable, "the group uses the transport " + ask.transport +
                                          ", the aggregator MCAST_TRANSPORT=" + config.transport);
  }
  std::shared_ptr<const crypto::Identity> identity;
  if (guard != nullptr) {
    auto own = LaneIdentity::make(config, *guard->secret, crypto::Role::kAggregator);
    if (!own.ok()) return own.status();
    identity = (*own)->endpoint();
  }
  Result<std::unique_ptr<Transport>> made = type->make(config, LaneId::kReduce, identity);
  if (!made.ok()) return made;
  return intercept(std::move(made).value(), config.faults, &wire_fault_classifier());
}

}  // namespace

Result<std::shared_ptr<const AskGuard>> guard_of(const Config& config) {
  if (config.security == "off") return std::shared_ptr<const AskGuard>();
  auto secret = crypto::find_secret(config);
  if (!secret.ok()) return secret.status();
  std::array<std::byte, 32> random;
  if (!secure_random_bytes(random)) {
    return Status(Code::kUnavailable,
                  "the kernel refuses random numbers (getrandom() and /dev/urandom), which an "
                  "aggregator of guarded groups needs; allow one of them in the sandbox");
  }
  return std::make_shared<const AskGuard>(
      AskGuard{config.security, std::move(secret).value(), crypto::Key(random)});
}

JobSurroundings on_threads(const Options& options, DealWork deal, std::function<void()> wake,
                           std::shared_ptr<const AskGuard> guard) {
  JobSurroundings here;
  here.guard = std::move(guard);
  here.deal = std::move(deal);
  here.wake = std::move(wake);
  here.process = secure_random64();
  here.run = [&options,
              guard = here.guard](StationSpec spec) -> Result<std::unique_ptr<StationRunner>> {
    Result<std::unique_ptr<Transport>> transport =
        make_transport(options.config, guard.get(), spec.ask);
    if (!transport.ok()) return transport.status();
    return std::unique_ptr<StationRunner>(
        std::make_unique<StationThread>(std::move(spec), std::move(transport).value()));
  };
  here.most_descriptors = [] { return descriptor_use().hard; };
  here.make_room = [](uint64_t count) { (void)make_descriptor_room(count); };
  return here;
}

}  // namespace mcast::service
