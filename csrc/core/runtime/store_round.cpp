// Lanes are queried on their own threads, one round trip each. Only rank 0 reads all answers from
// the store, in one call, which returns when the last rank has published; the others wait for rank
// 0. Only when the time is over do all ranks look which ranks are missing, to name them.
#include "runtime/store_round.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "runtime/transport_choice.h"

namespace mcast {
namespace {

// A conclusion as it is published: "+" and the text, or "-<code> " and the error text.
std::string packed(const Result<std::string>& conclusion) {
  if (conclusion.ok()) return "+" + conclusion.value();
  const Status& why = conclusion.status();
  return "-" + std::to_string(static_cast<int>(why.code())) + " " + why.message();
}

Result<std::string> unpacked(const std::string& text) {
  if (!text.empty() && text[0] == '+') return text.substr(1);
  int code = 0;
  const char* const end = text.data() + text.size();
  const auto [at, error] =
      std::from_chars(text.data() + std::min<size_t>(1, text.size()), end, code);
  const bool known = error == std::errc() && text[0] == '-' && code > 0 &&
                     code <= static_cast<int>(Code::kInternal);
  if (!known || at == end) {
    return Status(Code::kMismatch,
                  "the value that rank 0 has published cannot be read; all ranks must use "
                  "backend mcast of the same version");
  }
  return Status(static_cast<Code>(code), std::string(at + 1, end));
}

// The records of ranks 0, 1, ... as read by rank `self`, which has published `mine`. Versions are
// compared first: records of another version may not be readable here.
Result<std::vector<RankRecord>> decode_all(const std::vector<std::string>& texts,
                                           const RankRecord& mine, Member self,
                                           const Config& config) {
  std::vector<RankRecord> records;
  for (const std::string& text : texts) {
    const auto rank = static_cast<Member>(records.size());
    const RankRecord heading = RankRecord::heading(text);
    const Status same = rank < self ? same_version(heading, rank, mine, self)
                                    : same_version(mine, self, heading, rank);
    Result<RankRecord> record = RankRecord::decode(text);
    if (!same.ok() && (record.ok() || !heading.version.empty())) return same;
    // (GuardedStore has checked the MAC of a guarded group's records. The MAC does not cover the
    // mode.)
    if (Status mode = same_mode(text, rank, config, self); !mode.ok()) return mode;
    if (Status can = takes_part(text, rank); !can.ok()) return can;
    if (!record.ok()) return record.status().with_context("rank " + std::to_string(rank));
    records.push_back(std::move(record).value());
  }
  return records;
}

// Chooses a port of the address that no group with other members has, as far as the store knows:
// datagrams for those groups then never reach a socket of this group. After kTries taken ports it
// uses a shared one, where the tag separates datagrams.
void take_port(StoreRound& round, Roster& roster) {
  constexpr uint32_t kTries = 64;
  const std::string owner = std::to_string(roster.members);
  const std::string address = std::to_string(roster.address.group) + "/";
  for (uint32_t i = 0; i < kTries; i++) {
    const uint16_t port = multicast_port(roster.members, i);
    const Result<std::string> has = round.claim("port/" + address + std::to_string(port), owner);
    if (!has.ok()) return;
    if (*has != owner) continue;
    roster.address.port = port;
    return;
  }
}

// Called on rank 0. `first`: the records of the round before, if this is the second.
Result<Roster> roster_of(const GroupSpec& spec, const std::vector<RankRecord>& now,
                         const std::vector<RankRecord>& first, const Reaches& reaches) {
  if (const std::string network = reaches ? choose_network(now, reaches) : ""; !network.empty()) {
    Roster roster;
    roster.again = true;
    roster.transport = now[kConcluder].transport;
    roster.network = network;
    return roster;
  }
  const std::string& setting = spec.config.transport;
  const TransportType* tried = nullptr;  // by all ranks, since the first round
  if (!first.empty()) {
    Result<TransportChoice> before = choose_transport(first, setting);
    if (!before.ok()) return before.status();
    tried = before->type;
  }
  Result<TransportChoice> choice = choose_transport(now, setting, tried);
  if (!choice.ok()) return choice.status();
  const bool fallback = choice->type == &fallback_transport();
  Roster roster;
  // All have a device. Next come the endpoints on it, which may still fail (locked memory).
  roster.again = !fallback && first.empty() && find_transport(setting) == nullptr;
  if (!roster.again) {
    Result<Roster> made = conclude(first.empty() || !fallback ? now : first, spec.part_index);
    if (!made.ok()) return made;
    roster = std::move(made).value();
  }
  roster.transport = choice->type->name;
  roster.transport_reason = choice->reason;
  return roster;
}

}  // namespace

bool describe_lanes(const Lanes& lanes, RankRecord& record) {
  const bool multicast = lanes.multicast->call([&record](Lane& l, Nanos) {
    Transport& t = l.transport();
    record.transport = t.name();
    record.external = t.stream().address(false);
    record.loopback = t.stream().address(true);
    record.datagram.external = t.datagram().max_datagram({1, 1, false});
    record.datagram.loopback = t.datagram().max_datagram({1, 1, true});
    record.budget = t.datagram().receive_budget();
  });
  return multicast && lanes.reduce->call([&record](Lane& l, Nanos) {
    record.reduce_external = l.transport().stream().address(false);
    record.reduce_loopback = l.transport().stream().address(true);
  });
}

std::vector<std::string> StoreRound::all_keys() const {
  std::vector<std::string> keys;
  for (uint32_t r = 0; r < size_; r++) keys.push_back(key(static_cast<Member>(r)));
  return keys;
}

Result<std::string> StoreRound::hear(Nanos timeout, const Conclude& conclude) {
  const std::string all = prefix_ + "/all";
  const bool first = rank_ == kConcluder;
  Result<std::vector<std::string>> heard =
      store_.multi_get(first ? all_keys() : std::vector{all}, timeout);
  if (!heard.ok()) return heard.status();
  over_ = true;
  if (!first) return unpacked((*heard)[0]);
  Result<std::string> conclusion = conclude(*heard);
  if (Status status = store_.set(all, packed(conclusion)); !status.ok()) {
    // The store works, but not for a text of this length.
    if (status.code() == Code::kResourceExhausted) {
      (void)store_.set(all, packed(status.with_context("rank 0")));
    }
    return status;
  }
  return conclusion;
}

Status StoreRound::give_up(const Status& why, const std::string& doing) {
  const bool late = why.code() == Code::kTimeout;
  if (rank_ != kConcluder) return (late ? missing() : why).with_context(doing);
  const Status full = why.with_context(doing);
  // A store that has failed is not used again.
  if (late || why.code() == Code::kAborted || why.code() == Code::kPeerLost ||
      why.code() == Code::kMismatch) {
    (void)store_.set(prefix_ + "/all", packed(late ? full : full.with_context("rank 0")));
  }
  return full;
}

Result<std::vector<std::string>> StoreRound::answers(const std::vector<Member>& of, Nanos timeout) {
  std::vector<std::string> keys;
  for (const Member m : of) keys.push_back(key(m));
  return store_.multi_get(keys, timeout);
}

Status StoreRound::missing() {
  Result<std::vector<std::string>> all = store_.multi_get(all_keys(), 0);
  if (!all.ok()) return all.status();
  return Status(Code::kTimeout, "rank 0 has not published the result of all ranks' answers");
}

Result<Roster> exchange_records(const GroupSpec& spec, StoreRound& round, const RankRecord& mine,
                                Nanos start, Nanos deadline, std::vector<RankRecord>& records,
                                SecureCreation* security, const Reaches& reaches) {
  const auto left = [deadline] { return std::max<Nanos>(0, deadline - monotonic_now()); };
  const auto waiting = [&](const Status& why) {
    // The store works, but the value is not the one that a rank has written.
    if (why.code() == Code::kMismatch) return round.give_up(why, "");
    return round.give_up(why, "waiting for the addresses of all ranks, for " +
                                  seconds_text(monotonic_now() - start) + " (limit " +
                                  seconds_text(spec.timeout) + ")");
  };
  const std::string own = mine.encode();
  if (Status status = round.say(own); !status.ok()) {
    return status.with_context("publishing this rank's address");
  }
  if (spec.rank != kConcluder) {
    Result<std::vector<std::string>> first = round.answers({kConcluder}, left());
    if (!first.ok()) return waiting(first.status());
    Result<std::vector<RankRecord>> theirs = decode_all(*first, mine, spec.rank, spec.config);
    if (!theirs.ok()) return theirs.status();
  }
  const auto concluded = [&](const std::vector<std::string>& answers) -> Result<std::string> {
    Result<std::vector<RankRecord>> all = decode_all(answers, mine, spec.rank, spec.config);
    if (!all.ok()) return all.status();
    Result<Roster> roster = roster_of(spec, *all, records, reaches);
    if (!roster.ok()) return roster.status();
    if (!roster->again) take_port(round, *roster);
    const std::vector<RankRecord> before = std::exchange(records, std::move(all).value());
    if (security == nullptr || roster->again) return roster->encode();
    const bool fallen_back = !before.empty() && roster->transport == fallback_transport().name;
    return security->conclude(*roster, answers, fallen_back ? before : records);
  };
  Result<std::string> heard = round.hear(left(), concluded);
  if (!heard.ok()) return round.over() ? heard.status() : waiting(heard.status());
  // (A roster that says "again" is as short as in any group: the rest of it is not used yet.)
  Result<Roster> roster = Roster::decode(*heard);
  if (security != nullptr && (!roster.ok() || !roster->again)) {
    roster = security->accept(*heard, own);
    if (!roster.ok()) return roster;
  }
  if (roster.ok() && !roster->again && roster->ranks.size() != spec.size) {
    return Status(Code::kMismatch, "ranks differ in the size of the group: rank 0 has " +
                                       std::to_string(roster->ranks.size()) + ", rank " +
                                       std::to_string(spec.rank) + " has " +
                                       std::to_string(spec.size));
  }
  if (roster.ok() && !roster->again && roster->transport == mine.transport &&
      roster->ranks[spec.rank].external.uid != mine.external.uid) {
    return Status(Code::kMismatch,
                  "rank " + std::to_string(spec.rank) +
                      " was started again while the group was made: rank 0 has read the address of "
                      "the previous process; the other ranks cannot reach it and will fail");
  }
  return roster;
}

}  // namespace mcast
