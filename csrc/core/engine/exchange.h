// How ranks exchange what they have to say when a group is made: each puts it into the store, rank
// 0 reads it all and publishes what follows. So P ranks read P conclusions, not P times P texts.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/group.h"
#include "engine/lane.h"
#include "engine/lane_driver.h"
#include "engine/network_choice.h"
#include "engine/rendezvous.h"
#include "engine/security.h"

namespace mcast {

// Writes into `record` where the lanes can be reached and what they carry. False: they are stopped.
bool describe_lanes(const Lanes& lanes, RankRecord& record);

// One question to all ranks: say() once, then hear() until it is no kTimeout.
class Round {
 public:
  // Answers are under "<prefix>/<rank>", what follows under "<prefix>/all".
  Round(KeyValueStore& store, std::string prefix, Member rank, uint32_t size)
      : store_(store), prefix_(std::move(prefix)), rank_(rank), size_(size) {}

  Status say(const std::string& answer) { return store_.set(key(rank_), answer); }
  // Waits for at most `timeout`. Rank 0 draws the conclusion from all answers; if that fails, it
  // fails on all ranks alike.
  using Conclude = std::function<Result<std::string>(const std::vector<std::string>& answers)>;
  Result<std::string> hear(Nanos timeout, const Conclude& conclude);
  // Answers or conclusion were there: hear() has failed, if so, on all ranks alike.
  bool over() const { return over_; }
  // Instead of hearing on. Rank 0 tells the others; they look, after a kTimeout, whose answers are
  // missing. The reason, with these.
  Status give_up(const Status& why, const std::string& doing);
  // KeyValueStore::claim().
  Result<std::string> claim(const std::string& key, const std::string& owner) {
    return store_.claim(key, owner);
  }
  // The answers of some.
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

// What all ranks are and where, for the first round and the one that may follow (Roster::again).
// Every rank but 0 also reads rank 0's record, so that different versions are found out whatever
// else they differ in. `records`: on rank 0, everybody's, for the second round. `security`: of a
// guarded group, whose store is a GuardedStore. `reaches`: for choose_network(); null: nothing is
// chosen.
Result<Roster> exchange_records(const GroupSpec& spec, Round& round, const RankRecord& mine,
                                Nanos start, Nanos deadline, std::vector<RankRecord>& records,
                                SecureCreation* security = nullptr,
                                const Reaches& reaches = nullptr);

}  // namespace mcast
