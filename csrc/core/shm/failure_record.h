// The record of a group's first failure, by which all its ranks learn one reason.
//
// A rank that fails a group claims the record before it returns memory to its caller; a rank that
// reads another rank's memory checks the record after the read. So bytes that a caller has changed
// since are never taken for valid ones.
#pragma once

#include "base/status.h"
#include "shm/control_block.h"

namespace mcast {

// Returns true if the record is claimed, even if not readable yet. Lent memory may be gone then.
inline bool failure_claimed(const FailureRecord& record) {
  return record.state.load(std::memory_order_acquire) != 0;
}
inline bool failure_readable(const FailureRecord& record) {
  return record.state.load(std::memory_order_seq_cst) == 2;
}
// Writes the reason. Returns false, and writes nothing, if another rank was first. Any thread.
bool claim_failure(FailureRecord& record, const Status& why, Member culprit, Member reporter);
// Returns the reason; the record must be readable.
Status read_failure(const FailureRecord& record);

}  // namespace mcast
