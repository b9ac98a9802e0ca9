// The interface to the connections by which groups ask to be served: sockets in the product
// (admission_listener.h).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/ip_address.h"
#include "base/types.h"
#include "wire/admission.h"

namespace mcast::service {

using LinkId = uint64_t;  // of a connection; not reused

class Links {
 public:
  virtual ~Links() = default;
  // Keeps the link open without a time limit.
  virtual void keep(LinkId link) = 0;
  // Has no effect for a link that has ended.
  void send(LinkId link, const wire::Admission& record) { send_text(link, wire::encode(record)); }
  virtual void send_text(LinkId link, const std::string& text) = 0;
  // Sends queued bytes, then closes.
  virtual void finish(LinkId link, Nanos now) = 0;
};

class Visitor {
 public:
  virtual ~Visitor() = default;
  // Returns true if connections of this host are expected; other hosts share a limited number of
  // places.
  virtual bool knows(const IpAddress&) const { return false; }
  // A peer has connected.
  virtual void on_link(LinkId) {}
  // Calls back into the links.
  virtual void on_record(LinkId link, const IpAddress& host, std::string_view record,
                         Nanos now) = 0;
  // Ended or broken by the other side; `nonsense` if it sent no valid records. Not called for links
  // for which finish() was called.
  virtual void on_link_end(LinkId link, bool nonsense) = 0;
};

}  // namespace mcast::service
