// The connections by which groups ask to be served, as who answers sees them: sockets in the
// product (door.h).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/types.h"
#include "wire/admission.h"

namespace mcast::service {

using LinkId = uint64_t;  // of a connection; not used again

class Links {
 public:
  virtual ~Links() = default;
  // The link stays open without limit.
  virtual void keep(LinkId link) = 0;
  // To a link that has ended: nothing happens.
  void send(LinkId link, const wire::Admission& record) { send_text(link, wire::encode(record)); }
  virtual void send_text(LinkId link, const std::string& text) = 0;
  // Sends what is queued, then closes.
  virtual void finish(LinkId link, Nanos now) = 0;
};

class Visitor {
 public:
  virtual ~Visitor() = default;
  // Whether connections of this host (host byte order) are expected; others get a share of the
  // places only.
  virtual bool knows(uint32_t) const { return false; }
  // Somebody has connected.
  virtual void on_link(LinkId) {}
  // From `host` (host byte order). Calls the links back.
  virtual void on_record(LinkId link, uint32_t host, std::string_view record, Nanos now) = 0;
  // Ended or broken by the other side, which spoke no records if `nonsense`. Not for links that
  // were told to finish.
  virtual void on_link_end(LinkId link, bool nonsense) = 0;
};

}  // namespace mcast::service
