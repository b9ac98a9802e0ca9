// Exchange of data between ranks when a group is made. Each rank writes its answer to the store;
// rank 0 reads all answers and publishes a conclusion. So P ranks read P conclusions, not P times P
// answers.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/group.h"
#include "runtime/lane.h"
#include "runtime/lane_driver.h"
#include "runtime/network_choice.h"
#include "runtime/rendezvous.h"
#include "runtime/security.h"

namespace mcast {

// Writes the addresses and limits of the lanes into `record`. Returns false if the lanes are
// stopped.
bool describe_lanes(const Lanes& lanes, RankRecord& record);

// One question to all ranks: call say() once, then hear() until it returns something but kTimeout.
class StoreRound {
 public:
  // Answers are under "<prefix>/<rank>", the conclusion under "<prefix>/all".
  StoreRound(KeyValueStore& store, std::string prefix, Member rank, uint32_t size)
      : store_(store), prefix_(std::move(prefix)), rank_(rank), size_(size) {}

  Status say(const std::string& answer) { return store_.set(key(rank_), answer); }
  // Waits for at most `timeout`. Rank 0 derives the conclusion from all answers; if that fails,
  // hear() fails on all ranks with the same error.
  using Conclude = std::function<Result<std::string>(const std::vector<std::string>& answers)>;
  Result<std::string> hear(Nanos timeout, const Conclude& conclude);
  // True once the answers or the conclusion were read: a failure of hear() is then the same on all
  // ranks.
  bool over() const { return over_; }
  // Instead of another hear(): rank 0 informs the others. After a kTimeout, the other ranks look
  // which answers are missing. Returns the reason, with the missing ranks.
  Status give_up(const Status& why, const std::string& doing);
  // KeyValueStore::claim().
  Result<std::string> claim(const std::string& key, const std::string& owner) {
    return store_.claim(key, owner);
  }
  // Reads the answers of some ranks.
  Result<std::vector<std::string>> answers(const std::vector<Member>& of, Nanos timeout);

 private:
  std::string key(Member rank) const { return prefix_ + "/" + std::to_string(rank); }
  std::vector<std::string> all_keys() const;
  Status missing();

  KeyValueStore& store_;
  const std::string prefix_;
  const Member rank_;
  const uint32_t size_;
  bool over_ = false;
};

// Exchanges the records of all ranks, for the first round and the one that may follow
// (Roster::again). Every rank but 0 also reads rank 0's record, so that different versions are
// detected whatever else differs. `records`: on rank 0, receives all records, for the second round.
// `security`: for a guarded group, whose store is a GuardedStore. `reaches`: for choose_network();
// null: no network is chosen.
Result<Roster> exchange_records(const GroupSpec& spec, StoreRound& round, const RankRecord& mine,
                                Nanos start, Nanos deadline, std::vector<RankRecord>& records,
                                SecureCreation* security = nullptr,
                                const Reaches& reaches = nullptr);

}  // namespace mcast
