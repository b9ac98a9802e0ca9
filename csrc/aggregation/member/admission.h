// Admission: state of one aggregator for one group's registrar: whether to ask it now, its reply,
// and which of its stations the group uses. Pure: events and time in.
//
//   kAbsent --due--> kAsking --accepted()--> kAdmitted --draining()--> kDraining
//      ^----- refused(), failed(), lost(), ended(): asked again after a while -----'
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/net_address.h"
#include "base/types.h"
#include "runtime/group.h"
#include "wire/admission.h"
#include "wire/aggregation.h"

namespace mcast {

class Admission {
 public:
  enum class State : uint8_t { kAbsent, kAsking, kAdmitted, kDraining };

  // Will be asked at once.
  explicit Admission(NetAddress address) : address_(std::move(address)) {}

  const NetAddress& address() const { return address_; }
  State state() const { return state_; }
  // Time of the next action: ask, or stop waiting for a reply.
  Nanos next() const { return next_; }
  bool to_be_asked(Nanos now) const { return state_ == State::kAbsent && now >= next_; }
  bool answer_is_late(Nanos now) const { return state_ == State::kAsking && now >= next_; }
  // It has replied once, or has not replied for too long.
  bool decided() const { return decided_; }

  void asking(Nanos now);
  // `taken`: uids that its stations must not have, because others have them. If one has, this acts
  // like failed() and returns false.
  bool accepted(wire::Accept answer, const std::vector<uint64_t>& taken, Nanos now);
  void refused(const wire::Refuse& answer, Nanos now);
  // It cannot be reached, has closed the connection, or sends invalid records.
  void failed(const std::string& why, Nanos now);
  // It will end soon: none of its stations is proposed any more.
  void draining();
  // Its connection has ended. Its stations remain usable as long as ranks are connected to them.
  void ended(const std::string& why, Nanos now);
  // A rank cannot reach one of its stations any more: none of them is used again.
  void lost(const std::string& why, Nanos now);
  // These stations of the group are in force. A later loss is noticed with the first operation.
  void in_force(const std::vector<uint64_t>& uids);
  // No rank is connected to this station any more. Returns true if that holds for all of its
  // stations.
  bool parted(uint64_t uid);

  bool has(uint64_t uid) const;
  // Its stations that the group may use; empty unless admitted.
  std::vector<wire::StationEntry> stations() const;
  std::vector<uint64_t> uids() const;
  AggregatorStats stats() const;

  static constexpr Nanos kAnswer = 2 * kSecond;  // to connect and answer
  static constexpr Nanos kFirstWait = kSecond / 2, kLastWait = 30 * kSecond;  // doubles in between
  static constexpr Nanos kWaitAfterLoss = kSecond;

 private:
  void absent(const std::string& state, const std::string& why, Nanos wait, Nanos now);

  const NetAddress address_;
  State state_ = State::kAbsent;
  bool decided_ = false, in_force_ = false;
  Nanos next_ = 0, wait_ = 0;
  std::string word_ = "asking", reason_;  // for stats
  wire::Accept answer_;
  std::vector<uint64_t> spoken_to_;  // stations that ranks may still be connected to
};

}  // namespace mcast
