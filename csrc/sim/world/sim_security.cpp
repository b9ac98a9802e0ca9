// A group's key is derived from the secret and the group's tag, where the product uses the data
// that its ranks have published: a rank with another secret, unless it was refused before, has
// another key.
#include "sim/world/sim_security.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/rng.h"
#include "crypto/library.h"
#include "sim/network/sim_identity.h"

namespace mcast::sim {
namespace {

// A fixed suite, so that runs are equal on every CPU.
crypto::Suite suite_of(const Config& config) {
  return crypto::parse_suite(config.security_suite).value_or(crypto::Suite::kAes128Gcm);
}

}  // namespace

// A paused process replies late; it is only lost once it has been paused for the liveness limit.
SimSecurity::SimSecurity(const Config& config, uint64_t seed, WorldGuarding how)
    : mode_(crypto::parse_mode(config.security).value_or(crypto::Mode::kOff)),
      suite_(suite_of(config)),
      text_(config.security),
      patience_(std::max<Nanos>(GuardOptions().challenge, config.liveness_limit)),
      seed_(mix64(seed + 0x736563)),
      how_(std::move(how)) {}

Status SimSecurity::ready() const { return on() ? crypto::load_library() : Status(); }

std::shared_ptr<const crypto::JobSecret> SimSecurity::secret(uint64_t number, crypto::Role role) {
  auto& one = secrets_[{number, role}];
  if (one) return one;
  (void)ready();
  one = seeded_secret(number, role).value();
  return one;
}

GuardOptions SimSecurity::make(uint64_t number, crypto::Role role, size_t endpoint) {
  IdentitySpec spec{mode_, suite_, role, how_.epochs};
  spec.seed = mix64(seed_ + endpoint);
  GuardOptions options;
  options.identity = seeded_identity(*secret(number, role), spec).value();
  options.seed = mix64(spec.seed);
  options.challenge = options.answer = patience_;
  return options;
}

// The budget belongs to the lane and is shared by its groups.
GuardOptions SimSecurity::of_rank(uint32_t rank, size_t endpoint) {
  budgets_[endpoint] = std::make_shared<crypto::OpenBudget>();
  return make(number_of(rank), crypto::Role::kRank, endpoint);
}

GuardOptions SimSecurity::of_station(size_t endpoint) {
  return make(1, crypto::Role::kAggregator, endpoint);
}

void SimSecurity::describe(uint32_t rank, RankRecord& record) {
  if (!on()) return;
  SecurityRecord& mine = record.security.emplace();
  mine.mode = text_;
  mine.suites = crypto::suite_bit(suite_);
  mine.secret_check = secret(number_of(rank), crypto::Role::kRank)->make_check();
  mine.nonce = seeded_bytes(seed_ + rank);
  mine.multicast = record.external.key;
  mine.reduce = record.reduce_external.key;
}

Status SimSecurity::agree(const std::vector<RankRecord>& records, const Config& config) {
  if (!on()) return {};
  const auto first = secret(number_of(kConcluder), crypto::Role::kRank);
  for (Member m = 1; m < records.size(); m++) {
    Status same = same_security(records[m].encode(), m, config, first.get(), kConcluder);
    if (!same.ok()) return same;
  }
  return {};
}

std::shared_ptr<const crypto::JobSecret> SimSecurity::guard(uint32_t rank, const GroupSpec& spec,
                                                            const Roster& roster,
                                                            const PerLane<size_t>& endpoints,
                                                            NetworkGroupParts& parts) {
  if (!on()) return nullptr;
  auto own = secret(number_of(rank), crypto::Role::kRank);
  const crypto::Key root =
      crypto::group_root(crypto::Digest(seeded_bytes(roster.tag)),
                         crypto::group_secret(seeded_bytes(seed_), own->mix()));
  for (const LaneId id : kBothLanes) {
    crypto::DatagramGuard::Params params;
    params.how = {mode_, suite_, static_cast<uint8_t>(id)};
    params.self = spec.rank;
    params.members = spec.size;
    params.most_payload = roster.datagram - wire::kDatagramHeader;
    params.epochs = how_.epochs;
    const auto& budget = budgets_.at(endpoints[id]);
    parts.guards[id] = crypto::DatagramGuard::make(root, params, budget).value();
  }
  parts.security.suite = crypto::suite_name(suite_);
  parts.security.library = crypto::library_version();
  return own;
}

std::shared_ptr<const service::AskGuard> SimSecurity::of_aggregators() {
  if (!on()) return nullptr;
  return std::make_shared<const service::AskGuard>(
      service::AskGuard{text_, secret(1, crypto::Role::kAggregator),
                        crypto::Key(std::array<std::byte, 32>{std::byte{1}})});
}

}  // namespace mcast::sim
