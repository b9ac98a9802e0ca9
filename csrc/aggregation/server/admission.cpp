// The version is checked first, since no other field of an ask of another version can be relied on.
// The memory granted is the amount that a station may come to take whatever its ranks do, so an
// admitted job can never run out of it; if the asker expects more, that amount counts.
#include "aggregation/server/admission.h"

#include <algorithm>
#include <limits>

#include "aggregation/server/deal_work.h"
#include "base/units.h"
#include "base/version.h"
#include "wire/protocol_version.h"

namespace mcast::service {
namespace {

constexpr size_t kMostNameBytes = 256;
constexpr uint32_t kLeastChunk = 64, kMostChunk = 65408;
constexpr uint64_t kLeastIncast = 64u << 10, kMostIncast = 1u << 30;
// Descriptors of a station: two connections per rank (control, data), plus its own sockets.
constexpr uint64_t kDescriptorsPerRank = 2, kDescriptorsPerStation = 16;
// Connections to the other stations of a tree.
constexpr uint64_t kDescriptorsOfTree = 2 * kMostAggregators;
// Descriptors that the process itself, its log and its askers take.
constexpr uint64_t kDescriptorsOfProcess = 128;

std::string version_text(const std::string& version, uint32_t protocol) {
  return "torch-mcast " + version + " (protocol " + std::to_string(protocol) + ")";
}

// Returns "" if the ask is possible.
std::string impossible(const wire::Ask& ask) {
  std::vector<uint64_t> uids = ask.uids;
  std::sort(uids.begin(), uids.end());
  if (uids.size() < 2 || uids.front() == 0 ||
      std::adjacent_find(uids.begin(), uids.end()) != uids.end()) {
    return "uids: at least two are needed, all different and none 0";
  }
  if (ask.name.size() > kMostNameBytes) return "name: longer than 256 bytes";
  if (ask.chunk < kLeastChunk || ask.chunk > kMostChunk) return "chunk: out of range";
  if (ask.incast < kLeastIncast || ask.incast > kMostIncast) return "incast: out of range";
  if (ask.fold != "rank" && ask.fold != "turn") return "fold: \"" + ask.fold + "\" is not known";
  if (ask.aggregate != "careful" && ask.aggregate != "both") {
    return "aggregate: \"" + ask.aggregate + "\" is not known, or does not use aggregators";
  }
  return "";
}

aggregation::JobParams params_of(const wire::Ask& ask) {
  aggregation::JobParams params;
  params.tag = ask.tag;
  params.self = static_cast<Member>(ask.uids.size());
  params.hosts = Hosts(ask.host_of);
  params.fold = fold_order(ask.fold);
  params.incast = ask.incast;
  const Agreed agreed = agreed_of(ask);
  params.racks = agreed.racks;
  params.segment = contribution_segment(agreed);
  return params;
}

}  // namespace

const char* ask_refusal_name(AskRefusal why) noexcept {
  static constexpr const char* kNames[] = {
#define MCAST_REFUSAL_NAME(name, help) #name,
      MCAST_REFUSALS(MCAST_REFUSAL_NAME)
#undef MCAST_REFUSAL_NAME
  };
  return kNames[static_cast<size_t>(why)];
}

std::optional<Rejection> other_version(const wire::Ask& heading) {
  const bool known = !heading.version.empty();
  if (!known || (heading.version == version() && heading.protocol == kProtocolVersion)) {
    return std::nullopt;
  }
  return Rejection{AskRefusal::version,
                   "the aggregator has " + version_text(version(), kProtocolVersion) +
                       ", the group " + version_text(heading.version, heading.protocol)};
}

std::variant<wire::Ask, Rejection> read_ask(std::string_view record) {
  wire::Admission decoded;
  if (const Status status = wire::decode_admission(record, decoded); !status.ok()) {
    return Rejection{AskRefusal::malformed, status.message()};
  }
  wire::Ask* const ask = std::get_if<wire::Ask>(&decoded);
  if (ask == nullptr) return Rejection{AskRefusal::malformed, "the first record is not a request"};
  if (const std::string why = impossible(*ask); !why.empty()) {
    return Rejection{AskRefusal::malformed, "a request with impossible " + why};
  }
  return std::move(*ask);
}

uint32_t station_capacity(uint64_t rate, uint64_t link_rate, uint32_t stations) {
  constexpr double kOne = 65536;
  const double links =
      rate != 0 && link_rate != 0 ? static_cast<double>(rate) / static_cast<double>(link_rate) : 1;
  constexpr double kMost = std::numeric_limits<uint32_t>::max();
  return static_cast<uint32_t>(std::clamp(links * kOne / stations, 1.0, kMost));
}

std::variant<Grant, Rejection> admit(const wire::Ask& ask, const Options& options,
                                     const InUse& used, uint64_t most_descriptors) {
  if (used.jobs >= options.jobs) {
    return Rejection{AskRefusal::jobs, "it serves " + std::to_string(used.jobs) +
                                           " jobs already, of at most " +
                                           std::to_string(options.jobs)};
  }
  Grant grant;
  grant.params = params_of(ask);
  const uint64_t bound = memory_bound(grant.params);
  const uint64_t station = std::max(bound, ask.memory);
  grant.quota = station > options.job_quota() ? station : station * options.lanes;
  if (grant.quota > options.job_quota()) {
    return Rejection{AskRefusal::quota, "quota per job " + size_text(options.job_quota()) + ", " +
                                            std::to_string(options.lanes) + " station(s) of " +
                                            std::to_string(station) + " bytes are needed"};
  }
  if (grant.quota > options.quota - used.quota) {
    return Rejection{AskRefusal::quota, "quota " + size_text(options.quota) + ", " +
                                            std::to_string(used.quota) + " bytes in use, " +
                                            std::to_string(grant.quota) + " more are needed"};
  }
  grant.descriptors =
      options.lanes * (kDescriptorsPerStation + kDescriptorsPerRank * ask.uids.size() +
                       (ask.racks.empty() ? 0 : kDescriptorsOfTree));
  const uint64_t taken = used.descriptors + kDescriptorsOfProcess;
  if (taken + grant.descriptors > most_descriptors) {
    return Rejection{AskRefusal::descriptors,
                     "its stations may need " + std::to_string(grant.descriptors) +
                         " file descriptors, " + std::to_string(taken) + " of at most " +
                         std::to_string(most_descriptors) + " are reserved (ulimit -Hn)"};
  }
  grant.capacity = station_capacity(options.rate, ask.link_rate, options.lanes);
  return grant;
}

}  // namespace mcast::service
