// send and receive among ranks of one host: the messages of a group (collective/messages.h) over
// rings of shared memory, one for each ordered pair of ranks. What is long is lent where ranks can
// read each other's memory: the receiver copies it from there.
//
// Sleeping: as needs.h. A rank that waits for anything is woken by any message. One that waits for
// none is woken only where a ring to it is full: what comes early is read when it next looks.
//
// Threads: whoever drives the lane.
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
#include "host/folder.h"
#include "host/lane_view.h"
#include "host/message_ring.h"
#include "host/plan.h"
#include "host/port.h"

namespace mcast {

class HostMessages final : private MessageLink {
 public:
  // Results, on their way to their callbacks.
  using Ended = std::vector<std::pair<std::function<void(const Status&)>, Status>>;
  // References outlive this. `folder` reads the memory of other ranks.
  HostMessages(const std::string& group, const LaneView& lane, PeerMemory memory, HostPort& port,
               Folder& folder, Counters& counters, Ended& ended);

  void post(MessagePost post);
  // Reads, matches, sends what can be; `large`: also copies what is lent. True: something moved.
  // `left_over` is raised where more could be done at once.
  bool progress(bool large, bool& left_over);
  // Nothing has come that was not looked at.
  bool quiet() const;
  // The last progress() has left something to copy or to send.
  bool more() const { return more_; }

  // Tells the peers that this rank sleeps. False: there is something to do.
  bool arm(HostWaiter waiter);
  void disarm();

  // Sends and receives that are not over.
  size_t unfinished() const { return messages_.unfinished(); }
  std::string unfinished_text() const { return messages_.unfinished_text(); }
  // Nor anything that the other rank's ring had no room for.
  bool idle() const { return unfinished() == 0 && backlogs_.empty(); }
  // Ranks that are waited for, and have not left.
  std::vector<Member> awaited() const;
  // Who has left, and limits of time.
  void check();

  // After each of these calls: why the group is to fail, and by whom. Once.
  std::optional<std::pair<Status, Member>> take_failure();
  // Or a lent message could not be read: Folder::unreadable(). Or another rank has failed the
  // group.
  bool unreadable() const { return unreadable_; }
  // The group has failed.
  void on_failure(const Status& why);

 private:
  struct Peer {
    Peer(const ControlBlock& block, Member self, Member other);
    MessageRingWriter out;
    MessageRingReader in;
    std::deque<std::vector<std::byte>> backlog;  // records that there was no room for, with headers
    bool told = false;                           // it was woken, since its ring is full
    size_t untold = 0;  // bytes written since it was last woken, if it slept
    Status end;         // it has left
  };

  // MessageLink
  void send_message(Member to, wire::FrameType type, uint32_t number, uint32_t argument,
                    ConstBytes body, ConstBytes payload) override;
  bool takes(Member to, size_t bytes) override;
  bool ask(Member) override { return false; }  // HostLane looks after those that are waited for
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
  std::vector<std::unique_ptr<Peer>> peers_;  // by rank; null: nothing was written, nothing came
  std::set<Member> full_, backlogs_;          // whose ring has no room; has a backlog
  std::set<Member> written_;                  // to whom something was, and who was not woken since
  uint64_t moved_ = 0;                        // records written, pieces copied
  Status failure_;
  Member culprit_ = kNoMember;
  bool more_ = false;
  bool news_ = false;  // the failure is to be told
  bool unreadable_ = false;
  const IngressShare ingress_{LanePolicy::kFair};  // memory has no port that others use
  Messages messages_;
};

}  // namespace mcast
