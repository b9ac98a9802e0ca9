// A c10d Store as the engine's KeyValueStore. Keys lie below those of the making (making.h), so a
// program may destroy a group and make it again.
//
// Threads: as the Store. Errors: exceptions of the Store become Status.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <functional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "making.h"

namespace mcast::pg {

// As the Store takes values.
inline std::vector<uint8_t> bytes_of_text(const std::string& text) {
  return {text.begin(), text.end()};
}

// Whether the key is there by `deadline` (of monotonic_now()); signals are looked for meanwhile.
// Without Python's lock. Throws what their handlers raise, and if the store is broken.
bool appears(c10d::Store& store, const std::string& key, Nanos deadline);

// Name of the job that makes groups on this store, where MCAST_JOB says none: what launchers say in
// the environment, else where the store is. Empty: neither says anything.
std::string job_name_of(c10d::Store& store);

class StoreAdapter final : public KeyValueStore {
 public:
  // Joins the making at the first call, and ends it with its own life. `members`: as Making's.
  // `interrupted` is asked now and then while multi_get() waits; true: it stops (kAborted).
  StoreAdapter(c10::intrusive_ptr<c10d::Store> store, int rank, std::vector<uint64_t> members,
               std::function<bool()> interrupted);
  ~StoreAdapter() override;

  Status set(const std::string& key, const std::string& value) override;
  Result<std::vector<std::string>> multi_get(const std::vector<std::string>& keys,
                                             Nanos timeout) override;
  Result<std::string> scope() override;
  Result<std::string> claim(const std::string& key, const std::string& owner) override;
  std::string host() const override;
  // What keys of this making of the group begin with. Throws what the store throws.
  const std::string& prefix() { return making_.prefix(); }

 private:
  std::string conflict(const std::vector<std::string>& keys);
  Status missing(const std::vector<std::string>& keys, const std::string& cause, bool late);

  c10::intrusive_ptr<c10d::Store> store_;
  const std::string above_;  // what torch puts before all of our keys
  Making making_;
  std::function<bool()> interrupted_;
};

}  // namespace mcast::pg
