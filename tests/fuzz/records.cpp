// Records that ranks exchange through the store. The input's first byte selects a rank's record,
// the records of several ranks (separated by a zero byte) with the conclusion from them, a roster,
// or the place of a rank's memory. An accepted one stays the same when it is written and read
// again, and leads to an agreement for every rank. If the byte's highest bit is set, the input is
// the content of a guarded group's store: nothing is accepted without its MAC, and with a MAC that
// a holder of the secret can make, it opens no group.
#include <string>
#include <vector>

#include "base/config.h"
#include "crypto/signed_text.h"
#include "fuzz.h"
#include "runtime/guarded_store.h"
#include "runtime/rendezvous.h"
#include "runtime/security.h"
#include "runtime/transport_choice.h"
#include "shm/peer_registry.h"

using namespace mcast;
using fuzz::require;

namespace {

void check_record(const std::string& text) {
  const Result<RankRecord> record = RankRecord::decode(text);
  if (!record.ok()) return;
  for (const uint64_t number : {uint64_t{record->protocol}, record->external.uid, record->random}) {
    require(text.find(std::to_string(number)) != std::string::npos, "a number is the one written");
  }
  const std::string plain = record->encode();
  const Result<RankRecord> again = RankRecord::decode(plain);
  require(again.ok() && again->encode() == plain, "a record stays what it is");
  require(same_version(*record, 0, *again, 1).ok(), "and of its version");
  require(same_version(*record, 0, RankRecord::heading(text), 1).ok(), "which its heading tells");
}

void check_address(const std::string& text) {
  HostAddress address;
  if (!HostAddress::decode(text, address)) return;
  HostAddress again;
  require(HostAddress::decode(address.encode(), again), "an address can be read again");
  require(again.encode() == address.encode(), "an address stays what it is");
}

void check_roster(const std::string& text) {
  const Result<Roster> roster = Roster::decode(text);
  if (!roster.ok()) return;
  const std::string plain = roster->encode();
  const Result<Roster> again = Roster::decode(plain);
  require(again.ok() && again->encode() == plain, "a roster stays what it is");
  require(again->ranks.size() == (roster->again ? 0 : roster->ranks.size()), "with all ranks");
  if (roster->again) return;
  for (size_t rank = 0; rank < roster->ranks.size() && rank < 8; rank++) {
    const Agreement a = agreement_of(*roster, static_cast<Member>(rank), Config());
    require(a.hosts <= roster->ranks.size() && a.host_of.size() == roster->ranks.size() &&
                a.peers.size() == roster->ranks.size() && a.agreed.chunk >= kChunkUnit &&
                a.agreed.chunk % kChunkUnit == 0,
            "an agreement that can be worked with");
  }
}

void check_conclusion(const std::string& texts) {
  std::vector<RankRecord> records;
  for (size_t at = 0; at <= texts.size();) {
    const size_t end = std::min(texts.find('\0', at), texts.size());
    Result<RankRecord> record = RankRecord::decode(texts.substr(at, end - at));
    if (!record.ok()) return;
    records.push_back(std::move(record).value());
    at = end + 1;
  }
  for (const char* setting : {"auto", "udp", "verbs"}) (void)choose_transport(records, setting);
  const Result<Roster> roster = conclude(records);
  if (!roster.ok()) return;
  require(roster->ranks.size() == records.size(), "every rank is in the roster");
  // As the other ranks read it.
  require(Roster::decode(roster->encode()).ok(), "a conclusion can be read");
  check_roster(roster->encode());
}

// A store with one value for all keys.
struct OneValue final : KeyValueStore {
  std::string value;
  Status set(const std::string&, const std::string&) override { return {}; }
  Result<std::vector<std::string>> multi_get(const std::vector<std::string>& keys, Nanos) override {
    return std::vector<std::string>(keys.size(), value);
  }
  Result<std::string> scope() override { return std::string("mcast/1/"); }
};

// Rank 1 of two, which has published its record.
struct GuardedRank {
  GuardedRank() {
    spec.name = "g";
    spec.rank = 1;
    spec.size = 2;
    spec.config.security = "sealed";
    spec.config.job = "fuzz";
    auto made = crypto::JobSecret::make(std::vector<std::byte>(32, std::byte{7}), "the input's");
    require(made.ok(), "a secret");
    secret = std::move(made).value();
    const EngineSecurity engine{{"sealed"}, secret};
    auto begun = SecureCreation::make(spec, &engine);
    require(begun.ok(), "a creation");
    creation = std::move(begun).value();
    auto one = LaneIdentity::make(spec.config, *secret);
    auto two = LaneIdentity::make(spec.config, *secret);
    require(one.ok() && two.ok(), "identities");
    multicast = *one, reduce = *two;
    mine.transport = "udp";
    require(creation->describe({multicast, reduce}, mine).ok(), "a record");
    Roster two_ranks;
    two_ranks.datagram = 1440;
    two_ranks.ranks.resize(2);
    good = two_ranks.encode();
    require(Roster::decode(good).ok(), "a roster");
  }
  // The conclusion that rank 0 would publish with this roster and these wraps, if it had read this
  // rank's record.
  std::string conclusion(const std::string& roster, std::string_view wraps) const {
    wire::Writer out;
    out.put<uint32_t>(static_cast<uint32_t>(roster.size()));
    out.put_text(roster);
    out.put<uint8_t>(crypto::pack(crypto::Mode::kSealed, crypto::Suite::kAes128Gcm));
    out.put<uint16_t>(2);
    const crypto::Digest digest = crypto::sha256({crypto::bytes_of(text())});
    for (int rank = 0; rank < 2; rank++) {
      for (const auto& part : {digest, multicast->public_key(), reduce->public_key()}) {
        for (const std::byte b : part) out.put<uint8_t>(static_cast<uint8_t>(b));
      }
      for (size_t i = 0; i < crypto::kWrappedSize; i++) {
        out.put<uint8_t>(static_cast<uint8_t>(i < wraps.size() ? wraps[i] : 0));
      }
    }
    return std::string(reinterpret_cast<const char*>(out.bytes().data()), out.size());
  }
  std::string text() const { return mine.encode(); }

  GroupSpec spec;
  std::shared_ptr<const crypto::JobSecret> secret;
  std::unique_ptr<SecureCreation> creation;
  std::shared_ptr<const LaneIdentity> multicast, reduce;
  RankRecord mine;
  std::string good;  // a roster that can be read
};

void check_guarded(const std::string& text) {
  static GuardedRank rank;
  OneValue inner;
  GuardedStore store(inner, rank.spec, *rank.creation);
  for (const std::string key : {"rank/0", "rank/all"}) {
    inner.value = text;
    require(!store.multi_get({key}, 0).ok(), "nothing is believed without its MAC");
    const crypto::RecordPlace place{"mcast/1/", key, "g", 0, 2};
    inner.value = crypto::with_mac(rank.creation->secret().record(), place, text);
    const auto values = store.multi_get({key}, 0);
    const bool fits = key != "rank/0" || inner.value.size() <= kMostRecordBytes;
    require(values.ok() == fits && (!fits || (*values)[0] == text), "with it, it is what it was");
    inner.value.back() = inner.value.back() == '0' ? '1' : '0';
    require(!store.multi_get({key}, 0).ok(), "nor with another one");
  }
  require(!rank.creation->accept(text, rank.text()).ok(), "no words open a group");
  const size_t end = std::min(text.find('\0'), text.size());
  const std::string_view wraps = std::string_view(text).substr(std::min(end + 1, text.size()));
  for (const std::string& roster : {text.substr(0, end), rank.good}) {
    require(!rank.creation->accept(rank.conclusion(roster, wraps), rank.text()).ok(),
            "nor does a wrap by who has neither pair");
  }
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string text(fuzz::text_of(data + 1, size - 1));
  if (data[0] >= 0x80) return check_guarded(text), 0;
  switch (data[0] % 4) {
    case 0:
      check_record(text);
      break;
    case 1:
      check_conclusion(text);
      break;
    case 2:
      check_roster(text);
      break;
    default:
      check_address(text);
  }
  return 0;
}
