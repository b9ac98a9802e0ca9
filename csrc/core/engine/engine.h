// The public face of mcast_core: one Engine per process, groups made through it (engine/group.h),
// operations posted to groups. Used by csrc/torch, the tests and the benchmarks.
//
// Threads: everything here may be called from any thread, also at once. No call throws across a
// thread; errors are Status.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/log.h"
#include "base/trace.h"
#include "base/version.h"
#include "engine/group.h"

namespace mcast {

class Engine {
 public:
  // The process's engine, made at first use and never destroyed. After fork() the child gets a
  // fresh one; groups of the parent are dead there (every call: kClosed).
  static Engine& instance();

  // Blocks until all ranks have called it, multicast has been probed and the path is agreed.
  Result<std::shared_ptr<Group>> create_group(const GroupSpec& spec, KeyValueStore& store);

  // Waits for confirmed ends of all groups (Group::close_in_order()), stops the lanes. For atexit.
  // `give_up`: as Group::give_up(), else nothing is aborted. create_group() after it is kClosed.
  // `hurry`: as of close_in_order().
  void shutdown(bool give_up = false, const std::function<bool()>& hurry = {});

  std::vector<std::shared_ptr<Group>> groups() const;

  // The last operations of all groups, oldest first (MCAST_TRACE of the first group decides how
  // many are kept).
  std::vector<TraceEvent> trace() const;

  struct Impl;

 private:
  Engine();
  ~Engine() = delete;
  Impl* impl_;
};

}  // namespace mcast
