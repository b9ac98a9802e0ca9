// Creates a group: from publishing this rank's record in the store to opening the group.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/group.h"
#include "runtime/host_group.h"
#include "runtime/network_group.h"
#include "runtime/rendezvous.h"
#include "runtime/resources.h"
#include "runtime/security.h"
#include "runtime/split.h"
#include "runtime/store_round.h"
#include "shm/attachment.h"

namespace mcast {

// Creates one group on one rank; all ranks of the group run one. Runs on the thread that creates
// the group, and blocks it for at most about spec.timeout.
class Bootstrap {
 public:
  // All arguments outlive the bootstrap; `resources` also outlives the group. spec.size > 1.
  // `security`: for a guarded group, whose store is a GuardedStore; it has the group's secret.
  Bootstrap(Resources& resources, const GroupSpec& spec, KeyValueStore& store,
            SecureCreation* security = nullptr);

  // Returns the group once all ranks have it. Errors are reported on all ranks unless they are
  // local to this one. Call once. Throws if memory or a thread is not available.
  Result<std::shared_ptr<GroupBase>> run();

 private:
  // The steps, in order.
  void offer_memory();
  void describe_self();
  Status exchange_all();
  Status exchange_on(const TransportType& type, StoreRound& round,
                     std::vector<RankRecord>& records);
  // Steps of exchange_all(): the interface to begin with, and the one that rank 0 has chosen.
  void guess_interface(const TransportType& type);
  Status change_network(const TransportType& type, std::vector<RankRecord>& records);
  void describe_interface();
  Status agree();
  Result<std::shared_ptr<GroupBase>> share_memory();
  Status find_neighbours();
  Result<std::shared_ptr<NetworkGroup>> open_group();
  bool takes_stations() const;
  Status split(NetworkGroup& group);

  // Steps of share_memory() and find_neighbours().
  Result<std::vector<HostAddress>> addresses_near(const std::vector<uint32_t>& host_of);
  Result<std::string> exchange_verdicts(const std::string& prefix, const std::string& doing,
                                        Nanos deadline);
  Status join();
  // Steps of split().
  Result<std::unique_ptr<Split>> lay_rails();
  Result<std::unique_ptr<Split>> make_subgroups();
  Result<std::shared_ptr<GroupBase>> join_part(const GroupSpec& part, const std::string& prefix);

  // Why the group uses the network even if all its ranks are on one host; empty if it need not.
  std::string network_reason() const;
  std::string creating() const { return "creating group '" + spec_.name + "'"; }
  std::shared_ptr<Trace> trace() const { return spec_.part ? nullptr : resources_.trace(); }

  Resources& resources_;
  const GroupSpec& spec_;
  KeyValueStore& store_;
  SecureCreation* const security_;
  const Nanos deadline_;
  StoreRound records_;                        // for the records of all ranks
  std::string agreed_round_ = kRecordsRound;  // the last round of records
  Config lane_config_;           // spec.config, with an address of this host as interface
  std::vector<OwnAddress> own_;  // the addresses to choose from
  Nanos exchange_started_ = 0;

  PeerRegistry* registry_ = nullptr;  // null: no memory is shared
  Result<Attachment> attachment_;     // to the ranks of this host; if not ok, why there is none
  RankRecord mine_;
  Lanes lanes_;
  Roster roster_;
  Agreement agreement_;
  // Reads memory of this host's ranks, in a group of several hosts; may be empty.
  HostReader reader_;
};

// Whether a process that creates a group lets processes of the same user read its memory.
// `in_engine`: it is an engine of the host, where all memory is mapped.
bool lets_peers_read(const Config& config, bool guarded, bool in_engine);

}  // namespace mcast
