// `auto` uses another transport than the fallback only if it can serve the whole group and if there
// is a network between its ranks: on one host, shared memory and loopback are faster than a
// device's loopback. The reason names the first rank that prevents it, because an administrator has
// to look at that rank.
#include "runtime/transport_choice.h"

#include <set>

namespace mcast {
namespace {

constexpr const char* kAuto = "auto";

std::string rank_text(const std::vector<RankRecord>& records, size_t rank) {
  return "rank " + std::to_string(rank) + " on host " + records[rank].host_name;
}

// The first rank that cannot use it; records.size() if all can.
size_t first_without(const std::vector<RankRecord>& records, const TransportType& type) {
  size_t rank = 0;
  while (rank < records.size() && records[rank].problem_of(type.name).empty()) rank++;
  return rank;
}

Result<TransportChoice> asked_for(const std::vector<RankRecord>& records,
                                  const TransportType& type) {
  const size_t rank =
      &type == &fallback_transport() ? records.size() : first_without(records, type);
  if (rank == records.size())
    return TransportChoice{&type, std::string("the setting transport is ") + type.name};
  return Status(Code::kUnavailable, rank_text(records, rank) + " cannot use " + type.name + ": " +
                                        records[rank].problem_of(type.name) +
                                        "; to do without it, set MCAST_TRANSPORT=auto or " +
                                        fallback_transport().name);
}

}  // namespace

Result<TransportChoice> choose_transport(const std::vector<RankRecord>& records,
                                         const std::string& setting, const TransportType* only) {
  if (const TransportType* const asked = find_transport(setting)) return asked_for(records, *asked);
  std::set<std::string> hosts;
  for (const RankRecord& r : records) hosts.insert(r.host);
  // On one host there is nothing to choose.
  if (hosts.size() == 1) return TransportChoice{&fallback_transport(), "all ranks are on one host"};
  TransportChoice choice;
  for (const TransportType& type : transport_types()) {
    if (&type == &fallback_transport() || (only != nullptr && &type != only)) continue;
    const size_t rank = first_without(records, type);
    if (rank == records.size()) {
      return TransportChoice{
          &type, "every rank of " + std::to_string(hosts.size()) + " hosts has " + type.device};
    }
    choice.reason += std::string(choice.reason.empty() ? "" : "; ") + "no " + type.name + " on " +
                     rank_text(records, rank) + ": " + records[rank].problem_of(type.name);
  }
  return choice;
}

std::string transport_problem(const TransportType& type, const Config& config) {
  if (config.transport != kAuto && config.transport != type.name) {
    return "the setting transport is " + config.transport + " there";
  }
  const Status status = type.problem(config);
  return status.ok() ? "" : status.message();
}

}  // namespace mcast
