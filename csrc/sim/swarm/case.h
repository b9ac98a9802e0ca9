// The input of a law: a plan, the result of its run, and the causes in the plan that explain it.
// Threads: data.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "sim/swarm/causes.h"
#include "sim/swarm/laws.h"

namespace mcast::sim {

struct Case {
  const Plan& plan;
  const RunEnd& run;
  const Causes causes;
  std::vector<Finding>& findings;

  void broken(const char* law, const std::string& text) const { findings.push_back({law, text}); }
  const PlannedOp& op(const CallEnd& call) const { return plan.ops[call.op]; }
  // Bytes with which this member called the operation.
  uint64_t bytes_of(const PlannedOp& op, Member m) const {
    return m == op.odd ? op.odd_bytes : op.bytes;
  }
  std::string name(const MessageEnd& end) const {
    return std::string(end.receives ? "receive" : "send") + " (message " +
           std::to_string(end.message) + ") at rank " + std::to_string(end.rank) + ": ";
  }
  std::string name(const CallEnd& call) const {
    return std::string(wire::kind_name(op(call).kind)) + " (op " + std::to_string(call.op) +
           ") at rank " + std::to_string(call.rank) + ": ";
  }
};

inline std::string ms(Nanos time) { return std::to_string(time / kMilli) + " ms"; }

// The lane of an operation of this kind, except for barriers, which may use both.
inline uint32_t lane_of(wire::Kind kind) {
  return wire::is_reduction(kind) || wire::is_exchange(kind) ? 1 : 0;
}

inline bool has(const Plan& plan, FaultKind kind) {
  return std::any_of(plan.faults.begin(), plan.faults.end(),
                     [&](const PlannedFault& f) { return f.what == kind; });
}

// Returns true if the plan has nothing that may fail an operation, every call ended well, and every
// message that was carried ended well.
inline bool all_well(const Case& c) {
  const auto well = [](const Ending& end) { return end.ends == 1 && end.status.ok(); };
  return c.causes.harmless() && std::all_of(c.run.calls.begin(), c.run.calls.end(), well) &&
         std::all_of(c.run.messages.begin(), c.run.messages.end(),
                     [&](const MessageEnd& end) { return !end.carried || well(end); });
}

// Checks a failure of this group at a rank that is not a culprit. (laws.cpp)
void blame_one(const Case& c, const std::string& where, uint32_t group, const Status& status);

// memory_laws.cpp, message_laws.cpp, path_laws.cpp, station_laws.cpp
void memory_laws(const Case& c);
void message_laws(const Case& c);
void path_laws(const Case& c);
void station_laws(const Case& c);

}  // namespace mcast::sim
