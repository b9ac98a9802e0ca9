// DatagramGuard: protects a guarded group's lane. It seals the datagrams of this member and opens
// those of the others (format: wire/guarded_datagram.h).
//
// Nonces. Under one key no nonce may be used twice. Every datagram, including a repetition, gets a
// packet number that was never used before: only SealKey::seal() takes them, a SealKey cannot be
// copied, and there is one for a member's epochs. A receiver has OpenKeys, which cannot seal.
//
// Receiving has two steps, since in between the group decides whether it needs the bytes at all:
// admit() checks only the header and costs 25 ns for a stranger's datagram; open() authenticates.
// No content of a datagram may change any state before open() returned true.
//
// Pure: bytes and time are arguments. Not thread-safe. Needs an ok() of load_library().
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "base/datagram_verdict.h"
#include "base/status.h"
#include "crypto/budget.h"
#include "crypto/epoch_chain.h"
#include "crypto/limits.h"
#include "crypto/replay_window.h"
#include "wire/guarded_datagram.h"

namespace mcast::crypto {

// Parameters for guarding a sender's datagrams.
struct Guarding {
  Mode mode = Mode::kSealed;  // not kOff
  Suite suite = Suite::kAes128Gcm;
  uint8_t lane = 0;
  bool operator==(const Guarding&) const = default;
};

// The only object that seals for a member, used by one thread. Move-only.
class SealKey {
 public:
  static Result<SealKey> make(const Key& root, const Guarding& how, Member self,
                              const EpochLimits& limits);
  SealKey(SealKey&&) noexcept = default;
  SealKey& operator=(SealKey&&) noexcept = default;

  // Writes the whole datagram to `out`, which must have room for it: payload.size() +
  // kGuardedHeader + kDatagramTag bytes, which is returned. The payload may be anywhere, even at
  // its place in `out`, and is read once. `header.member` is this member. Returns 0 if no datagram
  // can be sealed, now or later; failure() gives the reason.
  size_t seal(Bytes out, const wire::DatagramHeader& header, ConstBytes payload) noexcept;
  // To be called periodically: an epoch that is too old by then ends with the next datagram.
  void age(Nanos now) noexcept { age_.look(now); }
  const Status& failure() const noexcept { return failure_; }

  uint32_t epoch() const noexcept { return chain_.epoch(); }
  uint64_t sealed() const noexcept { return sealed_; }  // datagrams, in all epochs

 private:
  SealKey(EpochChain chain, Keyed<SealContext> current, const FilterKey& filter,
          const Guarding& how, const EpochLimits& limits)
      : chain_(std::move(chain)),
        current_(std::move(current)),
        filter_(filter),
        how_(how),
        limits_(limits),
        age_(limits.age) {}
  bool step();  // advances to the next epoch

  EpochChain chain_;
  Keyed<SealContext> current_;
  FilterKey filter_;
  Guarding how_;
  EpochLimits limits_;
  EpochAge age_;
  uint64_t next_ = 0;    // counter; written only by seal() and step()
  uint64_t blocks_ = 0;  // under this key
  uint64_t sealed_ = 0;
  Status failure_;
};

// Opens the datagrams of one member.
class OpenKey {
 public:
  static Result<OpenKey> make(const Key& root, const Guarding& how, Member sender,
                              const OpenLimits& limits);

  // Returns true if the packet number is of an epoch that can be opened now.
  bool knows(uint32_t epoch, Nanos now) const noexcept;
  // As OpenContext::open(), with the key of the number's epoch; the keys of a later epoch are kept
  // only on success. Also returns false if knows() does.
  bool open(uint64_t number, ConstBytes aad, ConstBytes ciphertext,
            std::span<const std::byte, kTagSize> tag, std::byte* out, Nanos now);
  // Returns true if so many have failed that the keys should not be used any more.
  bool worn_out() const noexcept { return failures_ >= limits_.failures; }
  uint32_t epoch() const noexcept { return chain_.epoch(); }

 private:
  OpenKey(EpochChain chain, const OpenLimits& limits) : chain_(std::move(chain)), limits_(limits) {}

  EpochChain chain_;
  std::optional<Keyed<OpenContext>> current_;  // made for the first datagram
  std::optional<Keyed<OpenContext>> previous_;
  Nanos previous_until_ = 0;
  OpenLimits limits_;
  uint64_t failures_ = 0;
};

class DatagramGuard {
 public:
  struct Params {
    Guarding how;
    Member self = 0;
    uint32_t members = 0;
    size_t most_payload = 0;  // longest payload of a datagram that is opened
    EpochLimits epochs;
    OpenLimits opens;
  };
  // `root`: the group's (group_root()); it is not kept, and the caller wipes it when the guards of
  // all lanes are made. `budget`: the lane's.
  static Result<std::unique_ptr<DatagramGuard>> make(const Key& root, const Params& params,
                                                     std::shared_ptr<OpenBudget> budget);

  Mode mode() const noexcept { return params_.how.mode; }
  Suite suite() const noexcept { return params_.how.suite; }
  SealKey& seal_key() noexcept { return seal_; }

  // Checks the parsed header of a received datagram, but not its group tag.
  DatagramVerdict judge(const wire::GuardedHeader& header, ConstBytes datagram, Nanos now);
  // To be called after judge(). kVerified: `payload` is the sent data, valid until the next call;
  // in kAuth it is a part of `datagram`.
  DatagramVerdict open(const wire::GuardedHeader& header, ConstBytes datagram, ConstBytes& payload,
                       Nanos now);

  uint64_t opened() const noexcept { return opened_; }
  // A member whose keys are worn out by forgeries; kNoMember: none.
  Member worn_out() const noexcept { return worn_out_; }
  // The latest epoch of a member that was opened.
  uint32_t epoch_of(Member member) const noexcept;

 private:
  struct Sender {
    OpenKey key;
    ReplayWindow control;  // numbers of datagrams other than data
  };
  DatagramGuard(const Key& root, const Params& params, SealKey seal,
                std::vector<std::optional<Sender>> senders, std::shared_ptr<OpenBudget> budget);

  Params params_;
  FilterKey filter_;
  SealKey seal_;
  std::shared_ptr<OpenBudget> budget_;
  std::vector<std::optional<Sender>> senders_;  // by member; empty for this one
  std::vector<std::byte> scratch_;
  uint64_t opened_ = 0;
  Member worn_out_ = kNoMember;
};

}  // namespace mcast::crypto
