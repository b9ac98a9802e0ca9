// Every value in the store ends in a line with its MAC, which covers scope, key, group, size and
// text: a value of another group or another rank does not verify elsewhere. Records have new
// numbers and keys, so an old one is detected when the group's secret is unwrapped. Later values
// have MACs with a key that depends on all records. The mode and secret that a rank states are
// checked before its MAC, to tell a mistake from an attack.
#include "runtime/guarded_store.h"

#include <utility>

#include "base/units.h"
#include "crypto/signed_text.h"
#include "runtime/transport_choice.h"
#include "wire/text_record.h"

namespace mcast {
namespace {

bool is_record(const std::string& key) {
  const size_t slash = key.rfind('/');
  return slash != std::string::npos && slash + 1 < key.size() &&
         key.find_first_not_of("0123456789", slash + 1) == std::string::npos;
}

Member rank_of(const std::string& key) {
  uint16_t rank = 0;
  (void)read_number(std::string_view(key).substr(key.rfind('/') + 1), rank);
  return rank;
}

// Whether the key belongs to a round of records (Bootstrap::exchange_all).
bool of_records(const std::string& key) {
  const std::string round = key.substr(0, key.find('/'));
  return round == kRecordsRound || round == kNetworkRound || find_transport(round) != nullptr;
}

}  // namespace

crypto::RecordPlace GuardedStore::place_of(const std::string& scope, const std::string& key) const {
  return {scope, key, spec_.name, 0, spec_.size};
}

Status GuardedStore::set(const std::string& key, const std::string& value) {
  const Result<std::string> scope = inner_.scope();
  if (!scope.ok()) return scope.status();
  return inner_.set(key, crypto::with_mac(key_of(key), place_of(*scope, key), value));
}

// (A rank reads records again after all have agreed on them.)
const crypto::Key& GuardedStore::key_of(const std::string& key) const {
  const crypto::Key* const agreed = security_.agreed_key();
  return agreed == nullptr || of_records(key) ? security_.secret().record() : *agreed;
}

size_t GuardedStore::most_bytes(const std::string& key) const {
  return is_record(key) ? kMostRecordBytes : kMostRecordBytes * (size_t{1} + spec_.size);
}

Status GuardedStore::check(const std::string& key, const std::string& stored, std::string& value) {
  const bool record = is_record(key);
  const Member rank = record ? rank_of(key) : kConcluder;
  const std::string who = record ? "the record of rank " + std::to_string(rank)
                                 : "the value that rank 0 has published (" + key + ")";
  if (stored.size() > most_bytes(key)) {
    return Status(Code::kMismatch, who + " has " + std::to_string(stored.size()) +
                                       " bytes: more than any rank writes");
  }
  const Result<std::string> scope = inner_.scope();
  if (!scope.ok()) return scope.status();
  if (auto text = crypto::without_mac(key_of(key), place_of(*scope, key), stored)) {
    value = std::move(*text);
    return {};
  }
  return Status(Code::kMismatch,
                who + " was changed in the store, or is of another run (its MAC is wrong)");
}

Result<std::vector<std::string>> GuardedStore::multi_get(const std::vector<std::string>& keys,
                                                         Nanos timeout) {
  Result<std::vector<std::string>> stored = inner_.multi_get(keys, timeout);
  if (!stored.ok()) return stored;
  std::vector<std::string> values(keys.size());
  for (size_t i = 0; i < keys.size(); i++) {
    const std::string& text = (*stored)[i];
    const Status status = check(keys[i], text, values[i]);
    if (status.ok()) continue;
    // Checks whether it is a mistake rather than an attack.
    if (is_record(keys[i]) && text.size() <= most_bytes(keys[i]) &&
        wire::fields_of(text).count("protocol") > 0) {
      const Member other = rank_of(keys[i]);
      const RankRecord heading = RankRecord::heading(text);
      if (Status same = same_version(RankRecord::own_heading(), spec_.rank, heading, other);
          !same.ok()) {
        return same;
      }
      const Status same = same_security(text, other, spec_.config, &security_.secret(), spec_.rank);
      if (!same.ok()) return same;
    }
    return status;
  }
  return values;
}

}  // namespace mcast
