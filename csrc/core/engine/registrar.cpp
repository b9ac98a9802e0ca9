// One thread, one poll() over all connections and a wake-up. Whatever others tell is noted under
// the lock and acted upon in the thread's next turn, which alone opens and closes connections; only
// asking a name server happens without the lock. A connection whose aggregator is not admitted any
// more is closed with a Bye; so is every connection of a group that has left.
#include "engine/registrar.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/log.h"
#include "base/signals_blocked.h"
#include "engine/clock.h"

namespace mcast {
namespace {

using Asking = Admission::State;

std::vector<uint64_t> uids_of(const std::vector<wire::StationEntry>& stations) {
  std::vector<uint64_t> uids;
  for (const wire::StationEntry& s : stations) uids.push_back(s.uid);
  return uids;
}

int poll_timeout(Nanos next, Nanos now) {
  if (next == kNever) return -1;
  const Nanos left = std::clamp<Nanos>(next - now, 0, 3600 * kSecond);
  return static_cast<int>((left + kMilli - 1) / kMilli);
}

}  // namespace

Registrar::~Registrar() {
  stop();
  if (wake_ >= 0) ::close(wake_);
}

Status Registrar::enter(uint64_t group, Job job) {
  const std::lock_guard<std::mutex> held(mutex_);
  if (wake_ < 0) wake_ = ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (wake_ < 0) return Status::system(errno, "no descriptor to wake the registrar by");
  if (!thread_.joinable()) {
    const SignalsBlocked blocked;
    thread_ = std::thread([this] { loop(); });
  }
  Entry& entry = jobs_[group];
  for (const NetAddress& address : job.aggregators) entry.rows.emplace_back(address);
  entry.job = std::move(job);
  entry.gather_until = monotonic_now() + kGather;
  wake();
  return {};
}

void Registrar::settled(uint64_t group, const std::vector<uint64_t>& uids) {
  const std::lock_guard<std::mutex> held(mutex_);
  const auto at = jobs_.find(group);
  if (at == jobs_.end()) return;
  for (Row& row : at->second.rows) row.admission.in_force(uids);
}

void Registrar::lost(uint64_t group, uint64_t uid, const std::string& why) {
  const std::lock_guard<std::mutex> held(mutex_);
  const auto at = jobs_.find(group);
  if (at == jobs_.end()) return;
  for (Row& row : at->second.rows) {
    if (!row.admission.has(uid)) continue;
    row.admission.lost(why, monotonic_now());
    note(at->second, row);
    wake();
  }
}

void Registrar::parted(uint64_t group, uint64_t uid) {
  const std::lock_guard<std::mutex> held(mutex_);
  const auto at = jobs_.find(group);
  if (at == jobs_.end()) return;
  for (Row& row : at->second.rows) {
    if (!row.admission.parted(uid) || row.admission.state() != Asking::kDraining) continue;
    row.admission.ended("", monotonic_now());
    wake();
  }
}

std::vector<AggregatorStats> Registrar::stats(uint64_t group) const {
  const std::lock_guard<std::mutex> held(mutex_);
  std::vector<AggregatorStats> all;
  const auto at = jobs_.find(group);
  if (at == jobs_.end()) return all;
  for (const Row& row : at->second.rows) all.push_back(row.admission.stats());
  return all;
}

void Registrar::leave(uint64_t group) {
  const std::lock_guard<std::mutex> held(mutex_);
  const auto at = jobs_.find(group);
  if (at == jobs_.end()) return;
  at->second.left = true;
  wake();
}

void Registrar::stop() {
  {
    const std::lock_guard<std::mutex> held(mutex_);
    if (std::exchange(stopping_, true) || !thread_.joinable()) return;
    wake();
  }
  thread_.join();
}

void Registrar::abandon_after_fork() noexcept {
  for (const auto& [id, entry] : jobs_) {
    for (const Row& row : entry.rows) {
      if (row.link) ::close(row.link->descriptor());
    }
  }
  if (wake_ >= 0) ::close(wake_);
}

void Registrar::wake() const {
  const uint64_t one = 1;
  // Full is awake too.
  if (::write(wake_, &one, sizeof one) < 0) return;
}

void Registrar::loop() {
  pthread_setname_np(pthread_self(), "mcast-registrar");
  struct Watched {
    uint64_t group;
    size_t row;
  };
  std::vector<pollfd> ready;
  std::vector<Watched> watched;
  std::unique_lock<std::mutex> held(mutex_);
  while (!stopping_) {
    resolve_due(held);
    turn(monotonic_now());
    ready.assign(1, {wake_, POLLIN, 0});
    watched.clear();
    for (const auto& [id, entry] : jobs_) {
      for (size_t i = 0; i < entry.rows.size(); i++) {
        const AdmissionLink* const link = entry.rows[i].link.get();
        if (link == nullptr) continue;
        ready.push_back({link->descriptor(), link->events(), 0});
        watched.push_back({id, i});
      }
    }
    const int timeout = stopping_ ? 0 : poll_timeout(next_due(), monotonic_now());
    held.unlock();
    const int events = ::poll(ready.data(), ready.size(), timeout);
    held.lock();
    if (events <= 0) continue;
    uint64_t count = 0;
    if (ready[0].revents != 0 && ::read(wake_, &count, sizeof count) < 0) continue;
    for (size_t i = 0; i < watched.size(); i++) {
      Entry& entry = jobs_.at(watched[i].group);  // this thread alone erases them
      const short found = ready[i + 1].revents;
      if (found != 0) serve(entry, entry.rows[watched[i].row], found, monotonic_now());
    }
  }
  for (auto& [id, entry] : jobs_) entry.left = true;
  turn(monotonic_now());
}

// Names of those that are to be asked now.
void Registrar::resolve_due(std::unique_lock<std::mutex>& held) {
  std::vector<std::pair<uint64_t, size_t>> due;
  for (const auto& [id, entry] : jobs_) {
    for (size_t i = 0; i < entry.rows.size(); i++) {
      const Row& row = entry.rows[i];
      if (row.admission.to_be_asked(monotonic_now()) && row.resolved.empty()) {
        due.emplace_back(id, i);
      }
    }
  }
  for (const auto& [id, i] : due) {
    if (stopping_) return;
    const NetAddress address = jobs_.at(id).rows[i].admission.address();
    held.unlock();
    Result<std::vector<SocketAddress>> found = resolve(address);
    held.lock();
    Entry& entry = jobs_.at(id);
    Row& row = entry.rows[i];
    if (found.ok()) {
      row.resolved = std::move(found).value();
    } else {
      row.admission.failed(found.status().message(), monotonic_now());
      note(entry, row);
    }
  }
}

void Registrar::turn(Nanos now) {
  for (auto at = jobs_.begin(); at != jobs_.end();) {
    Entry& entry = at->second;
    if (entry.left) {
      for (Row& row : entry.rows) {
        if (row.link) row.link->send(wire::Bye{});
      }
      at = jobs_.erase(at);
      continue;
    }
    tidy(entry, now);
    for (Row& row : entry.rows) {
      if (row.admission.to_be_asked(now) && !row.resolved.empty()) ask(entry, row, now);
    }
    offer(entry, now);
    ++at;
  }
}

// Gives up those that are late, and connections that nothing holds any more.
void Registrar::tidy(Entry& entry, Nanos now) {
  for (Row& row : entry.rows) {
    if (row.admission.answer_is_late(now)) {
      row.admission.failed("no answer for " + seconds_text(Admission::kAnswer), now);
      note(entry, row);
    }
    if (!row.link || row.admission.state() != Asking::kAbsent) continue;
    row.link->send(wire::Bye{});
    row.link.reset();
  }
}

void Registrar::ask(Entry& entry, Row& row, Nanos now) {
  entry.job.ask.roster = entry.version + 1;
  entry.job.ask.rack = row.admission.address().rack;
  const wire::Ask& ask = entry.job.ask;
  if (const size_t bytes = wire::encode(ask).size();
      bytes > wire::kMaxAdmission || ask.uids.size() > wire::kMaxAdmissionRanks) {
    row.admission.failed(
        "a group of " + std::to_string(ask.uids.size()) + " ranks is too large for aggregators",
        now);
    return note(entry, row);
  }
  row.link = std::make_unique<AdmissionLink>(std::exchange(row.resolved, {}));
  row.link->send(ask);
  row.admission.asking(now);
  if (const Status status = row.link->serve(0); !status.ok()) on_end(entry, row, status, now);
}

void Registrar::offer(Entry& entry, Nanos now) {
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

void Registrar::serve(Entry& entry, Row& row, short ready, Nanos now) {
  if (!row.link) return;
  const Status status = row.link->serve(ready);
  while (row.link) {
    wire::Admission record;
    const Result<bool> more = row.link->next(record);
    if (!more.ok()) return on_end(entry, row, more.status(), now);
    if (!*more) break;
    on_record(entry, row, std::move(record), now);
  }
  if (row.link && !status.ok()) on_end(entry, row, status, now);
}

void Registrar::on_record(Entry& entry, Row& row, wire::Admission record, Nanos now) {
  const Asking state = row.admission.state();
  if (auto* const yes = std::get_if<wire::Accept>(&record); yes && state == Asking::kAsking) {
    row.admission.accepted(std::move(*yes), taken(entry), now);
  } else if (const auto* no = std::get_if<wire::Refuse>(&record); no && state == Asking::kAsking) {
    row.admission.refused(*no, now);
  } else if (std::holds_alternative<wire::Draining>(record) && state == Asking::kAdmitted) {
    row.admission.draining();
  } else {
    return on_end(entry, row,
                  Status(Code::kInvalidArgument, "it sent a record that has no place here"), now);
  }
  note(entry, row);
}

void Registrar::on_end(Entry& entry, Row& row, const Status& why, Nanos now) {
  row.link.reset();
  row.admission.ended(why.message(), now);
  note(entry, row);
}

// Once for each change.
void Registrar::note(const Entry& entry, Row& row) const {
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
std::vector<uint64_t> Registrar::taken(const Entry& entry) const {
  std::vector<uint64_t> all = entry.job.ask.uids;
  for (const Row& row : entry.rows) {
    for (const uint64_t uid : row.admission.uids()) all.push_back(uid);
  }
  return all;
}

Nanos Registrar::next_due() const {
  Nanos next = kNever;
  for (const auto& [id, entry] : jobs_) {
    if (!entry.offered) next = std::min(next, entry.gather_until);
    for (const Row& row : entry.rows) next = std::min(next, row.admission.next());
  }
  return next;
}

}  // namespace mcast
