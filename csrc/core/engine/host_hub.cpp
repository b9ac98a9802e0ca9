// The thread: answer those who ask, give every lane a turn, sleep at the bell until a peer rings or
// a limit or a look at the peers is due. A thread that has had nothing to watch for a while sleeps
// without a limit, and the next post rings it; before that posts need not, since it looks by itself
// every tick.
#include "engine/host_hub.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <sstream>
#include <system_error>

#include "base/random.h"
#include "engine/clock.h"
#include "engine/host_lane.h"
#include "transport/shm/futex.h"

namespace mcast {
namespace {
constexpr Nanos kWarm = 5 * kSecond;
}  // namespace

HostThread::HostThread(HostMailbox& mailbox, size_t lane) : mailbox_(mailbox), lane_(lane) {}

Status HostThread::start() {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  Status status;
  try {
    thread_ = std::thread([this] { loop(); });
  } catch (const std::system_error& error) {
    status = Status(Code::kResourceExhausted, std::string("no thread: ") + error.what());
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return status;
}

void HostThread::add(const std::shared_ptr<HostLane>& lane) {
  std::lock_guard<std::mutex> lock(mutex_);
  lanes_.push_back(lane);
}

void HostThread::remove(const HostLane* lane) {
  std::lock_guard<std::mutex> lock(mutex_);
  lanes_.erase(
      std::remove_if(lanes_.begin(), lanes_.end(), [&](const auto& l) { return l.get() == lane; }),
      lanes_.end());
}

void HostThread::ring() { mcast::ring(mailbox_.bells[lane_].rings); }

void HostThread::warm_up() {
  if (!warm_.load(std::memory_order_seq_cst)) ring();
}

void HostThread::answer() {
  if (lane_ != 0) return;
  const uint64_t asked = mailbox_.asked.load(std::memory_order_seq_cst);
  uint64_t answered = mailbox_.answered.load(std::memory_order_relaxed);
  while (answered < asked && !mailbox_.answered.compare_exchange_weak(answered, asked)) {
  }
}

void HostThread::stop() {
  if (stopping_.exchange(true)) return;
  ring();
  if (thread_.joinable()) thread_.join();
}

void HostThread::loop() {
  pthread_setname_np(pthread_self(), lane_ == 0 ? "mcast-host0" : "mcast-host1");
  auto& rings = mailbox_.bells[lane_].rings;
  std::vector<std::shared_ptr<HostLane>> lanes;
  Nanos active = monotonic_now();
  while (!stopping_.load(std::memory_order_acquire)) {
    const uint32_t seen = rings.load(std::memory_order_seq_cst);
    answer();
    {
      std::lock_guard<std::mutex> lock(mutex_);
      lanes = lanes_;
    }
    Nanos next = kNever;
    for (const auto& lane : lanes) next = std::min(next, lane->turn());
    lanes.clear();
    const Nanos now = monotonic_now();
    if (next != kNever) active = now;
    next = std::min(next, now + kHostTick);
    if (now - active > kWarm) {
      // A post that did not ring because the thread was warm is seen by this last look.
      if (warm_.exchange(false, std::memory_order_seq_cst)) continue;
      next = kNever;
    }
    futex_wait(rings, seen, next == kNever ? kNever : next - now);
    if (!warm_.load(std::memory_order_relaxed)) {
      warm_.store(true, std::memory_order_seq_cst);
      active = monotonic_now();
    }
  }
}

std::string HostAddress::encode() const {
  if (pid == 0) return "";
  std::ostringstream out;
  out << pid << ' ' << mailbox << ' ' << token << ' ' << private_copy << ' ' << segment;
  return out.str();
}

bool HostAddress::decode(const std::string& text, HostAddress& a) {
  a = {};
  if (text.empty()) return true;
  std::istringstream in(text);
  in >> a.pid >> a.mailbox >> a.token >> a.private_copy >> a.segment;
  return !in.fail() && (in >> std::ws).eof() && a.pid > 0 && a.mailbox >= 0;
}

Result<std::unique_ptr<HostHub>> HostHub::make() {
  Result<Segment> page = Segment::create("mcast-mailbox", kHostMailboxBytes);
  if (!page.ok()) return page.status();
  std::unique_ptr<HostHub> hub(new HostHub);
  hub->page_ = std::move(page).value();
  hub->token_ = std::make_unique<uint64_t>(secure_random64());
  hub->mailbox().token.store(*hub->token_, std::memory_order_release);
  allow_readers();
  for (size_t lane = 0; lane < kHostLanes; lane++) {
    hub->threads_[lane] = std::make_unique<HostThread>(hub->mailbox(), lane);
  }
  for (auto& thread : hub->threads_) {
    if (Status status = thread->start(); !status.ok()) {
      hub->stop();
      return status;
    }
  }
  return hub;
}

HostAddress HostHub::address() const {
  HostAddress a;
  a.pid = ::getpid();
  a.mailbox = page_.fd();
  a.token = *token_;
  a.private_copy = reinterpret_cast<uint64_t>(token_.get());
  return a;
}

Status HostPeer::ended(Member rank) const {
  return Status(Code::kPeerLost, "rank " + std::to_string(rank) + " is lost (its process " +
                                     std::to_string(process.pid()) +
                                     " has ended); look at its log for the first error");
}

Status HostPeer::silent(Member rank, Nanos silence, Nanos limit) {
  return Status(Code::kPeerLost, "rank " + std::to_string(rank) + " has been silent for " +
                                     seconds_text(silence) + " (liveness limit " +
                                     seconds_text(limit) + "); its process is stopped");
}

uint64_t HostPeer::ask() const {
  const uint64_t question = mailbox().asked.fetch_add(1, std::memory_order_seq_cst) + 1;
  ring(mailbox().bells[0].rings);
  return question;
}

bool HostPeer::answered(uint64_t question) const {
  return mailbox().answered.load(std::memory_order_acquire) >= question;
}

Result<std::shared_ptr<const HostPeer>> HostHub::find(const HostAddress& address) {
  for (auto it = peers_.begin(); it != peers_.end();) {
    it = it->second.expired() ? peers_.erase(it) : std::next(it);
  }
  std::weak_ptr<HostPeer>& known = peers_[{address.pid, address.token}];
  if (auto peer = known.lock()) return std::shared_ptr<const HostPeer>(std::move(peer));
  auto peer = std::make_shared<HostPeer>();
  const auto pid = static_cast<pid_t>(address.pid);
  peer->process = PeerProcess(pid);
  Result<Segment> page = Segment::attach(pid, address.mailbox, kHostMailboxBytes);
  if (!page.ok()) return page.status();
  peer->page = std::move(page).value();
  if (peer->mailbox().token.load(std::memory_order_acquire) != address.token) {
    return Status(Code::kUnavailable, "its mailbox is another process's");
  }
  known = peer;
  return std::shared_ptr<const HostPeer>(std::move(peer));
}

void HostHub::abandon_after_fork() noexcept {
  page_.close_fd();
  for (const auto& [key, known] : peers_) {
    if (const auto peer = known.lock()) peer->process.abandon();
  }
}

void HostHub::stop() {
  for (auto& thread : threads_) thread->stop();
}

}  // namespace mcast
