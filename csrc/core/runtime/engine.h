// The public interface of mcast_core: one Engine per process makes groups (runtime/group.h), and
// operations are posted to groups. Used by csrc/torch, the tests and the benchmarks.
//
// Threads: everything here may be called from any thread, concurrently. No call throws across a
// thread; errors are Status.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/log.h"
#include "base/trace.h"
#include "base/version.h"
#include "runtime/group.h"

namespace mcast {

class Engine {
 public:
  // The process's engine, made at first use and never destroyed. After fork() the child gets a new
  // one; groups of the parent are dead there (every call returns kClosed).
  static Engine& instance();

  // Blocks until all ranks have called it and the path is agreed: multicast is probed first, unless
  // the path is set or all ranks share a host.
  Result<std::shared_ptr<Group>> create_group(const GroupSpec& spec, KeyValueStore& store);

  // Waits until the ends of all groups are confirmed (Group::close_in_order()) and stops the lanes.
  // For atexit. `give_up`: closes as Group::give_up() does; otherwise nothing is aborted.
  // create_group() returns kClosed afterwards. `hurry`: as in close_in_order().
  void shutdown(bool give_up = false, const std::function<bool()>& hurry = {});

  std::vector<std::shared_ptr<Group>> groups() const;

  // The last operations of all groups, oldest first. MCAST_TRACE of the first group sets how many
  // are kept.
  std::vector<TraceEvent> trace() const;

  struct Impl;

 private:
  Engine();
  ~Engine() = delete;
  Impl* impl_;
};

}  // namespace mcast
