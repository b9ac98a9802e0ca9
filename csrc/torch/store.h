// A c10d Store as the engine's KeyValueStore. Keys lie below those of the creation (making.h), so a
// program may destroy a group and create it again.
//
// Threads: as the Store. Errors: exceptions of the Store become Status.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <functional>
#include <string>
#include <vector>

#include "making.h"
#include "runtime/engine.h"

namespace mcast::pg {

// In the form in which the Store takes values.
inline std::vector<uint8_t> bytes_of_text(const std::string& text) {
  return {text.begin(), text.end()};
}

// Returns true if the key is there by `deadline` (of monotonic_now()); handles signals meanwhile.
// Without Python's lock. Throws exceptions of signal handlers, and if the store is broken.
bool appears(c10d::Store& store, const std::string& key, Nanos deadline);

// Name of the job that creates groups on this store, if MCAST_JOB is not set: derived from the
// launcher's environment variables, otherwise from the store's address. Empty if neither is known.
std::string job_name_of(c10d::Store& store);

class StoreAdapter final : public KeyValueStore {
 public:
  // Joins the creation at the first call, and ends it in the destructor. `members`: as in Making.
  // `interrupted` is called from time to time while multi_get() waits; if it returns true, the wait
  // stops (kAborted).
  StoreAdapter(c10::intrusive_ptr<c10d::Store> store, int rank, std::vector<uint64_t> members,
               std::function<bool()> interrupted);
  ~StoreAdapter() override;

  Status set(const std::string& key, const std::string& value) override;
  Result<std::vector<std::string>> multi_get(const std::vector<std::string>& keys,
                                             Nanos timeout) override;
  Result<std::string> scope() override;
  Result<std::string> claim(const std::string& key, const std::string& owner) override;
  std::string host() const override;
  // Prefix of the keys of this creation of the group. Throws the store's exceptions.
  const std::string& prefix() { return making_.prefix(); }

 private:
  std::string conflict(const std::vector<std::string>& keys);
  Status missing(const std::vector<std::string>& keys, const std::string& cause, bool late);

  c10::intrusive_ptr<c10d::Store> store_;
  const std::string above_;  // prefix that torch puts before all of our keys
  Making making_;
  std::function<bool()> interrupted_;
};

}  // namespace mcast::pg
