// The creation of a guarded group: what ranks tell each other about keys through the store, and why
// nobody who only has the store can change a word of it, learn a key, or talk two ranks into
// different modes. Formats: docs/security.md.
//
// On the thread that creates the group. Everything here exists for `auth` and `sealed` only.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "crypto/exchange.h"
#include "crypto/kdf.h"
#include "crypto/secret.h"
#include "engine/group.h"
#include "engine/rendezvous.h"

namespace mcast {

// The X25519 pair of a lane's endpoint: made beside its uid, dies with it. Any thread.
class LaneIdentity {
 public:
  // kUnavailable: the kernel has no random numbers that are fit for a key, or there is no library.
  static Result<std::shared_ptr<const LaneIdentity>> make();
  const crypto::PublicKey& public_key() const { return public_; }
  // What this end and the other's have in common.
  Result<crypto::Key> shared(const crypto::PublicKey& other) const;

 private:
  explicit LaneIdentity(crypto::KeyPair pair)
      : pair_(std::move(pair)), public_(pair_.public_key()) {}
  mutable std::mutex mutex_;  // a pair belongs to one thread at a time
  crypto::KeyPair pair_;
  const crypto::PublicKey public_;
};

// What a group has once its records are exchanged.
struct GroupSecurity {
  crypto::Mode mode = crypto::Mode::kSealed;
  crypto::Suite suite = crypto::Suite::kAes128Gcm;
  std::shared_ptr<const crypto::JobSecret> secret;
  crypto::SecretBox<crypto::Key> root;  // M
  // By rank: who it must be that speaks on a stream.
  std::vector<crypto::PublicKey> multicast, reduce;
};

// One rank's part in one creation.
class SecureCreation {
 public:
  // `lanes`: of the multicast lane and the reduce lane.
  using Identities = PerLane<std::shared_ptr<const LaneIdentity>>;

  // kUnavailable, kInvalidArgument: this rank has no secret, no library, ...
  static Result<std::unique_ptr<SecureCreation>> make(const GroupSpec& spec);

  // Of a group that is a part of this one (engine/split.h): the same secret, keys of its own.
  std::unique_ptr<SecureCreation> part(const GroupSpec& spec) const {
    return std::unique_ptr<SecureCreation>(new SecureCreation(spec, mode_, secret_));
  }

  const crypto::JobSecret& secret() const { return *secret_; }
  // With trust_store, where the ranks have no secret of their own: rank 0 makes one and publishes
  // it, the others read it. Before anything else; `store`: not guarded.
  Status share_secret(KeyValueStore& store, Nanos deadline);
  // Instead of a record, where this rank cannot have one: that the others need not wait, and why.
  static Status excuse(const GroupSpec& spec, KeyValueStore& store, const Status& why);

  // What this rank writes into its record. kUnavailable: no random numbers.
  Status describe(const Identities& lanes, RankRecord& mine);

  // Rank 0, once it has read all records (texts with their MACs, by rank): the roster's text with
  // what belongs to it in a guarded group.
  Result<std::string> conclude(const std::string& roster, const std::vector<std::string>& texts,
                               const std::vector<RankRecord>& records);
  // All ranks: takes that apart again and gets at the group's key. `mine`: the text of this rank's
  // record. Returns the roster's text.
  Result<std::string> accept(const std::string& conclusion, const std::string& mine);

  // After accept(): nothing guards datagrams and streams between hosts yet.
  Status not_ready() const;
  const GroupSecurity& result() const { return *result_; }

 private:
  SecureCreation(const GroupSpec& spec, crypto::Mode mode,
                 std::shared_ptr<const crypto::JobSecret> secret)
      : spec_(spec), mode_(mode), secret_(std::move(secret)) {}
  Result<crypto::Suite> choose_suite(const std::vector<RankRecord>& records) const;

  const GroupSpec& spec_;
  const crypto::Mode mode_;
  std::shared_ptr<const crypto::JobSecret> secret_;
  std::string shared_;  // the secret that rank 0 passes on, in hex
  Identities lanes_;
  std::shared_ptr<GroupSecurity> result_;
};

// The store of a guarded group: every value carries a MAC over where it belongs, and one whose MAC
// is wrong is not given to anybody. `inner`, `spec` and `security` outlive it.
class GuardedStore final : public KeyValueStore {
 public:
  GuardedStore(KeyValueStore& inner, const GroupSpec& spec, const SecureCreation& security)
      : inner_(inner), spec_(spec), security_(security) {}

  Status set(const std::string& key, const std::string& value) override;
  // kMismatch: a value was changed, or belongs elsewhere.
  Result<std::vector<std::string>> multi_get(const std::vector<std::string>& keys,
                                             Nanos timeout) override;
  Result<std::string> scope() override { return inner_.scope(); }

 private:
  Result<std::string> mac_of(const std::string& key, const std::string& value);
  Status check(const std::string& key, const std::string& stored, std::string& value);

  KeyValueStore& inner_;
  const GroupSpec& spec_;
  const SecureCreation& security_;
};

// Bytes of a value that a rank may publish about itself.
inline constexpr size_t kMostRecordBytes = 16u << 10;

// What two ranks say about security, before anything else of a record is believed: kMismatch that
// names both. `theirs`: the text of rank `other`, which may be anything. The mode alone, or in a
// guarded group the secret, too.
Status same_mode(const std::string& theirs, Member other, const Config& config, Member self);
Status same_security(const std::string& theirs, Member other, const Config& config,
                     const std::string& id, Member self);

}  // namespace mcast
