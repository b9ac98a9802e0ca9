// Admission: one aggregator as one group's registrar knows it: is it to be asked now, what has it
// answered, which of its stations does the group use. Pure: events and time in.
//
//   kAbsent --due--> kAsking --accepted()--> kAdmitted --draining()--> kDraining
//      ^----- refused(), failed(), lost(), ended(): asked again after a while -----'
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/net_address.h"
#include "base/types.h"
#include "engine/group.h"
#include "wire/admission.h"
#include "wire/aggregation.h"

namespace mcast {

class Admission {
 public:
  enum class State : uint8_t { kAbsent, kAsking, kAdmitted, kDraining };

  // To be asked at once.
  explicit Admission(NetAddress address) : address_(std::move(address)) {}

  const NetAddress& address() const { return address_; }
  State state() const { return state_; }
  // When something is to be done: ask, or give up waiting for an answer.
  Nanos next() const { return next_; }
  bool to_be_asked(Nanos now) const { return state_ == State::kAbsent && now >= next_; }
  bool answer_is_late(Nanos now) const { return state_ == State::kAsking && now >= next_; }
  // It has answered once, or has not for too long.
  bool decided() const { return decided_; }

  void asking(Nanos now);
  // `taken`: uids that stations may not have, since others do. False: it cannot be, as failed().
  bool accepted(wire::Accept answer, const std::vector<uint64_t>& taken, Nanos now);
  void refused(const wire::Refuse& answer, Nanos now);
  // It cannot be reached, has broken off, or talks nonsense.
  void failed(const std::string& why, Nanos now);
  // It will end soon: no more stations of it.
  void draining();
  // Its connection has ended. Stations live as long as ranks' connections to them do.
  void ended(const std::string& why, Nanos now);
  // A rank cannot reach one of its stations any more: none of them is used again.
  void lost(const std::string& why, Nanos now);
  // These stations of the group are in force. What comes later is told with the first operation.
  void in_force(const std::vector<uint64_t>& uids);
  // No rank speaks to this station any more. True: nor to any other of it.
  bool parted(uint64_t uid);

  bool has(uint64_t uid) const;
  // Its stations that the group may use; none unless admitted.
  std::vector<wire::StationEntry> stations() const;
  std::vector<uint64_t> uids() const;
  AggregatorStats stats() const;

  static constexpr Nanos kAnswer = 2 * kSecond;  // to connect and answer
  static constexpr Nanos kFirstWait = kSecond / 2, kLastWait = 30 * kSecond;  // doubles between
  static constexpr Nanos kWaitAfterLoss = kSecond;

 private:
  void absent(const std::string& state, const std::string& why, Nanos wait, Nanos now);

  const NetAddress address_;
  State state_ = State::kAbsent;
  bool decided_ = false, in_force_ = false;
  Nanos next_ = 0, wait_ = 0;
  std::string word_ = "asking", reason_;  // for stats
  wire::Accept answer_;
  std::vector<uint64_t> spoken_to_;  // stations that ranks may still speak to
};

}  // namespace mcast
