// Texts shared by both kinds of lane, so that users read the same on every path.
#include "collective/closing.h"

#include <string>

namespace mcast {

LeftInFlight left_in_flight(Member self, size_t operations, bool force) {
  const std::string which = operations > 0 ? std::to_string(operations) + " operation(s) in flight"
                                           : "operation(s) that not all ranks have confirmed";
  const std::string late = " that did not end within the time for closing";
  return {force && operations > 0 ? Status(Code::kAborted, "the group was given up with " + which)
                                  : Status(Code::kTimeout, "the group was closed with " + which +
                                                               (operations > 0 ? late : "")),
          Status(Code::kClosed, "rank " + std::to_string(self) + " closed the group with " + which +
                                    (force ? ", after an error or interrupt there" : "") +
                                    "; look at its log for the first error")};
}

}  // namespace mcast
