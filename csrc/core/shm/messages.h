// send and receive among ranks of one host: the messages of a group (collective/messages.h) over
// rings in shared memory, one for each ordered pair of ranks. Long messages are lent if ranks can
// read each other's memory: the receiver copies them from the sender's memory.
//
// Sleeping: as in needs.h. Any message wakes a rank that waits for an event. A rank that waits for
// none is woken only if a ring to it is full: early messages are read when it next looks.
//
// Threads: the driver of the lane.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/counters.h"
#include "collective/messages.h"
#include "shm/folder.h"
#include "shm/lane_view.h"
#include "shm/message_ring.h"
#include "shm/plan.h"
#include "shm/port.h"

namespace mcast {

class HostMessages final : private MessageLink {
 public:
  // Results to be delivered to their callbacks.
  using Ended = std::vector<std::pair<std::function<void(const Status&)>, Status>>;
  // References outlive this. `folder` reads the memory of other ranks.
  HostMessages(const std::string& group, const LaneView& lane, PeerMemory memory, HostPort& port,
               Folder& folder, Counters& counters, Ended& ended);

  void post(MessagePost post);
  // Reads, matches and sends all that is possible; `large`: also copies lent messages. Returns true
  // if anything moved. Sets `left_over` if more could be done at once.
  bool progress(bool large, bool& left_over);
  // Returns true if no unread message has arrived.
  bool quiet() const;
  // Returns true if the last progress() left data to copy or to send.
  bool more() const { return more_; }

  // Publishes that this rank sleeps. Returns false if there is work to do.
  bool arm(HostWaiter waiter);
  void disarm();

  // Sends and receives that are not over.
  size_t unfinished() const { return messages_.unfinished(); }
  std::string unfinished_text() const { return messages_.unfinished_text(); }
  // Returns true if none is unfinished and no record is queued for a full ring.
  bool idle() const { return unfinished() == 0 && backlogs_.empty(); }
  // Ranks that are waited for and have not left.
  std::vector<Member> awaited() const;
  // Checks for ranks that have left, and time limits.
  void check();

  // To be called after each of these calls: the reason for which the group must fail, and the
  // culprit. Returned once.
  std::optional<std::pair<Status, Member>> take_failure();
  // Returns true if a lent message could not be read (Folder::unreadable()), or if another rank has
  // failed the group.
  bool unreadable() const { return unreadable_; }
  // The group has failed.
  void on_failure(const Status& why);

 private:
  struct Peer {
    Peer(const ControlBlock& block, Member self, Member other);
    MessageRingWriter out;
    MessageRingReader in;
    // Queued records with headers, for which there was no room.
    std::deque<std::vector<std::byte>> backlog;
    bool told = false;  // it was woken because its ring is full
    size_t untold = 0;  // bytes written since it was last woken, if it slept
    Status end;         // error once it has left
  };

  // MessageLink
  void send_message(Member to, wire::FrameType type, uint32_t number, uint32_t argument,
                    ConstBytes body, ConstBytes payload) override;
  bool takes(Member to, size_t bytes) override;
  bool ask(Member) override { return false; }  // HostLane checks awaited ranks
  bool lends(const Slice& memory) const override;
  void lend(Member to, uint32_t number, uint32_t tag, const Slice& memory) override;
  bool copy(Member from, uint64_t place, std::byte* to, size_t bytes, size_t whole) override;
  void copied(Member from, uint32_t number) override;
  const Status& end_of(Member member) const override;
  void fail_for(const Status& why, Member culprit) override;
  const Status& failed_for() const override { return failure_; }
  void end(std::function<void(const Status&)> done, const Status& status) override;
  Counters& counts() override { return counters_; }

  Peer& peer(Member member);
  bool receive(bool& left_over);
  bool receive_from(Member from, bool& left_over);
  void on_record(Member from, const MessageRingReader::Read& read);
  void write(Member to, const RingRecord& record, ConstBytes body, ConstBytes payload);
  bool flush();
  void no_room(Member to, Peer& peer);
  void wake(Member member, bool full);
  void wake_written();

  const LaneView lane_;
  const PeerMemory memory_;
  HostPort& port_;
  Folder& folder_;
  Counters& counters_;
  Ended& ended_;
  std::vector<std::unique_ptr<Peer>> peers_;  // by rank; null: no message written or received yet
  std::set<Member> full_, backlogs_;          // ranks whose ring is full; ranks with a backlog
  std::set<Member> written_;                  // ranks written to and not woken since
  uint64_t moved_ = 0;                        // records written, pieces copied
  Status failure_;
  Member culprit_ = kNoMember;
  bool more_ = false;
  bool news_ = false;  // the failure must be reported
  bool unreadable_ = false;
  const IngressShare ingress_{LanePolicy::kFair};  // memory has no port to share
  Messages messages_;
};

}  // namespace mcast
