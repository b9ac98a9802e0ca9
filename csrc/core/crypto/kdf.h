// The key schedule: each key of a guarded group, and the inputs from which it is derived. Labels
// and inputs are part of the protocol (docs/security.md); a second implementation checks them
// (tests/data/security_vectors.json). Needs an ok() of load_library(). Pure functions, any thread.
// Integers that go into a key are little-endian.
//
//   secret -> root_key -> jobs_key -> job_key -> record_key, hello_key, mix_key
//   record_key -> secret_check
//   records -> transcript T
//   member 0: group_secret G, wrapped for each rank by wrap_key
//   T, G -> group_root M -> filter_key of a lane, first_chain of a sender -> next_chain ...
//   a pair of endpoints -> pair_key W -> connection_key C -> ack_key, confirm_key, stream_chain
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>

#include "base/types.h"
#include "crypto/aead.h"
#include "crypto/filter.h"
#include "crypto/hash.h"
#include "crypto/key.h"
#include "crypto/key_pair.h"
#include "crypto/modes.h"

namespace mcast::crypto {

// HKDF-Expand(key, "mcast1 " | label | 0 | context): the base of all functions below.
void derive(const Key& key, std::string_view label, Parts context, Bytes out) noexcept;
Key derive_key(const Key& key, std::string_view label, Parts context = {}) noexcept;

// --- From the job's secret (32 random bytes).
Key root_key(ConstBytes secret) noexcept;  // PRK
// "jobs": the only part of the root that a process keeps. No role's key can be derived from it.
Key jobs_key(const Key& root) noexcept;
// "job": replaces the root for ranks of one job; depends on the SHA-256 of the job's name.
Key job_key(const Key& jobs, std::string_view name) noexcept;
// --- From a job_key; for a role's daemons from the root of their secret.
Key record_key(const Key& root) noexcept;  // "record": MAC of values in the store
// "check": detects a wrong secret. Like a MAC it allows guesses to be tried; a guess of 32 random
// bytes never succeeds.
using SecretCheck = std::array<std::byte, 8>;
SecretCheck secret_check(const Key& record_key, ConstBytes nonce) noexcept;
Key hello_key(const Key& root) noexcept;  // "hello": MAC of a stream's Hello
Key mix_key(const Key& root) noexcept;    // "mix": mixed into the result of X25519
// "role": replaces the root for a daemon that serves the job and is not a rank. The name has at
// most 255 bytes.
inline constexpr const char* kAggregatorName = "aggregators";
Key role_key(const Key& root, uint8_t role, std::string_view name) noexcept;  // "role"

// --- Values in the store. Identifies a value, so that its MAC is valid nowhere else. Every text is
// preceded by its length (u32) in the data that the MAC covers.
struct RecordPlace {
  std::string_view scope;  // prefix of the store, with the incarnation
  std::string_view key;    // "rank/3"
  std::string_view group;
  uint32_t rank = 0, size = 0;
};
Digest record_mac(const Key& record_key, const RecordPlace& place, std::string_view text) noexcept;

// T: SHA-256 of "torch-mcast transcript 1", `ranks`, and each record after its length (u32), in the
// order of ranks; here the digests of the records, then the roster.
Digest transcript(uint32_t ranks, std::span<const std::string> records) noexcept;

// "agreed": replaces the record key for values that are sent after the transcript.
Key agreed_key(const Key& record_key, const Digest& transcript) noexcept;

// --- The group's secret. `shared`: X25519 of member 0 and the rank.
Key group_secret(std::span<const std::byte, 32> random, const Key& mix) noexcept;  // G
Key wrap_key(const Digest& transcript, const Key& shared, const Key& mix, Member rank) noexcept;
inline constexpr size_t kWrappedSize = kKeySize + kTagSize;
using Wrapped = std::array<std::byte, kWrappedSize>;
// AES-256-GCM with the zero nonce: a wrap_key is used only once. unwrap() returns nothing if it was
// wrapped for another rank or for other records.
Wrapped wrap(const Key& wrap_key, const Key& secret);
std::optional<Key> unwrap(const Key& wrap_key, std::span<const std::byte, kWrappedSize> wrapped);

Key group_root(const Digest& transcript, const Key& secret) noexcept;  // M

// --- Datagrams. Lane: 0 multicast, 1 reduce.
FilterKey filter_key(const Key& root, uint8_t lane) noexcept;
Key first_chain(const Key& root, Mode mode, Suite suite, uint8_t lane, Member member) noexcept;
// Key of the next epoch; the caller destroys the old one, which wipes it.
Key next_chain(const Key& chain) noexcept;

// Keys with which an epoch of a chain seals.
struct EpochKey {
  Key key;  // the first key_size(suite) bytes are used
  Nonce iv{};
};
EpochKey epoch_key(const Key& chain, Suite suite) noexcept;

// --- Streams.
Key pair_key(const Key& shared, const Key& mix) noexcept;        // W
Key connection_key(const Key& pair, const Digest& h2) noexcept;  // C
Key ack_key(const Key& connection) noexcept;                     // "ack"
Key confirm_key(const Key& connection) noexcept;                 // "confirm"
enum class Direction : uint8_t { kToAcceptor, kToConnector };    // "c2a", "a2c"
Key stream_chain(const Key& connection, Direction direction, Mode mode, Suite suite) noexcept;

}  // namespace mcast::crypto
