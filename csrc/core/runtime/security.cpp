// Rank 0 has all records. It publishes their digests, from which all ranks make the transcript T,
// each rank's public keys, and the group's secret, wrapped for each rank with a key that follows
// from T and the pair of endpoints. So a rank that can unwrap it has been seen by rank 0 exactly as
// it described itself, and all ranks agree on each other's identities.
#include "runtime/security.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/clock.h"
#include "base/errors.h"
#include "base/hex.h"
#include "base/random.h"
#include "crypto/ipsec_mb.h"
#include "crypto/library.h"
#include "crypto/signed_text.h"
#include "wire/bytes.h"
#include "wire/text_record.h"

namespace mcast {
namespace {

// For seal_rate(): number of tries, of which the best counts because other programs use the CPU now
// and then; datagrams between readings of the clock.
constexpr int kRateTries = 5;
constexpr size_t kRateBatch = 64;
constexpr Nanos kExcusePatience = 10 * kSecond;    // for reading an existing key from a store
constexpr const char* kStoreOrigin = "the store";  // origin of a secret
constexpr size_t kMostModeName = 16;               // characters that are shown
constexpr size_t kMostJobName = 120;

// As in a record (wire::put_field).
std::string one_line(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

std::string mode_of(const wire::Fields& fields) {
  const auto it = fields.find("security");
  return it == fields.end() ? "off" : it->second;
}

// A value from the store as part of an error text: limited in length, without control characters.
std::string shown(std::string text, size_t most) {
  text.resize(std::min(text.size(), most));
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < ' ' || c == '\x7f') c = '?';
  }
  return text;
}

ConstBytes as_bytes(const std::string& text) { return crypto::bytes_of(text); }

crypto::Digest digest_of(const std::string& text) { return crypto::sha256({as_bytes(text)}); }

void put_bytes(wire::Writer& out, ConstBytes bytes) {
  for (const std::byte b : bytes) out.put<uint8_t>(static_cast<uint8_t>(b));
}

template <size_t kSize>
std::array<std::byte, kSize> get_bytes(wire::Reader& in) {
  std::array<std::byte, kSize> bytes{};
  for (std::byte& b : bytes) b = static_cast<std::byte>(in.get<uint8_t>());
  return bytes;
}

// T: over all records, by their digests, and over rank 0's conclusion.
crypto::Digest transcript_of(std::vector<crypto::Digest> digests, const std::string& roster) {
  std::vector<std::string> texts;
  for (const crypto::Digest& d : digests) {
    texts.emplace_back(reinterpret_cast<const char*>(d.data()), d.size());
  }
  texts.push_back(roster);
  return crypto::transcript(static_cast<uint32_t>(digests.size()), texts);
}

Status unreadable() {
  return Status(
      Code::kMismatch,
      "the keys that rank 0 has published cannot be read; all ranks must use backend mcast "
      "of the same version");
}

}  // namespace

// As a group's lane does it; the same datagram repeatedly into one buffer.
Result<double> seal_rate(crypto::Mode mode, crypto::Suite suite, size_t chunk, Nanos time) {
  if (Status status = crypto::load_library(); !status.ok()) return status;
  auto key = crypto::SealKey::make(crypto::Key(), {mode, suite, 0}, 0, {});
  if (!key.ok()) return key.status();
  const std::vector<std::byte> payload(chunk);
  std::vector<std::byte> out(chunk + wire::kGuardedHeader + wire::kDatagramTag);
  const wire::DatagramHeader header{wire::DatagramType::kData, 0, false, false, 1, 0, 0, 0, 0, 0};
  double best = 0;
  for (int i = 0; i < kRateTries; i++) {
    const Nanos begin = monotonic_now(), end = begin + time / kRateTries;
    size_t sealed = 0;
    Nanos now = begin;
    for (; now < end; now = monotonic_now()) {
      for (size_t n = 0; n < kRateBatch; n++) {
        if (key->seal(out, header, payload) == 0) return key->failure();
      }
      sealed += kRateBatch * chunk;
    }
    if (now > begin) {
      best = std::max(best, static_cast<double>(sealed) * 1e9 / static_cast<double>(now - begin));
    }
  }
  return best;
}

Status same_mode(const std::string& theirs, Member other, const Config& config, Member self) {
  const std::string mode = mode_of(wire::fields_of(theirs));
  if (mode == config.security) return {};
  return Status(Code::kMismatch, error_text<ErrorId::security_differs>(
                                     other, shown(mode, kMostModeName), self, config.security) +
                                     "; give all ranks the same MCAST_SECURITY");
}

Status takes_part(const std::string& theirs, Member other) {
  const wire::Fields fields = wire::fields_of(theirs);
  const auto problem = fields.find("problem");
  if (problem == fields.end()) return {};
  return Status(Code::kUnavailable, "rank " + std::to_string(other) + " cannot take part: " +
                                        shown(problem->second, kMostProblem));
}

Status same_security(const std::string& theirs, Member other, const Config& config,
                     const crypto::JobSecret* secret, Member self) {
  if (Status status = same_mode(theirs, other, config, self); !status.ok()) return status;
  const wire::Fields fields = wire::fields_of(theirs);
  const auto check = fields.find("secret_check");
  if (check == fields.end() || check->second.empty()) {
    const auto problem = fields.find("problem");
    return Status(
        Code::kMismatch,
        "rank " + std::to_string(other) + " cannot guard its traffic: " +
            (problem == fields.end() ? "it has no secret" : shown(problem->second, kMostProblem)));
  }
  const auto job = fields.find("job");
  const std::string name = job == fields.end() ? "" : job->second;
  if (name != one_line(config.job)) {
    return Status(
        Code::kMismatch,
        "rank " + std::to_string(other) + " is of job '" + shown(name, kMostJobName) + "', rank " +
            std::to_string(self) + " of job '" + shown(config.job, kMostJobName) +
            "': give all ranks of a job the same MCAST_JOB, or find out who mixes two jobs");
  }
  if (secret == nullptr || !secret->fits(check->second)) {
    return Status(Code::kMismatch, error_text<ErrorId::secret_differs>(other, self) +
                                       "; give all ranks the same MCAST_SECRET_FILE");
  }
  return {};
}

Result<std::unique_ptr<SecureCreation>> SecureCreation::make(const GroupSpec& spec,
                                                             const EngineSecurity* engine) {
  const auto mode = crypto::parse_mode(spec.config.security);
  if (!mode || *mode == crypto::Mode::kOff) {
    return Status(Code::kInternal, "security=" + spec.config.security + " guards nothing");
  }
  if (spec.config.job.empty()) {
    return Status(Code::kInvalidArgument,
                  "a guarded group needs the name of its job: set MCAST_JOB to the same name on "
                  "all ranks, and to a different one in each job that has the secret");
  }
  std::shared_ptr<const crypto::JobSecret> secret;
  if (engine != nullptr) {
    // No input of a client makes its engine look for another secret, or take one from the store.
    if (!engine->secret) return Status(Code::kUnavailable, "the engine of its host has no secret");
    secret = engine->secret;
  } else if (spec.config.trust_store == 0 || crypto::secret_is_set(spec.config)) {
    auto found = crypto::find_secret(spec.config);
    if (!found.ok()) return found.status();
    secret = *found;
  }
  if (secret) {
    auto of_job = secret->for_job(spec.config.job);
    if (!of_job.ok()) return of_job.status();
    secret = std::move(of_job).value();
  }
  return std::unique_ptr<SecureCreation>(new SecureCreation(spec, *mode, std::move(secret)));
}

// A secret that a rank makes is kept for its process, so that groups share lanes whichever rank is
// 0.
Status SecureCreation::share_secret(KeyValueStore& store, Nanos deadline) {
  if (secret_) return {};
  static std::mutex mutex;
  static std::string first;  // in hex, as in the store
  std::string hex;
  if (spec_.rank == kConcluder) {
    const std::lock_guard<std::mutex> lock(mutex);
    if (first.empty()) {
      std::array<std::byte, 32> random;
      if (!secure_random_bytes(random)) return no_random_numbers();
      first = hex_text(random);
    }
    hex = shared_ = first;
  } else {
    const std::string key = "rank/" + std::to_string(kConcluder);
    Result<std::vector<std::string>> record =
        store.multi_get({key}, std::max<Nanos>(0, deadline - monotonic_now()));
    if (!record.ok()) return record.status().with_context("waiting for the secret of rank 0");
    const wire::Fields fields = wire::fields_of((*record)[0]);
    const auto it = fields.find("shared_secret");
    if (it == fields.end()) {
      Status same = same_security((*record)[0], kConcluder, spec_.config, nullptr, spec_.rank);
      return same.ok() ? Status(Code::kMismatch, "rank 0 passes no secret on through the store")
                       : same;
    }
    hex = it->second;
    const std::lock_guard<std::mutex> lock(mutex);
    if (first.empty()) first = hex;
  }
  std::array<std::byte, 32> bytes;
  if (!from_hex(hex, bytes)) {
    return Status(Code::kMismatch, "the secret that rank 0 passes on cannot be read");
  }
  auto made = crypto::JobSecret::make(bytes, kStoreOrigin);
  crypto::wipe(bytes);
  if (made.ok()) made = (*made)->for_job(spec_.config.job);
  if (!made.ok()) return made.status();
  secret_ = std::move(made).value();
  return {};
}

bool SecureCreation::agreed_on(Member rank, const std::string& text) const {
  return rank < agreed_records_.size() && agreed_records_[rank] == digest_of(text);
}

Status SecureCreation::excuse(const GroupSpec& spec, KeyValueStore& store, const Status& why) {
  // The record only has version, mode and problem, so that no rank waits for this one.
  RankRecord record = RankRecord::own_heading();
  record.security = SecurityRecord{spec.config.security, 0, "", "", {}, {}, {}, ""};
  const std::string key = "rank/" + std::to_string(spec.rank);
  const Status said =
      store.set(key, record.encode() + "problem=" + why.message().substr(0, kMostProblem) + "\n");
  // A rank that reads nothing would count as giving up this attempt to make the group, and ranks
  // that come later would proceed to the next attempt and wait there.
  if (said.ok()) (void)store.multi_get({key}, kExcusePatience);
  return said;
}

Status SecureCreation::describe(const Identities& lanes, RankRecord& mine) {
  if (Status status = describe_mode(mine); !status.ok()) return status;
  described_[mine.transport] = lanes;
  mine.security->multicast = lanes.multicast->public_key();
  mine.security->reduce = lanes.reduce->public_key();
  return {};
}

Status SecureCreation::describe_mode(RankRecord& mine) const {
  SecurityRecord record;
  record.mode = crypto::mode_name(mode_);
  record.suites = crypto::fast_suites();
  record.secret_check = secret_->make_check();
  record.job = spec_.config.job;
  record.shared_secret = shared_;
  if (!secure_random_bytes(record.nonce)) return no_random_numbers();
  mine.security = record;
  return {};
}

SecurityStats SecureCreation::stats() const {
  SecurityStats stats;
  stats.suite = crypto::suite_name(result_->suite);
  stats.library = crypto::library_version();
  stats.trust_store = secret_->origin() == kStoreOrigin;
  stats.keys_locked = crypto::all_secrets_locked();
  return stats;
}

void SecureCreation::name_peers(Agreement& agreement) const {
  for (size_t r = 0; r < agreement.peers.size(); r++) {
    agreement.peers[r].key = result_->keys.multicast[r];
    agreement.reduce_peers[r].key = result_->keys.reduce[r];
  }
}

Result<Guards> SecureCreation::make_guards(size_t most_payload) {
  if (std::exchange(guards_made_, true)) {
    return Status(Code::kInternal, "the guards of group '" + spec_.name + "' are made once");
  }
  Guards guards;
  for (const LaneId id : kBothLanes) {
    crypto::DatagramGuard::Params params;
    params.how = {mode_, result_->suite, static_cast<uint8_t>(id)};
    params.self = spec_.rank;
    params.members = spec_.size;
    params.most_payload = most_payload;
    auto made = crypto::DatagramGuard::make(*result_->root, params, lanes_[id]->budget());
    if (!made.ok()) return made.status().with_context("making the group's keys");
    guards[id] = std::move(made).value();
  }
  *result_->root = crypto::Key();
  return guards;
}

Result<crypto::Suite> SecureCreation::choose_suite(const std::vector<RankRecord>& records) const {
  if (const auto asked = crypto::parse_suite(spec_.config.security_suite)) return *asked;
  const bool aes = std::all_of(records.begin(), records.end(), [](const RankRecord& r) {
    return (r.security->suites & crypto::suite_bit(crypto::Suite::kAes128Gcm)) != 0;
  });
  return aes ? crypto::Suite::kAes128Gcm : crypto::Suite::kChaCha20Poly1305;
}

Result<std::string> SecureCreation::conclude(const Roster& concluded,
                                             const std::vector<std::string>& texts,
                                             const std::vector<RankRecord>& records) {
  const std::string roster = concluded.encode();
  lanes_ = described_[concluded.transport];
  Result<crypto::Suite> suite = choose_suite(records);
  if (!suite.ok()) return suite.status();
  std::vector<crypto::Digest> digests;
  for (const std::string& text : texts) digests.push_back(digest_of(text));
  const crypto::Digest transcript = transcript_of(digests, roster);
  std::array<std::byte, 32> random;
  if (!secure_random_bytes(random)) return no_random_numbers();
  const crypto::Key group = crypto::group_secret(random, secret_->mix());
  crypto::wipe(random);

  wire::Writer out;
  out.put<uint32_t>(static_cast<uint32_t>(roster.size()));
  out.put_text(roster);
  out.put<uint8_t>(crypto::pack(mode_, *suite));
  out.put<uint16_t>(static_cast<uint16_t>(records.size()));
  for (size_t r = 0; r < records.size(); r++) {
    put_bytes(out, digests[r]);
    put_bytes(out, records[r].security->multicast);
    put_bytes(out, records[r].security->reduce);
    crypto::Wrapped wrapped{};
    if (r != kConcluder) {
      Result<crypto::Key> pair = lanes_.multicast->shared(records[r].security->multicast);
      if (!pair.ok()) return pair.status().with_context("rank " + std::to_string(r));
      wrapped = crypto::wrap(
          crypto::wrap_key(transcript, *pair, secret_->mix(), static_cast<Member>(r)), group);
    }
    put_bytes(out, wrapped);
  }
  // Rank 0's own key, without using the store.
  Result<crypto::SecretBox<crypto::Key>> root =
      crypto::SecretBox<crypto::Key>::make(crypto::group_root(transcript, group));
  if (!root.ok()) return root.status();
  result_ = std::make_shared<GroupSecurity>(
      GroupSecurity{mode_, *suite, secret_, std::move(root).value(), {}});
  const ConstBytes bytes = out.bytes();
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

Result<Roster> SecureCreation::accept(const std::string& conclusion, const std::string& mine) {
  wire::Reader in(as_bytes(conclusion));
  const auto size = in.get<uint32_t>();
  if (!in.ok() || size > conclusion.size() - sizeof size) return unreadable();
  const std::string roster = conclusion.substr(sizeof size, size);
  Result<Roster> concluded = Roster::decode(roster);
  if (!concluded.ok()) return concluded;
  // If a second round ended where the first began, the lanes of the first are used.
  if (described_.count(concluded->transport) == 0) return unreadable();
  lanes_ = described_[concluded->transport];
  for (uint32_t i = 0; i < size; i++) (void)in.get<uint8_t>();
  const auto how = crypto::unpack(in.get<uint8_t>());
  const auto count = in.get<uint16_t>();
  if (!in.ok() || !how || how->mode != mode_ || count != spec_.size) return unreadable();
  std::vector<crypto::Digest> digests;
  std::vector<crypto::PublicKey> multicast, reduce;
  crypto::Wrapped wrapped{};
  for (uint32_t r = 0; r < count && in.ok(); r++) {
    digests.push_back(get_bytes<32>(in));
    multicast.push_back(get_bytes<32>(in));
    reduce.push_back(get_bytes<32>(in));
    const auto one = get_bytes<crypto::kWrappedSize>(in);
    if (r == spec_.rank) wrapped = one;
  }
  if (!in.done()) return unreadable();
  const Status saw_others(Code::kMismatch,
                          "rank 0 and rank " + std::to_string(spec_.rank) +
                              " saw different records: somebody changes the store, or two jobs "
                              "use it under one name");
  if (digests[spec_.rank] != digest_of(mine) ||
      multicast[spec_.rank] != lanes_.multicast->public_key() ||
      reduce[spec_.rank] != lanes_.reduce->public_key()) {
    return saw_others;
  }
  agreed_records_ = digests;
  const crypto::Digest transcript = transcript_of(digests, roster);
  if (spec_.rank != kConcluder) {
    Result<crypto::Key> pair = lanes_.multicast->shared(multicast[kConcluder]);
    if (!pair.ok()) return pair.status().with_context("rank 0");
    const auto group = crypto::unwrap(
        crypto::wrap_key(transcript, *pair, secret_->mix(), static_cast<Member>(spec_.rank)),
        wrapped);
    if (!group) return saw_others;
    Result<crypto::SecretBox<crypto::Key>> root =
        crypto::SecretBox<crypto::Key>::make(crypto::group_root(transcript, *group));
    if (!root.ok()) return root.status();
    result_ = std::make_shared<GroupSecurity>(
        GroupSecurity{mode_, how->suite, secret_, std::move(root).value(), {}});
  }
  result_->keys = {std::move(multicast), std::move(reduce)};
  auto agreed =
      crypto::SecretBox<crypto::Key>::make(crypto::agreed_key(secret_->record(), transcript));
  if (!agreed.ok()) return agreed.status();
  agreed_ = std::move(agreed).value();
  return concluded;
}

}  // namespace mcast
