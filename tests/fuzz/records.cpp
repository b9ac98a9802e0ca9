// What ranks tell each other through the store. The input's first byte chooses: a rank's record,
// the records of several ranks (separated by a zero byte) with the conclusion from them, a roster,
// or where a rank's memory is. Whatever is accepted stays the same when it is written and read
// again, and leads to an agreement for every rank.
#include <string>
#include <vector>

#include "base/config.h"
#include "engine/rendezvous.h"
#include "engine/transport_choice.h"
#include "fuzz.h"
#include "host/peer_registry.h"

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
  // As the others read it.
  require(Roster::decode(roster->encode()).ok(), "a conclusion can be read");
  check_roster(roster->encode());
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string text(fuzz::text_of(data + 1, size - 1));
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
