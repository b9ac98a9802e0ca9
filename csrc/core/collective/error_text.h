// Error texts and trace events that both kinds of group use.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "base/trace.h"
#include "base/types.h"
#include "wire/descriptor.h"

namespace mcast {

// kMismatch: `self` and `other` called different operations as operation `sequence`.
Status differs(Sequence sequence, Member self, const std::string& ours, Member other,
               const std::string& theirs);

// kMismatch: rank `from` has a block for rank `to` whose length differs from the one `to` expects.
Status lengths_differ(Sequence sequence, const wire::Descriptor& what, Member from, uint64_t sent,
                      Member to, uint64_t expected);

// "1, 5, 7".
std::string ranks_text(const std::vector<Member>& ranks);

// `operation`: post, first_byte, last_byte; `params`: name, self, lane.
template <typename Operation, typename Params>
TraceEvent trace_event(const Operation& operation, const wire::Descriptor& descriptor,
                       const Params& params, Nanos done, bool ok) {
  const auto& name = descriptor.name;
  return {name.empty() ? wire::kind_name(descriptor.kind) : name,
          params.name,
          params.self,
          params.lane,
          operation.post.sequence,
          operation.post.exchange ? operation.post.exchange->bytes() : descriptor.bytes,
          operation.post.posted,
          operation.first_byte,
          operation.last_byte,
          done,
          ok};
}

}  // namespace mcast
