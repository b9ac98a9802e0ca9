// The engine's inside: lanes, groups, the host's peer registry. engine.cpp keeps them, creation.cpp
// makes groups.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/random.h"
#include "base/trace.h"
#include "engine/engine.h"
#include "engine/host_group.h"
#include "engine/introduction.h"
#include "engine/split.h"
#include "host/attachment.h"

namespace mcast {

struct Engine::Impl {
  std::mutex mutex;
  std::map<std::string, std::shared_ptr<LaneThread>> lanes;
  std::vector<std::shared_ptr<LaneThread>>
      poisoned;  // replaced in `lanes`; groups may still use them
  std::vector<std::weak_ptr<GroupBase>> groups;
  std::vector<std::weak_ptr<GroupBase>> parts;  // of those; closed after them
  bool down = false;
  JobSalt salt{secure_random64()};
  // Of all multicast lanes together: they share the link.
  std::shared_ptr<std::atomic<uint64_t>> arrived = std::make_shared<std::atomic<uint64_t>>(0);
  std::shared_ptr<Trace> trace;
  std::shared_ptr<Trace> traced(const GroupSpec& spec) const { return spec.part ? nullptr : trace; }
  std::unique_ptr<PeerRegistry> hub;  // from the first group on that may use shared memory

  Result<std::shared_ptr<LaneThread>> lane_for(const Config& config, size_t lane, bool verbs,
                                               uint32_t number = 0);
  // `number`: of the multicast lane, for groups that want one of their own.
  Result<Lanes> lanes_for(const Config& config, bool verbs, uint32_t number);
  // Empty, or why verbs does not work here. Asked once per set of settings.
  std::string verbs_problem_of(const Config& config);
  std::map<std::string, std::string> verbs_problems;
  void sweep_poisoned();
  Result<Attachment> prepare_meeting(const GroupSpec& spec);
  RankRecord describe_self(const GroupSpec& spec, const Result<Attachment>& meeting);
  Result<Roster> introduce_on(Lanes& on, const GroupSpec& spec, RankRecord& mine, Round& introduced,
                              Nanos deadline, KeyValueStore& store);
  Result<HostReader> neighbours(Attachment& meeting, const GroupSpec& spec, Round& introduced,
                                const Agreement& agreement, Nanos deadline, KeyValueStore& store);
  Result<std::shared_ptr<GroupBase>> join_part(const GroupSpec& spec, KeyValueStore& store);
  Result<std::unique_ptr<Split>> make_rails(const GroupSpec& spec, const Agreement& agreement,
                                            KeyValueStore& store);
  Result<std::unique_ptr<Split>> make_subgroups(const GroupSpec& spec, KeyValueStore& store);
  Result<std::shared_ptr<GroupBase>> meet(Attachment& meeting, const GroupSpec& spec,
                                          Round& introduced, Nanos deadline, KeyValueStore& store);
  // Throws where memory or a thread cannot be had.
  Result<std::shared_ptr<Group>> create(const GroupSpec& spec, KeyValueStore& store);
  Result<std::shared_ptr<GroupBase>> join(const GroupSpec& spec, KeyValueStore& store);
};

}  // namespace mcast
