// The backends of one group for calls that the engine does not serve: which one serves a device
// type, and the backend itself, made at its first use. Device types with the same kind of backend
// share one.
//
// Python (torch_mcast/_fallback.py) chooses their names and makes them; the module registers itself
// with set_fallback_maker().
//
// Threads: any. get() may wait for other ranks; call it without Python's lock. Errors: those that
// the maker throws.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "fallback_work.h"

namespace mcast::pg {

class ProcessGroupMcast;

using BackendPtr = c10::intrusive_ptr<c10d::Backend>;

struct FallbackMaker {
  // Returns the kind of backend that serves `device` ("cpu", "cuda") for this group: "gloo",
  // "nccl"; "" for none.
  std::function<std::string(ProcessGroupMcast&, const std::string& device)> kind;
  std::function<BackendPtr(ProcessGroupMcast&, const std::string& kind)> make;
  // Returns GroupSpec::fallback for the option `fallback`.
  std::function<std::string(const std::string& choice)> offered;
};
// Call once, before the first group.
void set_fallback_maker(FallbackMaker maker);
// The maker's result; empty without a maker.
std::string offered_fallback(const std::string& choice);

class Fallbacks {
 public:
  explicit Fallbacks(ProcessGroupMcast& group) : group_(group) {}
  Fallbacks(const Fallbacks&) = delete;
  Fallbacks& operator=(const Fallbacks&) = delete;

  // Does not make a backend.
  std::string kind(c10::DeviceType device);
  // Returns true if no fallback would serve tensors on this device, so that the engine serves calls
  // that a fallback could.
  bool none_on(c10::DeviceType device);
  // Returns null if no backend serves this device type.
  BackendPtr get(c10::DeviceType device);
  // Works in flight, as far as this group tracks them.
  FallbackWorks& works() { return works_; }
  // Returns the backends that have been made.
  std::vector<BackendPtr> made() const;
  // Returns the backends that have been made and removes them: others are made at their first use.
  std::vector<BackendPtr> take();
  // The kind that serves a device depends on where the group's members are; call it when they have
  // changed.
  void look_again();
  // Like take(); afterwards no backend is made any more.
  std::vector<BackendPtr> release();

 private:
  struct Entry {
    std::mutex making;  // held while the backend is made
    BackendPtr backend;
  };

  ProcessGroupMcast& group_;
  FallbackWorks works_;
  mutable std::mutex mutex_;  // guards the rest, except `backend` while it is made
  std::map<c10::DeviceType, std::string> kinds_;
  std::map<std::string, std::shared_ptr<Entry>> entries_;
  bool released_ = false;
};

}  // namespace mcast::pg
