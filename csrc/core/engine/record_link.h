// A connection to an aggregator, over which records travel (wire/admission.h), as who asks sees it.
#pragma once

#include <string>

#include "base/status.h"
#include "wire/admission.h"

namespace mcast {

class RecordLink {
 public:
  virtual ~RecordLink() = default;
  // Queues a record; it leaves when it can.
  void send(const wire::Admission& record) { send_text(wire::encode(record)); }
  virtual void send_text(const std::string& text) = 0;
  // The next record that has come whole, and its text as it came. Not ok: what has come is none.
  virtual Result<bool> next(wire::Admission& record, std::string& text) = 0;
  // Not ok: it cannot even be begun, and why.
  virtual Status begun() const = 0;
};

}  // namespace mcast
