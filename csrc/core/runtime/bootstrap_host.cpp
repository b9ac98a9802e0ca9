// Steps of a creation for the ranks of its own host. All ranks on one host, or the ranks of each of
// several hosts, find each other's memory, publish the result, and reach a common conclusion. While
// they wait they check the processes that they have found.
#include <algorithm>

#include "base/clock.h"
#include "base/log.h"
#include "collective/error_text.h"
#include "runtime/bootstrap.h"

namespace mcast {
namespace {

// Interval between checks of the other ranks' processes.
constexpr Nanos kAttachStep = 200 * kMilli;
constexpr Nanos kNeighbourPatience = 10 * kSecond;  // beyond the limit for a silent rank

// The access to other ranks' memory that the settings allow.
PeerMemory most_memory(const Config& c, const EngineContext& context) {
  if (c.shared_memory == "slots") return PeerMemory::kSlots;
  if (context.directory) return PeerMemory::kMapped;  // all memory is the engine's mapping
  return c.engine_memory == "map_all" ? PeerMemory::kMapped : PeerMemory::kRead;
}

}  // namespace

// A process that may read another's memory may trace it, and so has its keys.
bool lets_peers_read(const Config& config, bool guarded, bool in_engine) {
  return config.shared_memory != "slots" && !guarded && !in_engine;
}

std::string Bootstrap::network_reason() const {
  const Config& c = spec_.config;
  if (c.shared_memory == "off") return "shared_memory is off";
  if (c.transport != "auto") return "the setting transport is " + c.transport;
  if (c.algorithm != "auto") return "the setting algorithm is " + c.algorithm;
  if (!c.faults.empty()) return "faults are injected into the network path";
  if (spec_.size > kHostMembers) return "the group is too large";
  return "";
}

void Bootstrap::offer_memory() {
  if (spec_.config.shared_memory == "off") return;
  const Result<PeerRegistry*> registry = resources_.registry();
  if (!registry.ok()) {
    attachment_ = registry.status();
    return;
  }
  registry_ = *registry;
  // Before the others learn the addresses. (Only the records will tell who is on this host.)
  if (lets_peers_read(spec_.config, security_ != nullptr,
                      resources_.context().directory != nullptr)) {
    allow_readers();
  }
  attachment_ = Attachment::prepare(spec_.rank, spec_.size, *registry_, network_reason().empty(),
                                    resources_.context().directory, spec_.name);
}

// Addresses of the memory of the ranks on our host, by rank.
Result<std::vector<HostAddress>> Bootstrap::addresses_near(const std::vector<uint32_t>& host_of) {
  std::vector<Member> near;
  for (size_t r = 0; r < host_of.size(); r++) {
    if (host_of[r] == host_of[spec_.rank]) near.push_back(static_cast<Member>(r));
  }
  StoreRound agreed(store_, agreed_round_, spec_.rank, spec_.size);
  Result<std::vector<std::string>> texts = agreed.answers(near, deadline_ - monotonic_now());
  if (!texts.ok()) return texts.status();
  std::vector<HostAddress> addresses(host_of.size());
  for (size_t i = 0; i < near.size(); i++) {
    if (security_ != nullptr && !security_->agreed_on(near[i], (*texts)[i])) {
      return Status(Code::kMismatch, "the record of rank " + std::to_string(near[i]) +
                                         " was changed in the store after all ranks had agreed on "
                                         "it");
    }
    Result<RankRecord> record = RankRecord::decode((*texts)[i]);
    if (record.ok() && HostAddress::decode(record->shared, addresses[near[i]])) continue;
    return Status(Code::kMismatch, "the rendezvous record of rank " + std::to_string(near[i]) +
                                       " cannot be read; all ranks must use backend mcast of "
                                       "the same version");
  }
  return addresses;
}

// Publishes the result of the attachment on this rank, and returns the conclusion for all.
Result<std::string> Bootstrap::exchange_verdicts(const std::string& prefix,
                                                 const std::string& doing, Nanos deadline) {
  StoreRound round(store_, prefix, spec_.rank, spec_.size);
  if (Status status = round.say(attachment_->verdict()); !status.ok()) return status;
  const auto unite = [](const std::vector<std::string>& verdicts) -> Result<std::string> {
    PeerMemory least = PeerMemory::kSlots;
    const std::string problem = Attachment::unite(verdicts, least);
    return !problem.empty() ? problem : std::string(Attachment::word_of(least));
  };
  for (;;) {
    const Nanos left = std::max<Nanos>(0, deadline - monotonic_now());
    Result<std::string> verdict = round.hear(std::min(left, kAttachStep), unite);
    if (verdict.ok() || round.over()) return verdict;
    if (verdict.status().code() != Code::kTimeout || left == 0) {
      return round.give_up(verdict.status(), doing);
    }
    if (Status status = attachment_->look_after(monotonic_now(), spec_.config.liveness_limit);
        !status.ok()) {
      return round.give_up(status, doing);
    }
  }
}

// All ranks share their memory, and this rank knows it: waits until all know. The process that
// keeps the store may end with the group, and the others would miss the last message there.
Status Bootstrap::join() {
  for (;;) {
    const Nanos left = deadline_ - monotonic_now();
    Result<bool> all = attachment_->joined_by_all(std::clamp<Nanos>(left, 0, kAttachStep));
    if (!all.ok()) return all.status();
    if (*all) return {};
    if (left <= 0) {
      return Status(Code::kTimeout, "rank(s) " + ranks_text(attachment_->missing()) +
                                        " have not confirmed that they have made the group");
    }
    if (spec_.interrupted && spec_.interrupted()) {
      return Status(Code::kAborted, "its creation was interrupted");
    }
    Status status = attachment_->look_after(monotonic_now(), spec_.config.liveness_limit);
    // (A rank that has joined may have ended since; all had joined then.)
    if (!status.ok() && !attachment_->missing().empty()) return status;
  }
}

// Null: the group uses the network, on all ranks.
Result<std::shared_ptr<GroupBase>> Bootstrap::share_memory() {
  const std::shared_ptr<GroupBase> none;
  if (agreement_.hosts > 1 || !attachment_.ok() || !roster_.shared || !roster_.network.empty()) {
    return none;
  }
  Result<std::vector<HostAddress>> addresses = addresses_near(agreement_.host_of);
  if (!addresses.ok()) return addresses.status();
  {
    const auto held = resources_.lock_registry();
    attachment_->attach(*addresses, most_memory(spec_.config, resources_.context()), *registry_);
  }
  Result<std::string> verdict =
      exchange_verdicts("shared", "waiting for all ranks to find their shared memory", deadline_);
  if (!verdict.ok()) {
    attachment_->refuse(verdict.status());
    return verdict.status();
  }
  PeerMemory memory = PeerMemory::kSlots;
  if (const std::string problem = Attachment::unite({*verdict}, memory); !problem.empty()) {
    log(LogLevel::kWarn, "group '%s' uses the network between ranks of one host: %s",
        spec_.name.c_str(), problem.c_str());
    return none;
  }
  if (Status status = join(); !status.ok()) {
    attachment_->refuse(status);
    return status;
  }
  std::shared_ptr<GroupBase> group =
      std::make_shared<HostGroup>(spec_, *registry_, attachment_->take(), memory, trace());
  log(LogLevel::kInfo, "group '%s': rank %u of %u on this host, %s", spec_.name.c_str(),
      unsigned{spec_.rank}, spec_.size, group->stats().transport.c_str());
  return group;
}

// For a group of several hosts with several ranks on some host. Afterwards there is no reader if
// some of them cannot read each other's memory; all ranks reach the same conclusion.
Status Bootstrap::find_neighbours() {
  if (agreement_.hosts == 1 || agreement_.hosts == spec_.size || !roster_.shared || spec_.part) {
    return {};
  }
  Result<std::vector<HostAddress>> addresses = addresses_near(agreement_.host_of);
  if (!addresses.ok()) return addresses.status();
  {
    const auto held = resources_.lock_registry();
    attachment_->attach_neighbours(*addresses, agreement_.host_of,
                                   most_memory(spec_.config, resources_.context()), *registry_);
  }
  // All ranks have published a record: none is waited for longer than a silent one.
  const Nanos limit = monotonic_now() + spec_.config.liveness_limit + kNeighbourPatience;
  Result<std::string> verdict =
      exchange_verdicts("neighbours", "waiting for all ranks to find those on their hosts",
                        std::min(deadline_, limit));
  if (!verdict.ok()) return verdict.status();
  PeerMemory memory = PeerMemory::kSlots;
  const std::string problem = Attachment::unite({*verdict}, memory);
  if (!problem.empty()) {
    log(LogLevel::kWarn, "group '%s': every rank contributes to reductions by itself: %s",
        spec_.name.c_str(), problem.c_str());
  }
  if (problem.empty() && memory != PeerMemory::kSlots) reader_ = attachment_->reader();
  return {};
}

}  // namespace mcast
