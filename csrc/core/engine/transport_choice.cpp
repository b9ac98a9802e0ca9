// auto takes verbs only where it can serve the whole group and where there is a network between its
// ranks: on one host shared memory and loopback are faster than a device's loopback. The first rank
// that stands against it is named, since that is what an administrator has to look at.
#include "engine/transport_choice.h"

#include <set>

#include "transport/verbs/verbs_transport.h"

namespace mcast {

Result<TransportChoice> choose_transport(const std::vector<RankRecord>& records,
                                         const std::string& setting) {
  if (setting == "udp") return TransportChoice{false, "udp was asked for"};
  std::set<std::string> hosts;
  for (const RankRecord& r : records) hosts.insert(r.host);
  // On one host the question does not arise.
  if (setting != "verbs" && hosts.size() == 1) {
    return TransportChoice{false, "all ranks are on one host"};
  }
  for (size_t i = 0; i < records.size(); i++) {
    const RankRecord& r = records[i];
    if (r.verbs.empty()) continue;
    const std::string who = "rank " + std::to_string(i) + " on host " + r.host_name;
    if (setting == "verbs") {
      return Status(Code::kUnavailable, who + " cannot use verbs: " + r.verbs +
                                            "; set MCAST_TRANSPORT=auto or udp to do without");
    }
    return TransportChoice{false, "no verbs on " + who + ": " + r.verbs};
  }
  if (setting == "verbs") return TransportChoice{true, "verbs was asked for"};
  return TransportChoice{
      true, "every rank of " + std::to_string(hosts.size()) + " hosts has an RDMA device"};
}

std::string verbs_problem(const Config& config) {
  if (config.transport == "udp") return "udp was asked for there";
  const Status status = verbs_viable(VerbsOptions::from(config, 0));
  return status.ok() ? "" : status.message();
}

}  // namespace mcast
