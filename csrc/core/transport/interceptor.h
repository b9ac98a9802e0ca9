// A Transport around another one that injects faults by rule: for tests of every layer above it, in
// the released binary. Repeatable: the same rules, seeds and messages give the same faults.
//
// Datagrams are hit by every rule whose predicates match; stream frames only by rules that name a
// type. Delays end at the first poll() of the stream endpoint (the only call with a clock) or
// receive() past their time. A message that was held is not tested against the rules again.
#pragma once

#include <array>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "base/rng.h"
#include "transport/fault_spec.h"
#include "transport/transport.h"

namespace mcast {

struct FaultCounters {
  // indexed by FaultAction
  std::array<uint64_t, kFaultActions> datagrams{};
  std::array<uint64_t, kFaultActions> frames{};
  uint64_t suppressed = 0;  // duplicates for which the medium had no room
};

class Interceptor final : public Transport {
 public:
  // `classifier` may be null if no rule has predicates; otherwise it must outlive the interceptor.
  Interceptor(std::unique_ptr<Transport> inner, std::vector<FaultRule> rules,
              const FaultClassifier* classifier);
  ~Interceptor() override;

  const char* name() const override { return inner_->name(); }
  Datagram& datagram() override;
  Stream& stream() override;
  void wait(Nanos timeout) override;
  void wake() noexcept override { inner_->wake(); }
  bool has_its_address() const override { return inner_->has_its_address(); }
  void abandon_after_fork() noexcept override { inner_->abandon_after_fork(); }
  std::string describe() const override;

  const FaultCounters& counters() const noexcept { return counters_; }
  // Hits of each rule, in the order of the text.
  std::vector<uint64_t> hits() const;

 private:
  class FaultyDatagram;
  class FaultyStream;
  // State of one rule: its random numbers, burst state and counts.
  struct Rule {
    FaultRule spec;
    Rng rng;
    bool in_burst = false;
    uint64_t seen = 0, hits = 0;
  };
  struct Held {
    std::vector<std::byte> bytes;
    Nanos due = 0;
    uint64_t overtakes = 0;  // messages that may still pass it; UINT64_MAX: by time only
    MulticastAddress to;     // outgoing datagrams
    Echo echo = Echo::kOn;
    PeerId peer = kNoPeer;  // frames
    Channel channel = Channel::kControl;
  };
  // Effects of all rules on one message.
  struct Fate {
    bool drop = false;
    bool duplicate = false;
    bool corrupt = false;
    size_t flip = 0;  // index of the flipped bit
    bool hold = false;
    Held held;  // due and overtakes, if `hold`
  };

  Fate decide(ConstBytes message, bool frame, bool outgoing);
  bool hit(Rule& rule, ConstBytes message, bool frame);
  bool has_rules(bool frame, bool outgoing) const;
  // Returns true if the medium takes no datagram at this call.
  bool refuses();
  static void hold(std::deque<Held>& queue, Fate fate);
  // Counts one more message that has passed those held in `queue`.
  static void count_overtaking(std::deque<Held>& queue);
  // Takes the first message of `queue` that is due.
  bool take_due(std::deque<Held>& queue, Held& out) const;
  Nanos next_due() const;

  std::unique_ptr<Transport> inner_;
  const FaultClassifier* classifier_;
  std::vector<Rule> rules_;
  FaultCounters counters_;
  Nanos now_ = 0;
  bool refused_ = false;  // set since the last wait(): no other event would end it
  // Held back: datagrams and frames, incoming and outgoing.
  std::deque<Held> datagrams_in_, datagrams_out_, frames_in_, frames_out_;
  std::unique_ptr<FaultyDatagram> datagram_;
  std::unique_ptr<FaultyStream> stream_;
};

// Parses `text` and wraps `inner`; returns `inner` itself if the text is empty.
Result<std::unique_ptr<Transport>> intercept(std::unique_ptr<Transport> inner,
                                             std::string_view text,
                                             const FaultClassifier* classifier);

}  // namespace mcast
