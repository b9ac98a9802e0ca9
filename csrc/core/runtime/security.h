// The creation of a guarded group: the data about keys that ranks exchange through the store,
// protected so that an attacker with access to the store alone cannot change it, learn a key, or
// make two ranks use different modes. Formats: docs/security.md.
//
// Runs on the thread that creates the group. Everything here exists for `auth` and `sealed` only.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "crypto/datagram_guard.h"
#include "crypto/handshake.h"
#include "crypto/kdf.h"
#include "crypto/key_pair.h"
#include "crypto/secret.h"
#include "runtime/context.h"
#include "runtime/group.h"
#include "runtime/rendezvous.h"
#include "transport/guarded/lane_identity.h"

namespace mcast {

// Security state of a group after its records are exchanged.
struct GroupSecurity {
  crypto::Mode mode = crypto::Mode::kSealed;
  crypto::Suite suite = crypto::Suite::kAes128Gcm;
  std::shared_ptr<const crypto::JobSecret> secret;
  crypto::SecretBox<crypto::Key> root;  // M; zeros once the guards are made
  // By rank: the key that a peer on a stream must have.
  PerLane<std::vector<crypto::PublicKey>> keys;
};

// A group's guards on its lanes.
using Guards = PerLane<std::shared_ptr<crypto::DatagramGuard>>;

// One rank's part in one creation.
class SecureCreation {
 public:
  // Identities of the multicast lane and the reduce lane.
  using Identities = PerLane<std::shared_ptr<const LaneIdentity>>;

  // kUnavailable, kInvalidArgument: this rank has no secret, no library, ... `engine`: in an engine
  // of the host, whose secret is used; null: the secret of the settings and the environment.
  static Result<std::unique_ptr<SecureCreation>> make(const GroupSpec& spec,
                                                      const EngineSecurity* engine = nullptr);

  // For a group that is a part of this one (runtime/split.h): the same secret, but separate keys.
  std::unique_ptr<SecureCreation> part(const GroupSpec& spec) const {
    return std::unique_ptr<SecureCreation>(new SecureCreation(spec, mode_, secret_));
  }

  const crypto::JobSecret& secret() const { return *secret_; }
  std::shared_ptr<const crypto::JobSecret> share() const { return secret_; }
  // With trust_store, if the ranks have no secret: rank 0 makes one and publishes it, the others
  // read it. Call first. `store`: not guarded.
  Status share_secret(KeyValueStore& store, Nanos deadline);
  // Published instead of a record if this rank cannot have one: informs the others that they need
  // not wait, and why. Also used for groups that are not guarded.
  static Status excuse(const GroupSpec& spec, KeyValueStore& store, const Status& why);

  // Adds this rank's security data to its record, for lanes over the record's transport. Called in
  // each round. kUnavailable: no random numbers.
  Status describe(const Identities& lanes, RankRecord& mine);
  // The same for a rank whose transport does not work, so that it is not taken for one without
  // security.
  Status describe_mode(RankRecord& mine) const;

  // Rank 0, once it has read all records (texts without their MACs, by rank): the roster's text
  // with the additional data of a guarded group. `records`: of the round whose lanes are used,
  // which may be the one before.
  Result<std::string> conclude(const Roster& roster, const std::vector<std::string>& texts,
                               const std::vector<RankRecord>& records);
  // All ranks: parses that text and derives the group's key. `mine`: the text of this rank's
  // record. Returns the roster.
  Result<Roster> accept(const std::string& conclusion, const std::string& mine);

  // After accept(): whether all ranks have agreed on this text as the record of a rank, in the last
  // round.
  bool agreed_on(Member rank, const std::string& text) const;
  // Only after accept().
  const GroupSecurity& result() const { return *result_; }
  // Key of the MACs of values that these ranks exchange in the store from then on. It depends on
  // their records, so that values of an earlier run do not verify. Null before accept().
  const crypto::Key* agreed_key() const { return agreed_ ? &**agreed_ : nullptr; }
  // For display.
  SecurityStats stats() const;
  // Writes the key of each peer into the agreement.
  void name_peers(Agreement& agreement) const;
  // This rank's guards, for datagrams with at most this many bytes of payload. Call once, because
  // two guards must not seal with the same keys. Erases the root: every epoch's key follows from
  // it.
  Result<Guards> make_guards(size_t most_payload);

 private:
  SecureCreation(const GroupSpec& spec, crypto::Mode mode,
                 std::shared_ptr<const crypto::JobSecret> secret)
      : spec_(spec), mode_(mode), secret_(std::move(secret)) {}
  Result<crypto::Suite> choose_suite(const std::vector<RankRecord>& records) const;

  const GroupSpec& spec_;
  const crypto::Mode mode_;
  std::shared_ptr<const crypto::JobSecret> secret_;
  std::string shared_;                           // the secret that rank 0 publishes, in hex
  std::map<std::string, Identities> described_;  // by transport
  Identities lanes_;                             // the group's
  std::shared_ptr<GroupSecurity> result_;
  std::optional<crypto::SecretBox<crypto::Key>> agreed_;
  std::vector<crypto::Digest> agreed_records_;  // by rank
  bool guards_made_ = false;
};

// How fast this CPU seals, to compare with a link: payload bytes per second of one thread, in
// datagrams with `chunk` bytes of payload; the best of a few tries that take about `time` together.
// kUnavailable: there is no library. Any thread.
Result<double> seal_rate(crypto::Mode mode, crypto::Suite suite, size_t chunk, Nanos time);

// Most characters of another rank's reason why it has no group.
inline constexpr size_t kMostProblem = 500;

// Compare the security data of two ranks before anything else of a record is used. kMismatch names
// both. `theirs`: the text of rank `other`, which may contain anything. same_mode() compares the
// mode only; same_security() also compares the secret, in a guarded group. `secret`: null if this
// rank has none.
Status same_mode(const std::string& theirs, Member other, const Config& config, Member self);
// kUnavailable: that rank has published why it cannot create a group at all
// (SecureCreation::excuse()).
Status takes_part(const std::string& theirs, Member other);
Status same_security(const std::string& theirs, Member other, const Config& config,
                     const crypto::JobSecret* secret, Member self);

}  // namespace mcast
