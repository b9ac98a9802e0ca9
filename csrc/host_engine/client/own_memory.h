// This process's own memory, which an engine of the host may copy by itself (engine_memory=copy).
#pragma once

#include <functional>
#include <mutex>
#include <optional>

#include "base/status.h"
#include "host_engine/ipc/control.h"

namespace mcast {

// Thread-safe.
class OwnMemory {
 public:
  // Sends the offer with a descriptor of /proc/self/mem, or -1 if that cannot be opened.
  using Offer = std::function<Result<ipc::Memory>(const ipc::MemoryOffer& offer, int descriptor)>;
  explicit OwnMemory(Offer offer) : offer_(std::move(offer)) {}

  // How the engine copies. Nullopt: it cannot, which has been logged for `setting` (engine_memory).
  // The engine is asked once.
  std::optional<ipc::AccessMethod> method(const char* setting);

 private:
  const Offer offer_;
  std::mutex mutex_;  // guards the members below
  bool asked_ = false;
  std::optional<ipc::AccessMethod> method_;
};

}  // namespace mcast
