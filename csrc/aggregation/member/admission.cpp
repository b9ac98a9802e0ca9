// The wait doubles from one failure to the next, so that an unused address costs little. It starts
// anew when stations of the aggregator have been in force. One that is lost while in force is asked
// again after a second, because it was there a moment ago.
#include "aggregation/member/admission.h"

#include <algorithm>
#include <utility>

namespace mcast {
namespace {

constexpr size_t kMostReason = 300;           // bytes of a text from outside
constexpr uint32_t kMostCapacity = 1u << 30;  // links of 16384 ranks

// Makes a text from outside safe for logs, terminals and Python's str.
std::string plain(const std::string& text) {
  std::string out = text.substr(0, kMostReason);
  for (char& c : out) c = c >= ' ' && c <= '~' ? c : '?';
  return out;
}

// Whether it can be a host's address or name. (It contains no blanks: wire/admission.h.)
bool can_be_host(const std::string& text) { return text == plain(text); }

}  // namespace

void Admission::absent(const std::string& state, const std::string& why, Nanos wait, Nanos now) {
  state_ = State::kAbsent;
  decided_ = true;
  in_force_ = false;
  wait_ = wait;
  next_ = now + wait;
  word_ = state;
  reason_ = plain(why);
  answer_ = {};
  spoken_to_.clear();
}

void Admission::asking(Nanos now) {
  state_ = State::kAsking;
  next_ = now + kAnswer;
}

bool Admission::accepted(wire::Accept answer, const std::vector<uint64_t>& taken, Nanos now) {
  std::vector<uint64_t> seen = taken;
  for (wire::Accept::Station& s : answer.stations) {
    if (s.uid == 0 || s.port == 0 || !can_be_host(s.host) ||
        std::find(seen.begin(), seen.end(), s.uid) != seen.end()) {
      failed("it admitted the group with an impossible station", now);
      return false;
    }
    seen.push_back(s.uid);
    s.capacity = std::clamp(s.capacity, 1u, kMostCapacity);
  }
  state_ = State::kAdmitted;
  decided_ = true;
  next_ = kNever;
  word_ = "admitted";
  reason_.clear();
  answer_ = std::move(answer);
  spoken_to_ = uids();
  return true;
}

void Admission::refused(const wire::Refuse& answer, Nanos now) {
  absent("refused", answer.code + (answer.text.empty() ? "" : ": ") + answer.text,
         std::clamp(2 * wait_, kFirstWait, kLastWait), now);
}

void Admission::failed(const std::string& why, Nanos now) {
  absent("unreachable", why, std::clamp(2 * wait_, kFirstWait, kLastWait), now);
}

void Admission::draining() {
  if (state_ != State::kAdmitted) return;
  state_ = State::kDraining;
  word_ = "draining";
  reason_ = "it is about to end";
}

void Admission::ended(const std::string& why, Nanos now) {
  if (state_ == State::kAdmitted) {
    reason_ = "its stations go on: " + why;
  } else if (state_ == State::kDraining) {
    absent("unreachable", "it has ended", kWaitAfterLoss, now);
  } else {
    failed(why, now);
  }
}

void Admission::lost(const std::string& why, Nanos now) {
  if (state_ != State::kAdmitted && state_ != State::kDraining) return;
  absent("lost", why, in_force_ ? kWaitAfterLoss : std::clamp(2 * wait_, kWaitAfterLoss, kLastWait),
         now);
}

void Admission::in_force(const std::vector<uint64_t>& uids) {
  for (const wire::Accept::Station& s : answer_.stations) {
    if (std::find(uids.begin(), uids.end(), s.uid) == uids.end()) return;
  }
  if (state_ != State::kAdmitted) return;
  in_force_ = true;
  wait_ = 0;
}

bool Admission::parted(uint64_t uid) {
  return std::erase(spoken_to_, uid) > 0 && spoken_to_.empty();
}

bool Admission::has(uint64_t uid) const {
  return std::any_of(answer_.stations.begin(), answer_.stations.end(),
                     [uid](const wire::Accept::Station& s) { return s.uid == uid; });
}

std::vector<wire::StationEntry> Admission::stations() const {
  std::vector<wire::StationEntry> entries;
  if (state_ != State::kAdmitted) return entries;
  for (const wire::Accept::Station& s : answer_.stations) {
    entries.push_back({answer_.process, s.uid, s.capacity, s.port, s.host, address_.rack, s.key});
  }
  return entries;
}

std::vector<uint64_t> Admission::uids() const {
  std::vector<uint64_t> uids;
  for (const wire::Accept::Station& s : answer_.stations) uids.push_back(s.uid);
  return uids;
}

AggregatorStats Admission::stats() const {
  AggregatorStats out{address_.text(), word_, reason_, 0, 0};
  for (const wire::Accept::Station& s : answer_.stations) {
    out.stations++;
    out.capacity += static_cast<double>(s.capacity) / 65536;
  }
  return out;
}

}  // namespace mcast
