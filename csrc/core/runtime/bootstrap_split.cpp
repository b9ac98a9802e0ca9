// Steps of a creation that split large operations. The parts are separate groups, made one after
// the other by one bootstrap each, with separate keys in the same store.
#include <algorithm>

#include "protocol/hosts.h"
#include "runtime/bootstrap.h"
#include "runtime/rails.h"
#include "runtime/subgroups.h"

namespace mcast {
namespace {

constexpr Nanos kPartPatience = 10 * kSecond;  // for ranks that were all present a moment ago

// A part of a group uses the group's store, with a prefix for its keys.
class Prefixed final : public KeyValueStore {
 public:
  Prefixed(KeyValueStore& store, std::string prefix) : store_(store), prefix_(std::move(prefix)) {}
  Status set(const std::string& key, const std::string& value) override {
    return store_.set(prefix_ + key, value);
  }
  Result<std::vector<std::string>> multi_get(const std::vector<std::string>& keys,
                                             Nanos timeout) override {
    std::vector<std::string> full;
    for (const std::string& key : keys) full.push_back(prefix_ + key);
    return store_.multi_get(full, timeout);
  }
  Result<std::string> scope() override { return store_.scope(); }
  Result<std::string> claim(const std::string& key, const std::string& owner) override {
    return store_.claim(key, owner);
  }
  std::string host() const override { return store_.host(); }

 private:
  KeyValueStore& store_;
  const std::string prefix_;
};

// Made after the group itself, when all ranks are present. A rank that dies meanwhile is waited for
// until about the liveness limit.
GroupSpec part_of(const GroupSpec& spec) {
  GroupSpec part = spec;
  part.part = true;
  const Nanos limit = spec.config.liveness_limit + spec.config.probe_timeout + kPartPatience;
  part.timeout = std::min<Nanos>(spec.timeout, limit);
  return part;
}

}  // namespace

Status Bootstrap::split(NetworkGroup& group) {
  const bool rails = reader_ && Hosts(agreement_.host_of).even();
  const bool subgroups = agreement_.hosts > 1 && spec_.config.subgroups > 1 && !spec_.part;
  if (!rails && !subgroups) return {};
  Result<std::unique_ptr<Split>> made = rails ? lay_rails() : make_subgroups();
  if (!made.ok()) return made.status();
  group.split(std::move(made).value());
  return {};
}

Result<std::shared_ptr<GroupBase>> Bootstrap::join_part(const GroupSpec& part,
                                                        const std::string& prefix) {
  Prefixed store(store_, prefix);
  std::unique_ptr<SecureCreation> security;
  if (security_ != nullptr) security = security_->part(part);
  Result<std::shared_ptr<GroupBase>> made =
      Bootstrap(resources_, part, store, security.get()).run();
  if (made.ok()) resources_.add_part(*made);
  return made;
}

Result<std::unique_ptr<Split>> Bootstrap::lay_rails() {
  const Hosts hosts(agreement_.host_of);
  const uint32_t here = hosts.host_of(spec_.rank);
  const std::vector<Member>& local = hosts.members(here);
  const auto place =
      static_cast<Member>(std::find(local.begin(), local.end(), spec_.rank) - local.begin());
  GroupSpec rail = part_of(spec_);
  rail.name += "/rail " + std::to_string(place);
  rail.rank = static_cast<Member>(here);
  rail.size = hosts.count();
  rail.part_index = place + 1u;
  rail.link_sharers = static_cast<uint32_t>(local.size());
  Result<std::shared_ptr<GroupBase>> on_rail =
      join_part(rail, "rail" + std::to_string(place) + "/");
  if (!on_rail.ok()) return on_rail.status();
  GroupSpec host = part_of(spec_);
  host.name += "/host " + std::to_string(here);
  host.rank = place;
  host.size = rail.link_sharers;
  host.config.transport = host.config.algorithm = "auto";
  host.config.faults.clear();
  Result<std::shared_ptr<GroupBase>> on_host = join_part(host, "host" + std::to_string(here) + "/");
  if (!on_host.ok()) return on_host.status();
  return std::unique_ptr<Split>(std::make_unique<Rails>(hosts, spec_.rank, agreement_.agreed,
                                                        std::move(on_rail).value(),
                                                        std::move(on_host).value()));
}

Result<std::unique_ptr<Split>> Bootstrap::make_subgroups() {
  const auto count = static_cast<uint32_t>(spec_.config.subgroups);
  std::vector<std::shared_ptr<GroupBase>> subgroups;
  for (uint32_t i = 1; i <= count; i++) {
    GroupSpec part = part_of(spec_);
    part.name += "/sub " + std::to_string(i - 1);
    part.part_index = i;
    part.link_sharers = count;
    part.lane = i;
    Result<std::shared_ptr<GroupBase>> made = join_part(part, "sub" + std::to_string(i - 1) + "/");
    if (!made.ok()) return made.status();
    subgroups.push_back(std::move(made).value());
  }
  return std::unique_ptr<Split>(std::make_unique<Subgroups>(std::move(subgroups)));
}

}  // namespace mcast
