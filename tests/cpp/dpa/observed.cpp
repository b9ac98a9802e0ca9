// The kernel's hook has no context: it observes the NIC that the test has named.
#include "dpa/observed.h"

#include <cassert>
#include <utility>

#include "dpa/nic_model.h"

namespace {
nic* observed_nic = nullptr;
std::function<void()> observed_also;
}  // namespace

extern "C" void dpa_observe(const void* announced);
extern "C" void dpa_observe(const void* announced) {
  if (observed_nic != nullptr) nic_observe(observed_nic, announced);
  if (observed_also) observed_also();
}

namespace mcast::dpa {

Observing::Observing(nic* nic, std::function<void()> also) {
  assert(observed_nic == nullptr);
  observed_nic = nic;
  observed_also = std::move(also);
}

Observing::~Observing() {
  observed_nic = nullptr;
  observed_also = nullptr;
}

}  // namespace mcast::dpa
