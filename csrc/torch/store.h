// A c10d Store as the engine's KeyValueStore. Every group made on the same store gets keys of its
// own by an incarnation number, so a program may destroy a group and make it again.
//
// Threads: as the Store. Errors: exceptions of the Store become Status.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <functional>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace mcast::pg {

// As the Store takes values.
inline std::vector<uint8_t> bytes_of_text(const std::string& text) {
  return {text.begin(), text.end()};
}

// Whether the key is there by `deadline` (of monotonic_now()); signals are looked for meanwhile.
// Without Python's lock. Throws what their handlers raise, and if the store is broken.
bool appears(c10d::Store& store, const std::string& key, Nanos deadline);

class StoreAdapter final : public KeyValueStore {
 public:
  // The incarnation is how often `rank` has made this group on `store`, taken by the first set();
  // numbers that others have given up are skipped. All ranks agree on it as long as they make and
  // destroy the group equally often. A rank that does not get to see all the others gives the
  // number up (destructor). `interrupted` is asked now and then while multi_get() waits; true: it
  // stops (kAborted).
  StoreAdapter(c10::intrusive_ptr<c10d::Store> store, int rank, std::function<bool()> interrupted);
  ~StoreAdapter() override;

  Status set(const std::string& key, const std::string& value) override;
  Result<std::vector<std::string>> multi_get(const std::vector<std::string>& keys,
                                             Nanos timeout) override;
  Result<std::string> scope() override;
  // What keys of this making of the group begin with; empty before the first set().
  const std::string& prefix() const { return prefix_; }

 private:
  void choose_prefix();  // throws what the store throws
  Status missing(const std::vector<std::string>& keys, const std::string& cause, bool late);

  c10::intrusive_ptr<c10d::Store> store_;
  const std::string counter_;
  std::function<bool()> interrupted_;
  std::string prefix_;  // empty before the first set()
  bool met_ = false;    // nothing is waited for in vain, so far
};

}  // namespace mcast::pg
