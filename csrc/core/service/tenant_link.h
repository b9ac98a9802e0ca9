// An engine's end of the link to one client: what it is told goes out from any thread.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "host/local_socket.h"
#include "host/segment.h"
#include "ipc/control.h"
#include "ipc/record.h"
#include "ipc/ring.h"

namespace mcast::service {

static_assert(ipc::kMostControl == LocalSocket::kMostPacket);

// An answer: what `call` has asked for is not to be had.
ipc::Control refusal(uint64_t call, const Status& why);
// Of a group's stats, beside the other parts of a message.
inline constexpr size_t kMostStatsText = ipc::kMostControl - 256;

// complete(), tell() and fail() by any thread; the others by the tenant's.
class TenantLink {
 public:
  // Takes the socket, unless it is not ok.
  static Result<std::shared_ptr<TenantLink>> make(LocalSocket&& socket);
  // Gives it back: the link is not used any more.
  LocalSocket take_socket() { return std::move(socket_); }

  // Completions never wait: what the ring does not take is kept, and follows by flush().
  void complete(const ipc::Completed& record);
  void flush();
  size_t waiting();  // completions, for room in the ring

  // Best effort: a client that takes no messages is found to be gone by its socket. In the place of
  // an answer that is too long for a message goes a Refused that says so.
  void tell(const ipc::Control& message, std::span<const int> descriptors = {});
  LocalSocket::Got receive(Packet& out) { return socket_.receive(out); }

  // The client is to be ended, soon, by the tenant's thread: whoever finds that out may hold locks.
  // `why` is there for good; the first one counts.
  void fail(const char* why) noexcept {
    const char* none = nullptr;
    trouble_.compare_exchange_strong(none, why);
  }
  // Null: there is none.
  const char* trouble() const noexcept { return trouble_; }
  static constexpr const char* kBrokenRing = "its process broke the engine's ring of what is over";
  static constexpr const char* kExhausted = "the engine cannot serve its process: out of memory";

  ipc::RingReader& submissions() { return submissions_; }
  ipc::LinkPage& page() const { return *reinterpret_cast<ipc::LinkPage*>(memory_.data()); }
  const Segment& memory() const { return memory_; }
  const LocalSocket& socket() const { return socket_; }
  void shutdown() noexcept { socket_.shutdown(); }

 private:
  TenantLink(LocalSocket socket, Segment memory);
  void write_all();  // mutex_ held
  void wake();

  LocalSocket socket_;
  Segment memory_;
  ipc::RingReader submissions_;
  std::atomic<const char*> trouble_{nullptr};
  std::mutex mutex_;  // of what follows
  ipc::RingWriter completions_;
  std::deque<std::vector<std::byte>> kept_;
};

}  // namespace mcast::service
