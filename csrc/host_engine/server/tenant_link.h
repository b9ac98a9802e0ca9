// An engine's end of the link to one client; messages can be sent from any thread.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "base/local_socket.h"
#include "host_engine/ipc/control.h"
#include "host_engine/ipc/record.h"
#include "host_engine/ipc/ring.h"
#include "shm/segment.h"

namespace mcast::service {

static_assert(ipc::kMostControl == LocalSocket::kMostPacket);

// A reply: the request `call` cannot be fulfilled.
ipc::Control refusal(uint64_t call, const Status& why);
// Maximum size of a group's stats, besides the other parts of a message.
inline constexpr size_t kMostStatsText = ipc::kMostControl - 256;

// complete(), tell() and fail() are for any thread; the others for the tenant's.
class TenantLink {
 public:
  // Takes the socket only on success.
  static Result<std::shared_ptr<TenantLink>> make(LocalSocket&& socket);
  // Returns the socket: the link is not used any more.
  LocalSocket take_socket() { return std::move(socket_); }

  // Completions never wait: those for which the ring has no room are kept, and flush() writes them.
  void complete(const ipc::Completed& record);
  void flush();
  size_t waiting();  // number of completions that wait for room in the ring

  // Best effort: if a client takes no messages, its socket shows when it is gone. A reply that is
  // too long for a message is replaced by a Refused that says so.
  void tell(const ipc::Control& message, std::span<const int> descriptors = {});
  LocalSocket::Got receive(Packet& out) { return socket_.receive(out); }

  // The client is to be ended soon, by the tenant's thread: the caller may hold locks. `why` must
  // live permanently; the first call counts.
  void fail(const char* why) noexcept {
    const char* none = nullptr;
    trouble_.compare_exchange_strong(none, why);
  }
  // Returns null if there is none.
  const char* trouble() const noexcept { return trouble_; }
  static constexpr const char* kBrokenRing = "its process broke the engine's completion ring";
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
  std::mutex mutex_;  // guards the fields below
  ipc::RingWriter completions_;
  std::deque<std::vector<std::byte>> kept_;
};

}  // namespace mcast::service
