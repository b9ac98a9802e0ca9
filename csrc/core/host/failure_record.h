// The record of a group's first failure, by which all its ranks learn one reason.
//
// Whoever fails a group claims the record before it gives memory back to its caller; whoever reads
// another rank's memory looks at the record after it has read. So bytes that a caller has changed
// since are never taken for good ones.
#pragma once

#include "base/status.h"
#include "host/control_block.h"

namespace mcast {

// True: it is claimed, if not yet readable. Memory that its owner lends may be gone.
inline bool failure_claimed(const FailureRecord& record) {
  return record.state.load(std::memory_order_acquire) != 0;
}
inline bool failure_readable(const FailureRecord& record) {
  return record.state.load(std::memory_order_seq_cst) == 2;
}
// Writes the reason. False: another rank was first, nothing is written. Any thread.
bool claim_failure(FailureRecord& record, const Status& why, Member culprit, Member reporter);
// The reason; the record is readable.
Status read_failure(const FailureRecord& record);

}  // namespace mcast
