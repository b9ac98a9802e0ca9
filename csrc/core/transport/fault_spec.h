// Text of the `faults` setting -> rules for the Interceptor. Pure.
//
//   spec  = rule *( ";" rule )
//   rule  = action [ ":" key "=" value *( "," key "=" value ) ]
//   action: drop | duplicate | delay | reorder | corrupt | refuse
//   keys of every rule:
//     rate   probability that a matching message is hit, 0..1 (default 1)
//     burst  mean length of a run of hits, >= 1 (default 1: independent hits)
//     seed   of the rule's own random numbers (default: 1 + position of the rule)
//     dir    in | out (default in)
//     after  matching messages to leave alone first (default 0)
//     count  hits, at most (default: no limit)
//   delay:   time  milliseconds, may be fractional (default 1)
//   reorder: hold  messages that overtake, >= 1 (default 1)
//            time  milliseconds after which it is handed over anyway (default 5)
//   refuse:  the medium takes no datagram, as a kernel without buffers: lend() gives no memory,
//            flush() leaves what is queued where it is. Each such call counts as a message; keys
//            rate, burst, seed, after, count
//   any other key is a predicate that the FaultClassifier knows ("type=data", "last=1", ...); a
//   rule matches where all its predicates do.
//
// Example: "drop:rate=0.1,burst=4,seed=7;duplicate:rate=0.01,type=data"
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "base/types.h"

namespace mcast {

// Classifies messages for the rules; the engine implements it, so that the transport layer needs no
// knowledge of formats.
class FaultClassifier {
 public:
  virtual ~FaultClassifier() = default;
  // Returns true if such a predicate exists; called once, when the text is parsed.
  virtual bool knows(std::string_view predicate, std::string_view value) const = 0;
  // Returns true if `message` matches the predicate. `frame`: true for a stream frame, false for a
  // datagram. The bytes are not verified.
  virtual bool matches(std::string_view predicate, std::string_view value, ConstBytes message,
                       bool frame) const = 0;
  // For error messages: "type=data|position|..., last=0|1".
  virtual std::string grammar() const = 0;
};

enum class FaultAction : uint8_t { kDrop, kDuplicate, kDelay, kReorder, kCorrupt, kRefuse };
inline constexpr size_t kFaultActions = 6;
const char* fault_action_name(FaultAction action) noexcept;

struct FaultRule {
  FaultAction action = FaultAction::kDrop;
  double rate = 1;
  double burst = 1;
  uint64_t seed = 1;
  bool outgoing = false;
  uint64_t after = 0;
  uint64_t count = UINT64_MAX;
  Nanos time = kMilli;
  uint64_t hold = 1;
  std::vector<std::pair<std::string, std::string>> predicates;

  // Stream frames are hit only by rules that name a type: TCP does not lose data by itself.
  bool names_type() const {
    for (const auto& [key, value] : predicates) {
      if (key == "type") return true;
    }
    return false;
  }
};

// kInvalidArgument with the position, the offending text and the grammar. `classifier` may be null:
// no predicates then. An empty text gives no rules.
Result<std::vector<FaultRule>> parse_faults(std::string_view text,
                                            const FaultClassifier* classifier);

}  // namespace mcast
