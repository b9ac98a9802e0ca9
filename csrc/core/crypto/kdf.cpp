// Each function is one line of the key schedule. There are two constructions: extract()
// concentrates input that may be uneven (a secret, an exchange) under a salt that names its
// purpose; derive() makes keys from input that is uniform already. Labels end in a zero, so none is
// a prefix of another's input.
#include "crypto/kdf.h"

#include <algorithm>
#include <vector>

#include "crypto/openssl.h"

namespace mcast::crypto {
namespace {

template <typename T>
std::array<std::byte, sizeof(T)> little(T value) noexcept {
  std::array<std::byte, sizeof(T)> out;
  wire::store<T>(out.data(), value);
  return out;
}

// Extracts a key from a | b with `salt`.
Key extract(ConstBytes salt, const Key& a, const Key& b) noexcept {
  std::array<std::byte, 2 * kKeySize> both;
  std::copy(a.bytes().begin(), a.bytes().end(), both.begin());
  std::copy(b.bytes().begin(), b.bytes().end(), both.begin() + kKeySize);
  Key out = hkdf_extract(salt, both);
  wipe(both);
  return out;
}

constexpr size_t kMostInfo = 320;

}  // namespace

void derive(const Key& key, std::string_view label, Parts context, Bytes out) noexcept {
  std::array<std::byte, kMostInfo> info;
  size_t used = 0;
  const auto put = [&](ConstBytes bytes) noexcept {
    must(used + bytes.size() <= info.size(), "the length of a label");
    std::copy(bytes.begin(), bytes.end(), info.begin() + static_cast<std::ptrdiff_t>(used));
    used += bytes.size();
  };
  put(bytes_of("mcast1 "));
  put(bytes_of(label));
  put(little<uint8_t>(0));
  for (const ConstBytes part : context) put(part);
  hkdf_expand(key.bytes(), ConstBytes(info).first(used), out);
}

Key derive_key(const Key& key, std::string_view label, Parts context) noexcept {
  Key out;
  derive(key, label, context, out.place());
  return out;
}

Key root_key(ConstBytes secret) noexcept {
  return hkdf_extract(bytes_of("torch-mcast secret 1"), secret);
}

Key jobs_key(const Key& root) noexcept { return derive_key(root, "jobs"); }

Key job_key(const Key& jobs, std::string_view name) noexcept {
  const Digest digest = sha256({bytes_of(name)});
  const ConstBytes context[] = {digest};
  return derive_key(jobs, "job", context);
}

Key record_key(const Key& root) noexcept { return derive_key(root, "record"); }
SecretCheck secret_check(const Key& record_key, ConstBytes nonce) noexcept {
  SecretCheck out;
  const ConstBytes context[] = {nonce};
  derive(record_key, "check", context, out);
  return out;
}

Key hello_key(const Key& root) noexcept { return derive_key(root, "hello"); }
Key mix_key(const Key& root) noexcept { return derive_key(root, "mix"); }

Key role_key(const Key& root, uint8_t role, std::string_view name) noexcept {
  const auto number = little(role);
  const ConstBytes context[] = {number, bytes_of(name)};
  return derive_key(root, "role", context);
}

Digest record_mac(const Key& record_key, const RecordPlace& place, std::string_view text) noexcept {
  const auto scope = little(static_cast<uint32_t>(place.scope.size()));
  const auto key = little(static_cast<uint32_t>(place.key.size()));
  const auto group = little(static_cast<uint32_t>(place.group.size()));
  const auto rank = little(place.rank), size = little(place.size);
  return hmac_sha256(record_key.bytes(),
                     {scope, bytes_of(place.scope), key, bytes_of(place.key), group,
                      bytes_of(place.group), rank, size, bytes_of(text)});
}

Digest transcript(uint32_t ranks, std::span<const std::string> records) noexcept {
  std::vector<std::array<std::byte, 4>> lengths;
  lengths.reserve(records.size());
  const auto count = little(ranks);
  std::vector<ConstBytes> parts{bytes_of("torch-mcast transcript 1"), count};
  for (const std::string& record : records) {
    lengths.push_back(little(static_cast<uint32_t>(record.size())));
    parts.push_back(lengths.back());
    parts.push_back(bytes_of(record));
  }
  return sha256(parts);
}

Key agreed_key(const Key& record_key, const Digest& transcript) noexcept {
  const ConstBytes context[] = {transcript};
  return derive_key(record_key, "agreed", context);
}

Key group_secret(std::span<const std::byte, 32> random, const Key& mix) noexcept {
  return extract(bytes_of("torch-mcast group 1"), Key(random), mix);
}

Key wrap_key(const Digest& transcript, const Key& shared, const Key& mix, Member rank) noexcept {
  const auto number = little<uint16_t>(rank);
  const ConstBytes context[] = {number};
  return derive_key(extract(transcript, shared, mix), "wrap", context);
}

Wrapped wrap(const Key& wrap_key, const Key& secret) {
  Wrapped out{};
  auto context = SealContext::make(Suite::kAes256Gcm, wrap_key.bytes());
  const ConstBytes parts[] = {secret.bytes()};
  must(context.ok() &&
           context->seal(Nonce{}, {}, parts, out.data(), std::span(out).last<kTagSize>()),
       "a wrap");
  return out;
}

std::optional<Key> unwrap(const Key& wrap_key, std::span<const std::byte, kWrappedSize> wrapped) {
  auto context = OpenContext::make(Suite::kAes256Gcm, wrap_key.bytes());
  must(context.ok(), "an unwrap");
  Key out;
  if (!context->open(Nonce{}, {}, wrapped.first<kKeySize>(), wrapped.last<kTagSize>(),
                     out.place().data())) {
    return std::nullopt;
  }
  return out;
}

Key group_root(const Digest& transcript, const Key& secret) noexcept {
  return hkdf_extract(transcript, secret.bytes());
}

FilterKey filter_key(const Key& root, uint8_t lane) noexcept {
  const auto number = little(lane);
  const ConstBytes context[] = {number};
  FilterKey out;
  derive(root, "filter", context, out);
  return out;
}

Key first_chain(const Key& root, Mode mode, Suite suite, uint8_t lane, Member member) noexcept {
  const std::array<std::byte, 3> kind{static_cast<std::byte>(mode), static_cast<std::byte>(suite),
                                      static_cast<std::byte>(lane)};
  const auto number = little<uint16_t>(member);
  const ConstBytes context[] = {kind, number};
  return derive_key(root, "datagram", context);
}

Key next_chain(const Key& chain) noexcept { return derive_key(chain, "next"); }

EpochKey epoch_key(const Key& chain, Suite suite) noexcept {
  EpochKey out;
  derive(chain, "key", {}, out.key.place().first(key_size(suite)));
  derive(chain, "iv", {}, out.iv);
  return out;
}

Key pair_key(const Key& shared, const Key& mix) noexcept {
  return extract(bytes_of("torch-mcast pair 1"), shared, mix);
}

Key connection_key(const Key& pair, const Digest& h2) noexcept {
  const ConstBytes context[] = {h2};
  return derive_key(pair, "stream", context);
}

Key ack_key(const Key& connection) noexcept { return derive_key(connection, "ack"); }
Key confirm_key(const Key& connection) noexcept { return derive_key(connection, "confirm"); }

Key stream_chain(const Key& connection, Direction direction, Mode mode, Suite suite) noexcept {
  const std::array<std::byte, 2> kind{static_cast<std::byte>(mode), static_cast<std::byte>(suite)};
  const ConstBytes context[] = {kind};
  return derive_key(connection, direction == Direction::kToAcceptor ? "c2a" : "a2c", context);
}

}  // namespace mcast::crypto
