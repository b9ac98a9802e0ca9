// The words of both kinds of lane, so that users read the same whatever the path.
#include "collective/closing.h"

#include <string>

namespace mcast {

LeftInFlight left_in_flight(Member self, size_t operations, bool force) {
  const std::string which = std::to_string(operations) + " operation(s) in flight";
  return {force ? Status(Code::kAborted, "the group was given up with " + which)
                : Status(Code::kTimeout, "the group was closed with " + which +
                                             " that did not end within the linger time"),
          Status(Code::kClosed, "rank " + std::to_string(self) + " closed the group with " + which +
                                    (force ? ", after an error or interrupt there" : "") +
                                    "; look at its log for the first error")};
}

}  // namespace mcast
