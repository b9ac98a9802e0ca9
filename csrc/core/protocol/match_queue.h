// Matches receives with messages at one rank: the receives that wait for a message, and the
// messages that no receive has taken yet. Two messages of one sender with one tag are taken in the
// order in which they were sent; two receives that could take the same message, in the order in
// which they were posted (MPI's rule that messages do not overtake each other). A receive from any
// source takes the message that arrived first. Receives and messages are identified by the caller's
// numbers; no bytes are stored. Pure.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/types.h"

namespace mcast {

class MatchQueue {
 public:
  static constexpr Member kAnySource = kNoMember;

  struct Message {
    Member source = 0;
    uint32_t number = 0;
    bool operator==(const Message&) const = default;
  };

  // Posts a receive, whose number differs from all waiting ones. Returns the message that it takes;
  // nothing: it waits.
  std::optional<Message> post(uint64_t receive, Member source, uint32_t tag);
  // A message has arrived; messages of one source arrive in the order in which they were sent.
  // Returns the receive that takes it; nothing: the message waits.
  std::optional<uint64_t> arrive(Message message, uint32_t tag);
  // Cancels a waiting receive. Returns false if it did not wait.
  bool withdraw(uint64_t receive);

  // Returns true if a receive waits for this source alone; for any source.
  bool awaits(Member source) const { return by_source_.count(source) > 0; }
  // The sources that receives wait for, including kAnySource; ascending.
  std::vector<Member> awaited() const;
  size_t waiting() const { return waiting_.size(); }  // receives
  size_t unclaimed() const { return unclaimed_; }     // messages

 private:
  using Key = std::pair<uint32_t, Member>;  // tag, source
  template <typename Name>
  struct Entry {
    uint64_t stamp;
    Name name;
  };
  template <typename Name>
  using Lines = std::map<Key, std::deque<Entry<Name>>>;

  void stop_waiting(uint64_t receive, Member source);

  Lines<uint64_t> receives_;                   // never an empty queue
  Lines<uint32_t> messages_;                   // never an empty queue
  std::unordered_map<uint64_t, Key> waiting_;  // by receive
  std::map<Member, size_t> by_source_;         // number of waiting receives; never 0
  size_t unclaimed_ = 0;
  uint64_t stamps_ = 0;
};

}  // namespace mcast
