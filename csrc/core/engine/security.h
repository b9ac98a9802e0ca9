// The creation of a guarded group: what ranks tell each other about keys through the store, and why
// nobody who only has the store can change a word of it, learn a key, or talk two ranks into
// different modes. Formats: docs/security.md.
//
// On the thread that creates the group. Everything here exists for `auth` and `sealed` only.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "crypto/budget.h"
#include "crypto/datagram_guard.h"
#include "crypto/exchange.h"
#include "crypto/handshake.h"
#include "crypto/kdf.h"
#include "crypto/secret.h"
#include "engine/context.h"
#include "engine/group.h"
#include "engine/rendezvous.h"

namespace mcast {

// What makes a lane a guarded one: the X25519 pair of its endpoint, made beside its uid, which dies
// with it, and what its groups have in common. Any thread, but for what is said to be the lane's.
class LaneIdentity {
 public:
  // For a lane of these settings; of an aggregator's station, whose secret is the role's.
  // kUnavailable: the kernel has no random numbers that are fit for a
  // key, or there is no library.
  static Result<std::shared_ptr<const LaneIdentity>> make(const Config& config,
                                                          const crypto::JobSecret& secret,
                                                          crypto::Role role = crypto::Role::kRank);
  const crypto::PublicKey& public_key() const { return public_; }
  // What this end and the other's have in common.
  Result<crypto::Key> shared(const crypto::PublicKey& other) const;
  // For the lane's endpoint: the same pair.
  std::shared_ptr<const crypto::Identity> endpoint() const { return {endpoint_, &**endpoint_}; }
  // For the guards of the lane's groups.
  std::shared_ptr<crypto::OpenBudget> budget() const { return budget_; }

 private:
  using Endpoint = crypto::SecretBox<crypto::Identity>;
  LaneIdentity(crypto::KeyPair pair, Endpoint endpoint)
      : pair_(std::move(pair)),
        public_(pair_.public_key()),
        endpoint_(std::make_shared<Endpoint>(std::move(endpoint))),
        budget_(std::make_shared<crypto::OpenBudget>(crypto::BudgetLimits{}, budget_key())) {}
  static crypto::FilterKey budget_key();
  mutable std::mutex mutex_;  // a pair belongs to one thread at a time
  crypto::KeyPair pair_;
  const crypto::PublicKey public_;
  const std::shared_ptr<Endpoint> endpoint_;
  const std::shared_ptr<crypto::OpenBudget> budget_;
};

// What a group has once its records are exchanged.
struct GroupSecurity {
  crypto::Mode mode = crypto::Mode::kSealed;
  crypto::Suite suite = crypto::Suite::kAes128Gcm;
  std::shared_ptr<const crypto::JobSecret> secret;
  crypto::SecretBox<crypto::Key> root;  // M; zeros once the guards are made
  // By rank: who it must be that speaks on a stream.
  PerLane<std::vector<crypto::PublicKey>> keys;
};

// A group's guards on its lanes.
using Guards = PerLane<std::shared_ptr<crypto::DatagramGuard>>;

// One rank's part in one creation.
class SecureCreation {
 public:
  // `lanes`: of the multicast lane and the reduce lane.
  using Identities = PerLane<std::shared_ptr<const LaneIdentity>>;

  // kUnavailable, kInvalidArgument: this rank has no secret, no library, ... `engine`: of an engine
  // of the host, whose secret it is then; null: the settings' and the environment's.
  static Result<std::unique_ptr<SecureCreation>> make(const GroupSpec& spec,
                                                      const EngineSecurity* engine = nullptr);

  // Of a group that is a part of this one (engine/split.h): the same secret, keys of its own.
  std::unique_ptr<SecureCreation> part(const GroupSpec& spec) const {
    return std::unique_ptr<SecureCreation>(new SecureCreation(spec, mode_, secret_));
  }

  const crypto::JobSecret& secret() const { return *secret_; }
  std::shared_ptr<const crypto::JobSecret> share() const { return secret_; }
  // With trust_store, where the ranks have no secret of their own: rank 0 makes one and publishes
  // it, the others read it. Before anything else; `store`: not guarded.
  Status share_secret(KeyValueStore& store, Nanos deadline);
  // Instead of a record, where this rank cannot have one: that the others need not wait, and why.
  // Of a group that is not guarded as well.
  static Status excuse(const GroupSpec& spec, KeyValueStore& store, const Status& why);

  // What this rank writes into its record, of lanes over the record's transport; in each round.
  // kUnavailable: no random numbers.
  Status describe(const Identities& lanes, RankRecord& mine);
  // The same of a rank whose transport does not work, so that it is not taken for one without
  // security.
  Status describe_mode(RankRecord& mine) const;

  // Rank 0, once it has read all records (texts without their MACs, by rank): the roster's text
  // with what belongs to it in a guarded group. `records`: of the round whose lanes are used, which
  // may be the one before.
  Result<std::string> conclude(const Roster& roster, const std::vector<std::string>& texts,
                               const std::vector<RankRecord>& records);
  // All ranks: takes that apart again and gets at the group's key. `mine`: the text of this rank's
  // record. Returns the roster.
  Result<Roster> accept(const std::string& conclusion, const std::string& mine);

  // After accept(): whether all ranks have agreed on this text as the record of a rank, in the
  // last round.
  bool agreed_on(Member rank, const std::string& text) const;
  // After accept().
  const GroupSecurity& result() const { return *result_; }
  // For the MACs of what these ranks tell each other in the store from then on: of their records,
  // so that nothing fits which was said in an earlier run. Null before.
  const crypto::Key* agreed_key() const { return agreed_ ? &**agreed_ : nullptr; }
  // For people.
  SecurityStats stats() const;
  // Which key each peer has.
  void name_peers(Agreement& agreement) const;
  // Of this rank, for datagrams with at most so many bytes of payload; once, since what one seals
  // no other may seal again. The root goes with it: every epoch's key follows from it.
  Result<Guards> make_guards(size_t most_payload);

 private:
  SecureCreation(const GroupSpec& spec, crypto::Mode mode,
                 std::shared_ptr<const crypto::JobSecret> secret)
      : spec_(spec), mode_(mode), secret_(std::move(secret)) {}
  Result<crypto::Suite> choose_suite(const std::vector<RankRecord>& records) const;

  const GroupSpec& spec_;
  const crypto::Mode mode_;
  std::shared_ptr<const crypto::JobSecret> secret_;
  std::string shared_;                           // the secret that rank 0 passes on, in hex
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

// Characters of what another rank gives as the reason why it has no group.
inline constexpr size_t kMostProblem = 500;

// What two ranks say about security, before anything else of a record is believed: kMismatch that
// names both. `theirs`: the text of rank `other`, which may be anything. The mode alone, or in a
// guarded group the secret, too, which is null where this rank has none.
Status same_mode(const std::string& theirs, Member other, const Config& config, Member self);
// kUnavailable: that rank has said why it cannot have a group at all (SecureCreation::excuse()).
Status takes_part(const std::string& theirs, Member other);
Status same_security(const std::string& theirs, Member other, const Config& config,
                     const crypto::JobSecret* secret, Member self);

}  // namespace mcast
