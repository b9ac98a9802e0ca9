// The record of a rank names its process's mailbox (a descriptor, opened through /proc) and a
// random token stored in the mailbox, so that a process that has reused the pid of another is not
// mistaken for it. The registry keeps weak references: a peer lives as long as a group with it.
#include "shm/peer_registry.h"

#include <unistd.h>

#include <algorithm>
#include <sstream>

#include "base/cores.h"
#include "base/errors.h"
#include "base/random.h"
#include "base/units.h"
#include "shm/arena_pool.h"
#include "shm/futex.h"

namespace mcast {
namespace {

constexpr char kTokenMark = '@';  // first character of an address that is a token

}  // namespace

std::string HostAddress::encode() const {
  if (token_here != 0) return kTokenMark + std::to_string(token_here);
  if (pid == 0) return "";
  std::ostringstream out;
  out << pid << ' ' << mailbox << ' ' << token << ' ' << private_copy << ' ' << segment << ' '
      << arena << ' ' << arena_bytes;
  return out.str();
}

bool HostAddress::decode(const std::string& text, HostAddress& a) {
  a = {};
  if (text.empty()) return true;
  if (text[0] == kTokenMark) return read_number(text.substr(1), a.token_here) && a.token_here != 0;
  std::istringstream in(text);
  in >> a.pid >> a.mailbox >> a.token >> a.private_copy >> a.segment >> a.arena >> a.arena_bytes;
  return !in.fail() && (in >> std::ws).eof() && a.pid > 0 && a.mailbox >= 0;
}

Result<std::unique_ptr<PeerRegistry>> PeerRegistry::make(HostClock clock) {
  Result<Segment> page = Segment::create("mcast-mailbox", kHostMailboxBytes);
  if (!page.ok()) return page.status();
  std::unique_ptr<PeerRegistry> registry(new PeerRegistry(clock));
  registry->page_ = std::move(page).value();
  registry->token_ = std::make_unique<uint64_t>(secure_random64());
  registry->mailbox().token.store(*registry->token_, std::memory_order_release);
  for (size_t lane = 0; lane < kHostLanes; lane++) {
    registry->threads_[lane] = std::make_unique<HostThread>(registry->mailbox(), lane, clock);
  }
  registry->note_ranks(1);
  for (auto& thread : registry->threads_) {
    if (Status status = thread->start(); !status.ok()) {
      registry->stop();
      return status;
    }
  }
  return registry;
}

HostAddress PeerRegistry::address() const {
  HostAddress a;
  a.pid = ::getpid();
  a.mailbox = page_.fd();
  a.token = *token_;
  a.private_copy = reinterpret_cast<uint64_t>(token_.get());
  if (const ArenaPool* const pool = ArenaPool::of_process()) {
    a.arena = pool->segment().fd();
    a.arena_bytes = pool->segment().size();
  }
  return a;
}

Status HostPeer::ended(Member rank) const {
  return make_error<ErrorId::rank_ended>(rank, process.pid());
}

Status HostPeer::silent(Member rank, Nanos silence, Nanos limit) {
  return Status(Code::kPeerLost,
                error_text<ErrorId::rank_silent>(rank, seconds_text(silence), seconds_text(limit)) +
                    "; its process is stopped");
}

uint64_t HostPeer::ask() const {
  const uint64_t question = mailbox().asked.fetch_add(1, std::memory_order_seq_cst) + 1;
  ring(mailbox().bells[0].rings);
  return question;
}

bool HostPeer::answered(uint64_t question) const {
  return mailbox().answered.load(std::memory_order_acquire) >= question;
}

Result<std::shared_ptr<const HostPeer>> PeerRegistry::find(const HostAddress& address) {
  for (auto it = peers_.begin(); it != peers_.end();) {
    it = it->second.expired() ? peers_.erase(it) : std::next(it);
  }
  std::weak_ptr<HostPeer>& known = peers_[{address.pid, address.token}];
  if (auto peer = known.lock(); peer && (peer->arena.data() != nullptr || address.arena < 0)) {
    return std::shared_ptr<const HostPeer>(std::move(peer));
  }
  auto peer = std::make_shared<HostPeer>();
  const auto pid = static_cast<pid_t>(address.pid);
  peer->process = PeerProcess(pid);
  Result<Segment> page = Segment::attach(pid, address.mailbox, kHostMailboxBytes);
  if (!page.ok()) return page.status();
  peer->page = std::move(page).value();
  if (peer->mailbox().token.load(std::memory_order_acquire) != address.token) {
    return Status(Code::kUnavailable, "its mailbox belongs to another process");
  }
  // Without the mapping, its memory is read through the kernel.
  if (address.arena >= 0) {
    Result<Segment> arena = Segment::attach(pid, address.arena, address.arena_bytes);
    if (arena.ok()) peer->arena = std::move(arena).value();
  }
  known = peer;
  return std::shared_ptr<const HostPeer>(std::move(peer));
}

// A group may have fewer ranks than the job, whose other ranks want cores, too: the largest number
// that any group or the launcher has shown counts.
void PeerRegistry::note_ranks(uint32_t ranks) {
  ranks_ = std::max({ranks_, ranks, launched_ranks()});
  core_each_.store(usable_cores() >= ranks_, std::memory_order_relaxed);
}

void PeerRegistry::abandon_after_fork() noexcept {
  page_.close_fd();
  for (const auto& [key, known] : peers_) {
    if (const auto peer = known.lock()) peer->process.abandon();
  }
}

void PeerRegistry::stop() {
  for (auto& thread : threads_) thread->stop();
}

}  // namespace mcast
