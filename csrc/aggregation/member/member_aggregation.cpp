// The ranks' side of aggregation: the stations of groups, and a thread that asks aggregators.
#include "aggregation/member/member_aggregation.h"

#include <utility>
#include <vector>

#include "aggregation/member/registrar_thread.h"
#include "aggregation/member/station_requests.h"
#include "aggregation/member/stations.h"

namespace mcast {
namespace {

class MemberAggregation final : public Aggregation {
 public:
  explicit MemberAggregation(const MayReach& may_reach) : registrar_(resolve_within(may_reach)) {}

  ExternalFoldMaker fold() const override { return &Stations::make; }
  std::shared_ptr<GroupFold> join(const GroupSpec& spec, const Agreement& agreement,
                                  const std::shared_ptr<LaneDriver>& reduce,
                                  std::shared_ptr<const crypto::JobSecret> secret,
                                  bool hosts_fold) override {
    return std::make_shared<StationRequests>(registrar_, spec, agreement, reduce, std::move(secret),
                                             hosts_fold);
  }
  void stop() override { registrar_.stop(); }
  void lock() override { registrar_.lock(); }
  void unlock() override { registrar_.unlock(); }
  void abandon_after_fork() noexcept override { registrar_.abandon_after_fork(); }

 private:
  RegistrarThread registrar_;
};

}  // namespace

NameLookup::Resolve resolve_within(const MayReach& may_reach) {
  if (!may_reach) return resolve;
  return [may_reach](const NetAddress& address) -> NameLookup::Addresses {
    NameLookup::Addresses found = resolve(address);
    if (!found.ok()) return found;
    Status why(Code::kInvalidArgument, "no address of " + address.host);
    std::vector<Endpoint> reachable;
    for (const Endpoint& one : *found) {
      const Status may = may_reach(one.address.text(), one.port);
      if (may.ok()) reachable.push_back(one);
      if (!may.ok()) why = may;
    }
    if (reachable.empty()) return why;
    return reachable;
  };
}

std::unique_ptr<Aggregation> make_aggregation(const MayReach& may_reach) {
  return std::make_unique<MemberAggregation>(may_reach);
}

}  // namespace mcast
