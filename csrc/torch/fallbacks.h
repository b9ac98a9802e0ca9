// The backends of one group that serve what the engine does not: which one serves a device type,
// and the backend itself, made at its first use. Device types that the same kind serves share one.
//
// How they are named and made is Python's business (torch_mcast/_fallback.py); the module tells
// with set_fallback_maker().
//
// Threads: any. get() may wait for other ranks; call it without Python's lock. Errors: what the
// maker throws.
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
  // The kind of backend that serves `device` ("cpu", "cuda") for this group: "gloo", "nccl"; "" for
  // none.
  std::function<std::string(ProcessGroupMcast&, const std::string& device)> kind;
  std::function<BackendPtr(ProcessGroupMcast&, const std::string& kind)> make;
  // GroupSpec::fallback, by the option `fallback`.
  std::function<std::string(const std::string& choice)> offered;
};
// Once, before the first group.
void set_fallback_maker(FallbackMaker maker);
// As the maker's; empty without one.
std::string offered_fallback(const std::string& choice);

class Fallbacks {
 public:
  explicit Fallbacks(ProcessGroupMcast& group) : group_(group) {}
  Fallbacks(const Fallbacks&) = delete;
  Fallbacks& operator=(const Fallbacks&) = delete;

  // Makes nothing.
  std::string kind(c10::DeviceType device);
  // Whether the engine takes what a fallback could do where the tensors are: none would.
  bool none_on(c10::DeviceType device);
  // Null: nothing serves this device type.
  BackendPtr get(c10::DeviceType device);
  // Of calls in flight, as far as we look after them.
  FallbackWorks& works() { return works_; }
  // Those that have been made.
  std::vector<BackendPtr> made() const;
  // Those that have been made, which are no more this one's: others are made at their first use.
  std::vector<BackendPtr> take();
  // Which kind serves a device hangs on where the group's members are: these are others now.
  void look_again();
  // As take(); afterwards nothing is made any more.
  std::vector<BackendPtr> release();

 private:
  struct Entry {
    std::mutex making;  // held while the backend is made
    BackendPtr backend;
  };

  ProcessGroupMcast& group_;
  FallbackWorks works_;
  mutable std::mutex mutex_;  // guards the rest, but for `backend` while it is made
  std::map<c10::DeviceType, std::string> kinds_;
  std::map<std::string, std::shared_ptr<Entry>> entries_;
  bool released_ = false;
};

}  // namespace mcast::pg
