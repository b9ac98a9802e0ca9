// The kernel, compiled so that each announcement is observed as it is made. The names in this
// separate header are those that cmake/Dpa.cmake gives it.
#pragma once

#include <functional>

#include "dpa.h"

struct nic;

extern "C" {
int dpa_observed_receive_header(dpa_worker* worker);
int dpa_observed_receive_for_engine(dpa_worker* worker);
int dpa_observed_receive_immediate(dpa_worker* worker);
int dpa_observed_receive_placed(dpa_worker* worker);
int dpa_observed_send_header(dpa_sender* sender);
int dpa_observed_send_immediate(dpa_sender* sender);
}

namespace mcast::dpa {

// During its lifetime, the observed kernel's announcements go to this NIC, and then to `also`,
// which sees the kernel in the middle of a call. One instance at a time.
class Observing {
 public:
  explicit Observing(nic* nic, std::function<void()> also = {});
  ~Observing();
  Observing(const Observing&) = delete;
  Observing& operator=(const Observing&) = delete;
};

}  // namespace mcast::dpa
