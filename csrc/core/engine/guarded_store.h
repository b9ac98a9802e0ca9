// The store of a guarded group: every value carries a MAC over where it belongs, and one whose MAC
// is wrong is not given to anybody. Formats: docs/security.md.
#pragma once

#include <string>
#include <vector>

#include "crypto/kdf.h"
#include "engine/group.h"
#include "engine/security.h"

namespace mcast {

// On the thread that creates the group. `inner`, `spec` and `security` outlive it.
class GuardedStore final : public KeyValueStore {
 public:
  GuardedStore(KeyValueStore& inner, const GroupSpec& spec, const SecureCreation& security)
      : inner_(inner), spec_(spec), security_(security) {}

  Status set(const std::string& key, const std::string& value) override;
  // kMismatch: a value was changed, or belongs elsewhere.
  Result<std::vector<std::string>> multi_get(const std::vector<std::string>& keys,
                                             Nanos timeout) override;
  Result<std::string> scope() override { return inner_.scope(); }
  // Without a MAC: other groups have other keys. A false answer costs a port of its own, no more.
  Result<std::string> claim(const std::string& key, const std::string& owner) override {
    return inner_.claim(key, owner);
  }
  std::string host() const override { return inner_.host(); }

 private:
  // Its parts live as long as the arguments.
  crypto::RecordPlace place_of(const std::string& scope, const std::string& key) const;
  // What the MAC of a key's value is made with.
  const crypto::Key& key_of(const std::string& key) const;
  // Bytes that the value of a key may have with its MAC.
  size_t most_bytes(const std::string& key) const;
  Status check(const std::string& key, const std::string& stored, std::string& value);

  KeyValueStore& inner_;
  const GroupSpec& spec_;
  const SecureCreation& security_;
};

// Bytes of a value that a rank may publish about itself. What rank 0 concludes has less than all
// records together, and a record's bytes besides.
inline constexpr size_t kMostRecordBytes = 16u << 10;

}  // namespace mcast
