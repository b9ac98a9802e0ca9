// The store of a guarded group: every value has a MAC that covers its key and context, and a value
// with a wrong MAC is not returned. Formats: docs/security.md.
#pragma once

#include <string>
#include <vector>

#include "crypto/kdf.h"
#include "runtime/group.h"
#include "runtime/security.h"

namespace mcast {

// Used on the thread that creates the group. `inner`, `spec` and `security` outlive it.
class GuardedStore final : public KeyValueStore {
 public:
  GuardedStore(KeyValueStore& inner, const GroupSpec& spec, const SecureCreation& security)
      : inner_(inner), spec_(spec), security_(security) {}

  Status set(const std::string& key, const std::string& value) override;
  // kMismatch: a value was changed, or belongs to another place.
  Result<std::vector<std::string>> multi_get(const std::vector<std::string>& keys,
                                             Nanos timeout) override;
  Result<std::string> scope() override { return inner_.scope(); }
  // Without a MAC, because other groups have other keys. A forged reply only costs a port number.
  Result<std::string> claim(const std::string& key, const std::string& owner) override {
    return inner_.claim(key, owner);
  }
  std::string host() const override { return inner_.host(); }

 private:
  // Its parts live as long as the arguments.
  crypto::RecordPlace place_of(const std::string& scope, const std::string& key) const;
  // The key for the MAC of this entry.
  const crypto::Key& key_of(const std::string& key) const;
  // Most bytes of the entry's value, including its MAC.
  size_t most_bytes(const std::string& key) const;
  Status check(const std::string& key, const std::string& stored, std::string& value);

  KeyValueStore& inner_;
  const GroupSpec& spec_;
  const SecureCreation& security_;
};

// Most bytes of a value that a rank publishes about itself. Rank 0's conclusion is smaller than all
// records together plus one record.
inline constexpr size_t kMostRecordBytes = 16u << 10;

}  // namespace mcast
