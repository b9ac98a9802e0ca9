// One thread, with one poll() over all connections and a wake-up. Events are recorded under the
// lock and handled in the thread's next turn, which alone opens and closes connections. Names are
// resolved elsewhere (name_lookup.h).
#include "aggregation/member/registrar_thread.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "base/signals_blocked.h"

namespace mcast {
namespace {

int poll_timeout(Nanos next, Nanos now) {
  if (next == kNever) return -1;
  const Nanos left = std::clamp<Nanos>(next - now, 0, 3600 * kSecond);
  return static_cast<int>((left + kMilli - 1) / kMilli);
}

}  // namespace

RegistrarThread::RegistrarThread(NameLookup::Resolve resolve)
    : core_([this](uint64_t group, size_t row, const NetAddress&) -> std::unique_ptr<RecordLink> {
        auto found = resolved_.extract({group, row});
        if (found.empty()) return nullptr;
        return std::make_unique<AdmissionLink>(std::move(found.mapped()));
      }),
      names_(std::move(resolve), [this] { wake(); }) {}

RegistrarThread::~RegistrarThread() {
  stop();
  if (wake_ >= 0) ::close(wake_);
}

Status RegistrarThread::enter(uint64_t group, Job job) {
  const std::lock_guard<std::mutex> held(mutex_);
  if (wake_ < 0) wake_ = ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (wake_ < 0)
    return Status::system(errno, "no descriptor for the thread that contacts aggregators");
  names_.start();
  if (!thread_.joinable()) thread_ = named_thread("mcast-registrar", [this] { loop(); });
  core_.enter(group, std::move(job), monotonic_now());
  wake();
  return {};
}

void RegistrarThread::settled(uint64_t group, const std::vector<uint64_t>& uids) {
  const std::lock_guard<std::mutex> held(mutex_);
  core_.settled(group, uids);
}

void RegistrarThread::lost(uint64_t group, uint64_t uid, const std::string& why) {
  const std::lock_guard<std::mutex> held(mutex_);
  if (core_.lost(group, uid, why, monotonic_now())) wake();
}

void RegistrarThread::parted(uint64_t group, uint64_t uid) {
  const std::lock_guard<std::mutex> held(mutex_);
  if (core_.parted(group, uid, monotonic_now())) wake();
}

std::vector<AggregatorStats> RegistrarThread::stats(uint64_t group) const {
  const std::lock_guard<std::mutex> held(mutex_);
  return core_.stats(group);
}

void RegistrarThread::leave(uint64_t group) {
  const std::lock_guard<std::mutex> held(mutex_);
  if (core_.leave(group)) wake();
}

void RegistrarThread::stop() {
  {
    const std::lock_guard<std::mutex> held(mutex_);
    if (std::exchange(stopping_, true) || !thread_.joinable()) return;
    wake();
  }
  thread_.join();
  names_.stop();
}

void RegistrarThread::abandon_after_fork() noexcept {
  core_.for_each_link([](uint64_t, size_t, const RecordLink& link) {
    ::close(static_cast<const AdmissionLink&>(link).descriptor());
  });
  if (wake_ >= 0) ::close(wake_);
}

void RegistrarThread::wake() const {
  const uint64_t one = 1;
  // If the counter is full, the thread is awake, too.
  if (::write(wake_, &one, sizeof one) < 0) return;
}

void RegistrarThread::loop() {
  std::unique_lock<std::mutex> held(mutex_);
  while (!stopping_) {
    look_up_due();
    core_.turn(monotonic_now());
    wait(held);
  }
  core_.leave_all();
  core_.turn(monotonic_now());
}

// Waits for an event or a due time, and reads what has arrived. (Only this thread makes and ends
// links, so they still exist after the wait.)
void RegistrarThread::wait(std::unique_lock<std::mutex>& held) {
  struct Watched {
    uint64_t group;
    size_t row;
    AdmissionLink* link;
  };
  std::vector<pollfd> ready{{wake_, POLLIN, 0}};
  std::vector<Watched> watched;
  core_.for_each_link([&](uint64_t group, size_t row, RecordLink& any) {
    auto& link = static_cast<AdmissionLink&>(any);
    ready.push_back({link.descriptor(), link.events(), 0});
    watched.push_back({group, row, &link});
  });
  const int timeout = stopping_ ? 0 : poll_timeout(core_.next(), monotonic_now());
  held.unlock();
  const int events = ::poll(ready.data(), ready.size(), timeout);
  held.lock();
  if (events <= 0) return;
  uint64_t count = 0;
  if (ready[0].revents != 0 && ::read(wake_, &count, sizeof count) < 0) return;
  for (size_t i = 0; i < watched.size(); i++) {
    const short found = ready[i + 1].revents;
    if (found == 0) continue;
    const Status status = watched[i].link->serve(found);
    core_.arrived(watched[i].group, watched[i].row, status, monotonic_now());
  }
}

// Looks up the addresses of aggregators that are due.
void RegistrarThread::look_up_due() {
  for (const RegistrarCore::Due& due : core_.due(monotonic_now())) {
    if (resolved_.count({due.group, due.row}) > 0) continue;
    const auto found = names_.take(due.address);
    core_.looked_up(due, !found);
    if (!found) continue;
    if (found->ok()) {
      resolved_[{due.group, due.row}] = std::move(*found).value();
    } else {
      core_.failed(due, found->status().message(), monotonic_now());
    }
  }
}

}  // namespace mcast
