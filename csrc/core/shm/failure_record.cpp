// The first rank to move the state from 0 to 1 writes; state 2 publishes the reason. A rank that
// ends between the two leaves a record that never becomes readable: HostCore waits one second for
// it.
#include "shm/failure_record.h"

#include <algorithm>
#include <cstring>
#include <string>

namespace mcast {

bool claim_failure(FailureRecord& record, const Status& why, Member culprit, Member reporter) {
  uint32_t none = 0;
  if (!record.state.compare_exchange_strong(none, 1)) return false;
  record.code = static_cast<uint32_t>(why.code());
  record.culprit = culprit;
  record.reporter = reporter;
  const size_t length = std::min(why.message().size(), kHostText - 1);
  std::memcpy(record.text, why.message().data(), length);
  record.text[length] = 0;
  record.state.store(2, std::memory_order_seq_cst);
  return true;
}

Status read_failure(const FailureRecord& record) {
  const bool known = record.code > 0 && record.code <= static_cast<uint32_t>(Code::kInternal);
  return Status(known ? static_cast<Code>(record.code) : Code::kAborted,
                std::string(record.text, strnlen(record.text, kHostText)));
}

}  // namespace mcast
