// Events are recorded at once and handled in the next turn(), which alone opens and closes
// connections. A connection whose aggregator is no longer admitted is closed with a Bye, and so is
// every connection of a group that has left. A guarded group sends nothing before it is asked for a
// proof, and accepts no Accept without one. The aggregator that asks for the proof is not
// authenticated: whatever it sends, it gets a request, which contains no secret.
#include "aggregation/member/registrar_core.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "crypto/signed_text.h"

namespace mcast {
namespace {

using Asking = Admission::State;

constexpr size_t kMostMode = 16;  // characters of the mode named by an unauthenticated peer

std::vector<uint64_t> uids_of(const std::vector<wire::StationEntry>& stations) {
  std::vector<uint64_t> uids;
  for (const wire::StationEntry& s : stations) uids.push_back(s.uid);
  return uids;
}

}  // namespace

void RegistrarCore::enter(uint64_t group, Registrar::Job job, Nanos now) {
  Entry& entry = jobs_[group];
  for (const NetAddress& address : job.aggregators) entry.rows.emplace_back(address);
  entry.job = std::move(job);
  entry.gather_until = now + Registrar::kGather;
}

void RegistrarCore::settled(uint64_t group, const std::vector<uint64_t>& uids) {
  const auto at = jobs_.find(group);
  if (at == jobs_.end()) return;
  for (Row& row : at->second.rows) row.admission.in_force(uids);
}

bool RegistrarCore::lost(uint64_t group, uint64_t uid, const std::string& why, Nanos now) {
  const auto at = jobs_.find(group);
  bool any = false;
  if (at == jobs_.end()) return any;
  for (Row& row : at->second.rows) {
    if (!row.admission.has(uid)) continue;
    row.admission.lost(why, now);
    note(at->second, row);
    any = true;
  }
  return any;
}

bool RegistrarCore::parted(uint64_t group, uint64_t uid, Nanos now) {
  const auto at = jobs_.find(group);
  bool any = false;
  if (at == jobs_.end()) return any;
  for (Row& row : at->second.rows) {
    if (!row.admission.parted(uid) || row.admission.state() != Asking::kDraining) continue;
    row.admission.ended("", now);
    any = true;
  }
  return any;
}

bool RegistrarCore::leave(uint64_t group) {
  const auto at = jobs_.find(group);
  if (at != jobs_.end()) at->second.left = true;
  return at != jobs_.end();
}

void RegistrarCore::leave_all() {
  for (auto& [id, entry] : jobs_) entry.left = true;
}

std::vector<AggregatorStats> RegistrarCore::stats(uint64_t group) const {
  std::vector<AggregatorStats> all;
  const auto at = jobs_.find(group);
  if (at == jobs_.end()) return all;
  for (const Row& row : at->second.rows) all.push_back(row.admission.stats());
  return all;
}

std::vector<RegistrarCore::Due> RegistrarCore::due(Nanos now) const {
  std::vector<Due> all;
  for (const auto& [id, entry] : jobs_) {
    for (size_t i = 0; i < entry.rows.size(); i++) {
      const Admission& admission = entry.rows[i].admission;
      if (admission.to_be_asked(now)) all.push_back({id, i, admission.address()});
    }
  }
  return all;
}

void RegistrarCore::looked_up(const Due& due, bool pending) {
  jobs_.at(due.group).rows[due.row].looked_up = pending;
}

void RegistrarCore::failed(const Due& due, const std::string& why, Nanos now) {
  Entry& entry = jobs_.at(due.group);
  Row& row = entry.rows[due.row];
  row.admission.failed(why, now);
  note(entry, row);
}

void RegistrarCore::turn(Nanos now) {
  for (auto at = jobs_.begin(); at != jobs_.end();) {
    Entry& entry = at->second;
    if (entry.left) {
      for (Row& row : entry.rows) {
        if (row.link) say_goodbye(entry, row);
      }
      at = jobs_.erase(at);
      continue;
    }
    tidy(entry, now);
    for (size_t i = 0; i < entry.rows.size(); i++) {
      if (entry.rows[i].admission.to_be_asked(now)) ask(at->first, entry, i, now);
    }
    offer(entry, now);
    ++at;
  }
}

// An aggregator that has not been asked would take the Bye for an invalid request.
void RegistrarCore::say_goodbye(const Entry& entry, Row& row) {
  if (!entry.job.secret || !row.nonce.empty()) row.link->send(wire::Bye{});
}

// Gives up late aggregators, and closes connections that are no longer needed.
void RegistrarCore::tidy(Entry& entry, Nanos now) {
  for (Row& row : entry.rows) {
    if (row.admission.answer_is_late(now)) {
      const bool silent = entry.job.secret && row.link && row.nonce.empty();
      row.admission.failed(
          "no answer for " + seconds_text(Admission::kAnswer) +
              (silent ? "; it does not ask for a proof: is its security off?" : ""),
          now);
      note(entry, row);
    }
    if (!row.link || row.admission.state() != Asking::kAbsent) continue;
    say_goodbye(entry, row);
    row.link.reset();
  }
}

// The request to an aggregator: the same for all, except these two fields.
const wire::Ask& RegistrarCore::ask_of(Entry& entry, const Row& row) {
  entry.job.ask.roster = entry.version + 1;
  entry.job.ask.rack = row.admission.address().rack;
  return entry.job.ask;
}

void RegistrarCore::ask(uint64_t group, Entry& entry, size_t number, Nanos now) {
  Row& row = entry.rows[number];
  const wire::Ask& ask = ask_of(entry, row);
  if (const size_t bytes = wire::encode(ask).size() + crypto::kMacLineSize;
      bytes > wire::kMaxAdmission || ask.uids.size() > wire::kMaxAdmissionRanks) {
    row.admission.failed(
        "a group of " + std::to_string(ask.uids.size()) + " ranks is too large for aggregators",
        now);
    return note(entry, row);
  }
  row.link = connect_(group, number, row.admission.address());
  if (!row.link) return;
  row.nonce.clear();
  if (!entry.job.secret) row.link->send(ask);
  row.admission.asking(now);
  if (const Status status = row.link->begun(); !status.ok()) on_end(entry, row, status, now);
}

void RegistrarCore::offer(Entry& entry, Nanos now) {
  const bool decided = std::all_of(entry.rows.begin(), entry.rows.end(),
                                   [](const Row& row) { return row.admission.decided(); });
  if (!entry.offered && !decided && now < entry.gather_until) return;
  std::vector<wire::StationEntry> stations;
  for (const Row& row : entry.rows) {
    for (wire::StationEntry& s : row.admission.stations()) stations.push_back(std::move(s));
  }
  std::vector<uint64_t> uids = uids_of(stations);
  if (entry.offered && uids == entry.last_offer) return;
  entry.offered = true;
  entry.last_offer = std::move(uids);
  entry.version++;
  entry.job.offer(std::move(stations));
}

void RegistrarCore::arrived(uint64_t group, size_t number, const Status& status, Nanos now) {
  Entry& entry = jobs_.at(group);
  Row& row = entry.rows[number];
  while (row.link) {
    wire::Admission record;
    std::string text;
    const Result<bool> more = row.link->next(record, text);
    if (!more.ok()) return on_end(entry, row, more.status(), now);
    if (!*more) break;
    on_record(entry, row, std::move(record), text, now);
  }
  if (row.link && !status.ok()) on_end(entry, row, status, now);
}

void RegistrarCore::on_challenge(Entry& entry, Row& row, const wire::Challenge& challenge,
                                 Nanos now) {
  const wire::Ask& ask = ask_of(entry, row);
  const std::string mode = ask.security.empty() ? "off" : ask.security;
  if (!entry.job.secret || challenge.security != mode || challenge.nonce.empty()) {
    // Without a proof, so that the aggregator's log names the two modes, too. No real aggregator
    // serves such a request, and a fake one could get it by claiming the group's mode as well.
    if (entry.job.secret) row.link->send(ask);
    row.admission.failed(
        "the aggregator runs with security=" + challenge.security.substr(0, kMostMode) +
            ", the group with security=" + mode,
        now);
    return;
  }
  row.nonce = challenge.nonce;
  const std::string proved =
      crypto::with_mac(entry.job.secret->aggregators().record, crypto::said_over(row.nonce, "ask"),
                       wire::encode(ask));
  row.asked = crypto::digest_text(proved);
  row.link->send_text(proved);
}

Status RegistrarCore::check_accept(const Entry& entry, const Row& row, const wire::Accept& accept,
                                   const std::string& text) {
  if (!entry.job.secret) return {};
  const bool keyed =
      std::all_of(accept.stations.begin(), accept.stations.end(),
                  [](const auto& station) { return station.key != wire::EndpointKey{}; });
  // (Before the challenge a record cannot be a valid reply.)
  if (keyed && !row.nonce.empty() &&
      crypto::without_mac(entry.job.secret->aggregators().record,
                          crypto::said_over(row.nonce, "accept", row.asked), text)) {
    return {};
  }
  return Status(Code::kMismatch,
                "its proof is wrong: its secret was not made from this job's secret, or somebody "
                "has changed its messages");
}

void RegistrarCore::on_record(Entry& entry, Row& row, wire::Admission record,
                              const std::string& text, Nanos now) {
  const Asking state = row.admission.state();
  if (auto* const yes = std::get_if<wire::Accept>(&record); yes && state == Asking::kAsking) {
    if (const Status proof = check_accept(entry, row, *yes, text); !proof.ok()) {
      return on_end(entry, row, proof, now);
    }
    row.admission.accepted(std::move(*yes), taken(entry), now);
  } else if (const auto* proof = std::get_if<wire::Challenge>(&record);
             proof && state == Asking::kAsking && row.nonce.empty()) {
    on_challenge(entry, row, *proof, now);
  } else if (const auto* no = std::get_if<wire::Refuse>(&record); no && state == Asking::kAsking) {
    row.admission.refused(*no, now);
  } else if (std::holds_alternative<wire::Draining>(record) && state == Asking::kAdmitted) {
    row.admission.draining();
  } else {
    return on_end(entry, row,
                  Status(Code::kInvalidArgument, "it sent a record that is not expected here"),
                  now);
  }
  note(entry, row);
}

void RegistrarCore::on_end(Entry& entry, Row& row, const Status& why, Nanos now) {
  row.link.reset();
  row.admission.ended(why.message(), now);
  note(entry, row);
}

// Logs each change once.
void RegistrarCore::note(const Entry& entry, Row& row) const {
  const AggregatorStats s = row.admission.stats();
  const bool admitted = s.state == "admitted";
  const std::string text = s.address + ": " + s.state +
                           (admitted ? ", " + std::to_string(s.stations) + " station(s)" : "") +
                           (s.reason.empty() ? "" : " (" + s.reason + ")");
  if (text == row.noted) return;
  row.noted = text;
  log(admitted ? LogLevel::kInfo : LogLevel::kWarn, "group '%s': aggregator %s",
      entry.job.ask.name.c_str(), text.c_str());
}

// Uids of ranks, and of stations of other aggregators.
std::vector<uint64_t> RegistrarCore::taken(const Entry& entry) const {
  std::vector<uint64_t> all = entry.job.ask.uids;
  for (const Row& row : entry.rows) {
    for (const uint64_t uid : row.admission.uids()) all.push_back(uid);
  }
  return all;
}

Nanos RegistrarCore::next() const {
  Nanos next = kNever;
  for (const auto& [id, entry] : jobs_) {
    if (!entry.offered) next = std::min(next, entry.gather_until);
    for (const Row& row : entry.rows) {
      if (!row.looked_up) next = std::min(next, row.admission.next());
    }
  }
  return next;
}

}  // namespace mcast
