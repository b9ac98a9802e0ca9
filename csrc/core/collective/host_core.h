// HostCore: the operations of one lane of a group whose ranks share a kernel, as a state machine
// over a HostBoard. Operations are cut into rounds; in each round every rank publishes a slot and
// takes what it needs of the others' slots. Data that everybody is to have goes through the slots,
// piece by piece; of what is to be reduced, the first slot carries an address, and the others read
// the memory it names (HostPort::read).
//
// Threads: one at a time (the caller's lock); peers change the board meanwhile. User code (`done`,
// `on_completed`) runs inside post(), progress() and fail().
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "base/counters.h"
#include "base/trace.h"
#include "collective/host_board.h"
#include "collective/operation.h"

namespace mcast {

// The way out of a HostCore.
class HostPort {
 public:
  virtual ~HostPort() = default;
  // Copies `length` bytes at `address` of `from`'s address space. Not ok: it is gone or refuses.
  virtual Status read(Member from, uint64_t address, std::byte* to, size_t length) = 0;
  virtual void wake(Member member, HostWaiter waiter) = 0;
  // Every rank's waiters on every lane, this one's too: the notice was written, or somebody left.
  virtual void wake_all() = 0;
  virtual Nanos now() = 0;
};

struct HostParams {
  std::string name;
  Member self = 0;
  uint32_t size = 1;
  uint8_t lane = 0;
  bool direct = true;  // peers' memory can be read; agreed by all ranks
  std::shared_ptr<Trace> trace;
};

// How an operation is cut into rounds: a pure function of the descriptor, the number of ranks and
// HostParams::direct.
struct HostPlan {
  bool direct = false;    // inputs are read by address
  bool lends = false;     // ... until everybody has consumed the last round
  bool large = false;     // takes longer than a hand-over to another thread
  size_t whole = 0;       // bytes of a rank's results in all
  bool one_step = false;  // all_reduce: everybody folds everything
  uint32_t rounds = 1;
  // Bytes of a block per round; reductions in slots and all_reduce: of each rank's part.
  size_t slice = 0;

  // all_reduce in slots, not in one step: what round `index` does with segment `segment` (slice x
  // members bytes): its parts are folded, or the results of that are gathered. (Direct: round 0
  // carries the addresses, round i the folded parts of segment i - 1.)
  struct Step {
    bool gathers;
    uint32_t segment;
  };
  Step step(uint32_t index) const;
};
HostPlan make_host_plan(const wire::Descriptor& descriptor, uint32_t members, bool direct);

class HostCore {
 public:
  HostCore(HostParams params, HostBoard board, HostPort& port, Counters& counters);

  // Posts op `post.sequence` (consecutive from 0). Always ends in exactly one call of post.done.
  void post(Post post);

  // Does what can be done. `large`: also what takes longer than a hand-over to another thread,
  // for some time or until an operation ends. True: there may be more that could be done at once.
  bool progress(bool large);

  // Tells the peers what this rank waits for. False: it is there already, call progress() again.
  bool arm(HostWaiter waiter);
  void disarm();

  // Nothing is in flight here.
  bool idle() const { return ops_.empty(); }
  size_t in_flight() const { return ops_.size(); }
  // The oldest operation in flight, as in errors; empty if there is none.
  std::string oldest_text() const;
  // Members that the oldest operation waits for.
  std::vector<Member> awaited() const;
  // Fails the group if a limit has passed or somebody left without calling what we wait for.
  // `unresponsive` are members that do not answer.
  void check(const std::vector<Member>& unresponsive);

  // Fails everything here and on all ranks. The first reason of all ranks wins.
  void fail(const Status& why, Member culprit);
  const Status& failure() const { return failure_; }
  // Says that this rank posts nothing more.
  void leave();

 private:
  struct Op {
    Post post;
    HostPlan plan;
    uint64_t first = 0;      // its first round
    uint32_t published = 0;  // rounds, of this rank
    uint32_t consumed = 0;
    uint32_t folded = 0;  // all_reduce in slots: segments whose own part is done
    // By member, in this round: its header was seen and names the same call; its slot was taken.
    // Only what has been compared is taken, whatever has been published since.
    std::vector<bool> agreed, taken;
    std::vector<std::byte> part;  // all_reduce in slots: the own part's result
    struct Source {
      uint64_t address;
      double factor;
    };
    std::vector<Source> sources;  // direct: by member, from the first round
    Nanos deadline = kNever;
    Nanos first_byte = kNever, last_byte = kNever;
  };

  // host_core.cpp
  HostWords& words(Member m) const { return board_.words(params_.lane, m); }
  HostWords& mine() const { return words(params_.self); }
  bool noticed() const;
  void obey_notice();
  void fail_local(const Status& why);
  // What a look would do, all ranks having consumed `least` rounds.
  bool can_publish(uint64_t least) const;
  bool can_complete(uint64_t least) const;
  bool publish_next(bool large, bool& left_over);
  bool consume_next(bool large, bool& left_over);
  bool complete_next();
  bool ready_to_publish(const Op& op) const;
  void begin_round(Op& op) const;
  bool compare(Op& op, uint32_t index);
  uint64_t least_consumed() const;
  void finish(size_t index, const Status& status);
  template <typename Met>
  void tell(std::atomic<uint64_t> HostWords::*need_word, Met met);
  void tell_published();
  void tell_consumed();
  std::string op_text(const Post& post) const;

  // host_rounds.cpp: the data of a round
  bool folds_to_publish(const Op& op) const;
  bool fill(Op& op, uint32_t index);
  enum class Took : uint8_t { kAll, kWaits, kLarge, kFailed };
  Took take(Op& op, uint32_t index, bool large);
  Took take_blocks(Op& op, uint32_t index);
  Took take_reduction(Op& op, uint32_t index);
  void take_all_reduce(Op& op, uint32_t index);
  void learn_sources(Op& op);
  bool fold_direct(Op& op, size_t offset, size_t length, std::byte* out);
  void fold_slots(Op& op, uint64_t round, size_t offset, size_t length, std::byte* out);
  bool fetch(Member from, uint64_t address, std::byte* to, size_t length);
  HostNeed need_of(const Op& op) const;
  bool published(Member m, uint64_t round) const;
  bool all_published(uint64_t round) const;
  const HostRound& round_of(Member m, uint64_t round) const {
    return board_.round(params_.lane, m, round);
  }
  const std::byte* data_of(Member m, uint64_t round) const {
    return board_.data(params_.lane, m, round);
  }

  const HostParams params_;
  const HostBoard board_;
  HostPort& port_;
  Counters& counters_;
  Status failure_;

  std::deque<std::unique_ptr<Op>> ops_;  // in flight, oldest first
  // Finished ones, until the next progress(): callers up the stack may still hold a reference.
  std::vector<std::unique_ptr<Op>> retired_;
  uint64_t next_round_ = 0;     // of the next operation
  size_t publishing_ = 0;       // index of the operation to publish from
  size_t consuming_ = 0;        // of the one to consume
  Nanos notice_seen_ = kNever;  // since when a notice is being written
  std::vector<std::byte> tile_, accumulator_;
};

}  // namespace mcast
