// Every rank publishes its properties and addresses. Rank 0 determines the transport from them, and
// which ranks share a host. If all ranks are on one host, they then attach to each other's memory.
// Otherwise the group is added to its lanes and probed; if hosts have several ranks each, these
// also find their neighbours, and large operations are split over rails or subgroups.
//
// Every decision that affects a later exchange is made by rank 0 or from all ranks' answers, so all
// ranks take the same steps.
#include "runtime/bootstrap.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/host.h"
#include "base/log.h"
#include "base/random.h"
#include "base/version.h"
#include "runtime/connection_room.h"
#include "runtime/transport_choice.h"
#include "wire/datagram.h"
#include "wire/protocol_version.h"

namespace mcast {
namespace {

// Whether the setting lets the group choose the interface.
bool interface_is_open(const Config& config) {
  return config.interface.empty() || config.interface[0] == '^';
}

}  // namespace

Bootstrap::Bootstrap(Resources& resources, const GroupSpec& spec, KeyValueStore& store,
                     SecureCreation* security)
    : resources_(resources),
      spec_(spec),
      store_(store),
      security_(security),
      deadline_(monotonic_now() + std::min<Nanos>(spec.timeout, kNever / 2)),
      records_(store, kRecordsRound, spec.rank, spec.size),
      lane_config_(spec.config),
      attachment_(Status(Code::kUnavailable, "shared_memory is off")) {}

Result<std::shared_ptr<GroupBase>> Bootstrap::run() {
  offer_memory();
  describe_self();
  if (Status status = exchange_all(); !status.ok()) {
    return status.with_context("group '" + spec_.name + "'");
  }
  if (Status status = agree(); !status.ok()) return status.with_context(creating());
  Result<std::shared_ptr<GroupBase>> on_host = share_memory();
  if (!on_host.ok()) return on_host.status().with_context(creating());
  if (on_host.value() != nullptr) return on_host;
  if (Status status = find_neighbours(); !status.ok()) return status.with_context(creating());
  Result<std::shared_ptr<NetworkGroup>> group = open_group();
  if (!group.ok()) return group.status();
  if (Status status = split(**group); !status.ok()) return status.with_context(creating());
  return std::shared_ptr<GroupBase>(std::move(group).value());
}

void Bootstrap::describe_self() {
  mine_.version = version();
  mine_.protocol = kProtocolVersion;
  mine_.host = host_id();
  mine_.host_name = host_name();
  mine_.random = secure_random64();
  mine_.place.rack = spec_.config.rack;
  mine_.fallback = spec_.fallback;
  mine_.agreed = spec_.config.agreed_text();
  if (attachment_.ok()) mine_.shared = attachment_->address().encode();
  mine_.network = network_reason();
  for (const TransportType& type : transport_types()) {
    if (&type == &fallback_transport()) continue;
    mine_.problems[type.name] = resources_.lanes().problem_of(type, spec_.config);
  }
  mine_.salt = resources_.salt();
}

// If there is a choice of transports, endpoints on a device come second: once all ranks have a
// device.
Status Bootstrap::exchange_all() {
  exchange_started_ = monotonic_now();
  std::vector<RankRecord> records;
  const TransportType* const asked = find_transport(spec_.config.transport);
  const TransportType& first = asked != nullptr ? *asked : fallback_transport();
  guess_interface(first);
  Status status = exchange_on(first, records_, records);
  if (status.ok() && roster_.again && roster_.transport == first.name) {
    status = change_network(first, records);
  }
  if (!status.ok() || !roster_.again) return status;
  const TransportType& better = *find_transport(roster_.transport);
  agreed_round_ = better.name;
  StoreRound again(store_, better.name, spec_.rank, spec_.size);
  return exchange_on(better, again, records);
}

void Bootstrap::guess_interface(const TransportType& type) {
  if (type.addresses == nullptr) return;
  own_ = type.addresses(spec_.config, store_.host());
  mine_.place.addresses = addresses_text(own_);
  const OwnAddress* const guess = first_guess(own_, resources_.networks().last());
  if (guess != nullptr && interface_is_open(spec_.config)) {
    lane_config_.interface = guess->address.text();
  }
  lane_config_.ipv6 = guess != nullptr && guess->address.is_v6();
}

// All ranks make lanes on the network that rank 0 has chosen, and publish their addresses.
Status Bootstrap::change_network(const TransportType& type, std::vector<RankRecord>& records) {
  const std::string network = roster_.network;
  const OwnAddress* const address = best_address(own_, network);
  const bool open = interface_is_open(spec_.config);
  const bool v6 = address != nullptr && address->address.is_v6();
  if (open || v6 != lane_config_.ipv6) {
    resources_.lanes().retire(std::exchange(lanes_, {}));
    lane_config_.ipv6 = v6;
    lane_config_.interface =
        open && address != nullptr ? address->address.text() : spec_.config.interface;
    const bool by_route = network == kByRoute || network == kByRoute6;
    log(LogLevel::kInfo, "group '%s': uses network %s instead of the first choice of each rank",
        spec_.name.c_str(), by_route ? "of the route to the store" : network.c_str());
  }
  resources_.networks().note(network);
  mine_.place.addresses.clear();
  records.clear();
  agreed_round_ = kNetworkRound;
  StoreRound again(store_, kNetworkRound, spec_.rank, spec_.size);
  return exchange_on(type, again, records);
}

void Bootstrap::describe_interface() {
  for (const OwnAddress& a : own_) {
    if (a.address.text() == mine_.external.host) mine_.place.interface = a.interface;
  }
}

// Makes lanes over this transport, and exchanges the addresses of all ranks.
Status Bootstrap::exchange_on(const TransportType& type, StoreRound& round,
                              std::vector<RankRecord>& records) {
  Result<Lanes> made = Status(Code::kUnavailable, mine_.problem_of(type.name));
  if (mine_.problem_of(type.name).empty()) {
    const Config& config = type.addresses == nullptr ? spec_.config : lane_config_;
    made = resources_.lanes().lanes_for(config, type, spec_.lane,
                                        security_ ? &security_->secret() : nullptr);
  }
  if (!made.ok() && &type == &fallback_transport()) return made.status();
  // Another transport may fail on this rank only: it informs the others before it gives the
  // transport up.
  mine_.transport = type.name;
  if (!made.ok()) mine_.problems[type.name] = made.status().message();
  if (made.ok() && !describe_lanes(*made, mine_)) {
    return Status(Code::kClosed, "the engine is shut down");
  }
  describe_interface();
  if (security_ != nullptr && made.ok()) {
    const SecureCreation::Identities lanes{made->multicast->identity(), made->reduce->identity()};
    if (Status status = security_->describe(lanes, mine_); !status.ok()) return status;
  } else if (security_ != nullptr && !mine_.security) {
    // Without keys: the requested transport fails here, so there is nothing else to publish.
    if (Status status = security_->describe_mode(mine_); !status.ok()) return status;
  }
  const bool open = !mine_.place.addresses.empty() && type.addresses != nullptr;
  Reaches reaches;
  if (open) {
    reaches = [this](const OwnAddress& own, const std::vector<Endpoint>& far) {
      return resources_.networks().reaches(own, far);
    };
  }
  Result<Roster> roster = exchange_records(spec_, round, mine_, exchange_started_, deadline_,
                                           records, security_, reaches);
  if (!roster.ok()) return roster.status();
  roster_ = std::move(roster).value();
  if (made.ok() && (roster_.again || roster_.transport == type.name)) lanes_ = *made;
  return {};
}

Status Bootstrap::agree() {
  agreement_ = agreement_of(roster_, spec_.rank, spec_.config, spec_.link_sharers);
  if (security_ != nullptr) security_->name_peers(agreement_);
  resources_.adopt_salt(roster_.salt);
  const MayReach& may_reach = resources_.context().may_reach;
  for (Member m = 0; may_reach && m < agreement_.peers.size(); m++) {
    for (const auto* const lane : {&agreement_.peers, &agreement_.reduce_peers}) {
      const StreamAddress& peer = (*lane)[m];
      if (m == spec_.rank) continue;
      if (Status may = may_reach(peer.host, peer.port); !may.ok()) {
        return may.with_context("rank " + std::to_string(m));
      }
    }
  }
  return {};
}

// Aggregators fold data of the network, for whole groups only. Same result on all ranks.
bool Bootstrap::takes_stations() const {
  const Config& c = spec_.config;
  return !spec_.part && agreement_.hosts > 1 && !c.aggregators.empty() && c.aggregate != "off";
}

Result<std::shared_ptr<NetworkGroup>> Bootstrap::open_group() {
  if (find_transport(roster_.transport)->descriptor_per_connection) {
    make_connection_room(
        spec_.name, spec_.size,
        connections_of(spec_.size, stripes_of(mine_.external), stripes_of(mine_.reduce_external)));
  }
  NetworkGroupParts parts;
  parts.lanes = lanes_;
  parts.transport_reason = roster_.transport_reason;
  if (agreement_.hosts == 1) {
    parts.not_shared = attachment_.ok() ? mine_.network : attachment_.status().message();
  }
  parts.read_host = reader_;
  parts.arrived = resources_.lanes().arrived();
  parts.trace = trace();
  if (security_ != nullptr) {
    Result<Guards> guards = security_->make_guards(roster_.datagram - wire::kDatagramHeader);
    if (!guards.ok()) return guards.status().with_context(creating());
    parts.guards = std::move(guards).value();
    parts.security = security_->stats();
  }
  if (Aggregation* const aggregation = resources_.aggregation()) {
    parts.make_fold = aggregation->fold();
    if (takes_stations()) {
      parts.fold = aggregation->join(spec_, agreement_, lanes_.reduce,
                                     security_ != nullptr ? security_->share() : nullptr,
                                     static_cast<bool>(reader_));
    }
  }
  auto group = std::make_shared<NetworkGroup>(spec_, std::move(parts));
  Status status = group->open(agreement_, deadline_, spec_.interrupted);
  if (!status.ok()) return status;
  return group;
}

}  // namespace mcast
