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

class StoreAdapter final : public KeyValueStore {
 public:
  // Takes the incarnation: how often `rank` has made this group on `store`. All ranks agree on it
  // as long as they make and destroy the group equally often. Throws what the Store throws.
  // `interrupted` is asked now and then while multi_get() waits; true: it gives up (kAborted).
  StoreAdapter(c10::intrusive_ptr<c10d::Store> store, int rank, std::function<bool()> interrupted);

  Status set(const std::string& key, const std::string& value) override;
  Result<std::vector<std::string>> multi_get(const std::vector<std::string>& keys,
                                             Nanos timeout) override;

 private:
  Status missing(const std::vector<std::string>& keys, const std::string& cause);

  c10::intrusive_ptr<c10d::Store> store_;
  std::function<bool()> interrupted_;
  std::string prefix_;
};

}  // namespace mcast::pg
