// One reliable connection: its queue pair, its rings of send and receive entries, the peer's
// credits. Mechanics only; RcStream decides which connection serves which peer.
#pragma once

#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#include "base/status.h"
#include "transport/verbs/cm.h"
#include "transport/verbs/device.h"
#include "transport/verbs/memory.h"
#include "transport/verbs/rc_guard.h"
#include "transport/verbs/rc_wire.h"

namespace mcast::verbs {

inline constexpr size_t kSends = kCredits + 2;   // entries for messages being sent
inline constexpr size_t kReads = 8;              // maximum number of concurrent RDMA Reads
inline constexpr size_t kReadBytes = 64 * 1024;  // of one RDMA Read, at most
// Completion queue entries that one connection can fill.
inline constexpr size_t kCompletions = kReceives + kSends + kReads + 1;

class Connection final : public CmHandler {
 public:
  enum class State {
    kResolvingAddress,
    kResolvingRoute,
    kConnecting,
    kAccepting,  // opened by the peer, accepted by us
    kHandshake,  // opened by us, guarded: established, but nothing is proved yet
    kHalfOpen,   // opened by the peer, guarded: the same, and not yet bound to a peer
    kOpen,
    kDead,
  };
  class Owner {
   public:
    virtual ~Owner() = default;
    virtual void on_connection_event(Connection& connection, const CmEvent& event) = 0;
  };

  // `serial` distinguishes connections in work request ids. The connection owns `id` from adopt()
  // on.
  Connection(Owner& owner, CmChannel& cm, Device& device, RcStats& stats, uint32_t serial)
      : owner_(owner), cm_(cm), device_(device), stats_(stats), serial_(serial) {}
  ~Connection() override { close(); }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  Status resolve(const Endpoint& from, const Endpoint& to, int timeout_ms);
  void adopt(rdma_cm_id* id);  // Takes over the identifier of a connect request.
  Status resolve_route(int timeout_ms);
  // Makes the queue pair and posts the receives.
  Status prepare(std::shared_ptr<CompletionQueue> cq, Nanos liveness_limit);
  Status connect(ConstBytes hello);
  Status accept(ConstBytes challenge);  // Empty if there is no guard.
  void close();
  // Disconnects, which notifies the peer that nothing follows; completions with errors follow here.
  void disconnect();
  void abandon() noexcept;

  // Returns true if an entry is free, and for data also a credit; a message that only returns
  // credits needs one of the two entries kept for it.
  bool can_send(bool data) const noexcept;
  // Maximum number of bytes of a frame in one message.
  size_t room() const noexcept;
  // Sends at most room() bytes of a frame; sealed, if records have begun.
  Status send_message(Message message, ConstBytes piece, bool signal);
  // Sends a message of the handshake unchanged; the peer must post a receive for it again too.
  Status send_plain(ConstBytes bytes);
  // Reads `length` bytes into read entry `index`.
  Status read(size_t index, uint64_t address, uint32_t rkey, size_t length);
  size_t take_read_entry();  // Returns kReads if none is free.
  ConstBytes read_entry(size_t index, size_t length) const;
  void free_read_entry(size_t index) { reads_.busy[index] = false; }

  // Completions. Returns the message's bytes, valid until repost().
  ConstBytes received(const ibv_wc& wc) const;
  Status repost(uint32_t entry);
  // Handles the completion of message `number` (28 bits of it): this message and all before it are
  // done.
  void sent_up_to(uint32_t number) {
    done_ = std::max(done_, posted_ - ((posted_ - number) & 0xfffffff));
  }
  void owe() { ++receives_.owed; }  // Counts a receive of a data message that was posted again.
  void grant(uint16_t credits) {
    receives_.credits = static_cast<uint16_t>(receives_.credits + credits);
  }
  uint16_t owed() const noexcept { return receives_.owed; }
  bool all_sent() const noexcept { return done_ == posted_; }
  uint32_t serial() const noexcept { return serial_; }
  rdma_cm_id* id() const noexcept { return id_; }
  uint32_t qp_number() const noexcept { return id_ != nullptr && id_->qp ? id_->qp->qp_num : 0; }

  // Work request ids consist of serial, kind and number.
  enum class Work : uint8_t { kSend = 0, kReceive = 1, kRead = 2 };
  static uint32_t serial_of(uint64_t wr) noexcept { return static_cast<uint32_t>(wr >> 32); }
  static Work work_of(uint64_t wr) noexcept { return static_cast<Work>(wr >> 28 & 0xf); }
  static uint32_t number_of(uint64_t wr) noexcept { return wr & 0xfffffff; }

  State state = State::kResolvingAddress;
  PeerId peer = kNoPeer;
  bool said_goodbye = false;       // received from the peer
  bool goodbye_sent = false;       // sent by us
  Status problem;                  // the first error of a completion
  std::unique_ptr<RcGuard> guard;  // null: not encrypted
  // Frames being reassembled, by channel.
  struct Assembly {
    std::vector<std::byte> bytes;
    size_t expected = 0;
  };
  std::array<Assembly, kChannels> assembly;

 private:
  void on_cm_event(const CmEvent& event) override { owner_.on_connection_event(*this, event); }
  uint64_t wr_id(Work work, uint32_t number) const noexcept {
    return uint64_t{serial_} << 32 | uint64_t{static_cast<uint8_t>(work)} << 28 | number;
  }
  std::byte* send_at(uint64_t number) const;
  Status post(size_t size, bool signal);
  std::byte* receive_at(uint32_t entry) const;

  Owner& owner_;
  CmChannel& cm_;
  Device& device_;
  RcStats& stats_;
  const uint32_t serial_;
  rdma_cm_id* id_ = nullptr;
  std::shared_ptr<CompletionQueue> cq_;  // the connections that hold it share its room
  Buffer entries_;                       // receives, then sends
  struct ReadEntries {
    Buffer memory;  // made at the first read
    std::array<bool, kReads> busy{};
  } reads_;
  uint64_t posted_ = 0, done_ = 0;  // number of messages
  struct {
    uint16_t credits = kCredits;  // receives that the peer has posted for us
    uint16_t owed = 0;            // receives that we have posted again and not reported yet
  } receives_;
  bool abandoned_ = false;
};

}  // namespace mcast::verbs
