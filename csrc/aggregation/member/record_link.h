// A connection to an aggregator that transfers records (wire/admission.h), as the registrar uses
// it.
#pragma once

#include <string>

#include "base/status.h"
#include "wire/admission.h"

namespace mcast {

class RecordLink {
 public:
  virtual ~RecordLink() = default;
  // Queues a record, which is sent when possible.
  void send(const wire::Admission& record) { send_text(wire::encode(record)); }
  virtual void send_text(const std::string& text) = 0;
  // Returns true with the next complete record and its exact text. An error means that the received
  // bytes are not a record.
  virtual Result<bool> next(wire::Admission& record, std::string& text) = 0;
  // An error says why the connection cannot even be started.
  virtual Status begun() const = 0;
};

}  // namespace mcast
