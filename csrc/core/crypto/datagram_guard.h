// DatagramGuard: what stands between a guarded group's lane and the medium. It seals the datagrams
// of this member and opens those of the others (format: wire/guarded_datagram.h).
//
// Nonces. Under one key no nonce may serve twice. Every datagram, a repetition too, takes a packet
// number that was never taken before: only SealKey::seal() gives them out, a SealKey cannot be
// copied, and there is one for a member's epochs. Who opens has OpenKeys, which cannot seal.
//
// Receiving is in two steps, since between them the group judges whether it wants the bytes at all:
// admit() looks at the header alone and costs a stranger's datagram 25 ns; open() authenticates.
// Nothing that a datagram says may change any state before open() was true.
//
// Pure: bytes and time come in. Not thread-safe. Needs an ok() of load_library().
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "base/status.h"
#include "crypto/budget.h"
#include "crypto/epoch_chain.h"
#include "crypto/limits.h"
#include "crypto/replay_window.h"
#include "wire/guarded_datagram.h"

namespace mcast::crypto {

// How a sender's datagrams are guarded.
struct Guarding {
  Mode mode = Mode::kSealed;  // not kOff
  Suite suite = Suite::kAes128Gcm;
  uint8_t lane = 0;
  bool operator==(const Guarding&) const = default;
};

// The one thing that seals for a member, by one thread. Move-only.
class SealKey {
 public:
  static Result<SealKey> make(const Key& root, const Guarding& how, Member self,
                              const EpochLimits& limits);
  SealKey(SealKey&&) noexcept = default;
  SealKey& operator=(SealKey&&) noexcept = default;

  // Writes the whole datagram to `out`, which has room for it: payload.size() + kGuardedHeader +
  // kDatagramTag bytes, which are returned. The payload may lie anywhere, also at its place in
  // `out`, and is read once. `header.member` is this member. 0: no datagram, and never one again;
  // failure() says why.
  size_t seal(Bytes out, const wire::DatagramHeader& header, ConstBytes payload) noexcept;
  // To be called now and then: an epoch that is too old by then ends with the next datagram.
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
  bool step();  // to the next epoch

  EpochChain chain_;
  Keyed<SealContext> current_;
  FilterKey filter_;
  Guarding how_;
  EpochLimits limits_;
  EpochAge age_;
  uint64_t next_ = 0;    // counter; nothing but seal() and step() writes it
  uint64_t blocks_ = 0;  // under this key
  uint64_t sealed_ = 0;
  Status failure_;
};

// Opens what one member seals.
class OpenKey {
 public:
  static Result<OpenKey> make(const Key& root, const Guarding& how, Member sender,
                              const OpenLimits& limits);

  // Whether the packet number is of an epoch that is opened now.
  bool knows(uint32_t epoch, Nanos now) const noexcept;
  // As OpenContext::open(), with the key of the number's epoch; of a later epoch only if it is good
  // are its keys kept. False also if !knows().
  bool open(uint64_t number, ConstBytes aad, ConstBytes ciphertext,
            std::span<const std::byte, kTagSize> tag, std::byte* out, Nanos now);
  // So many have failed that the keys should not be used any more.
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

// Why a datagram goes no further.
enum class Refusal : uint8_t {
  kNone,
  kMalformed,     // does not parse
  kDowngraded,    // version 1, or in clear where it must be sealed, or the reverse
  kForeign,       // of another lane
  kForgedHeader,  // the filter: its sender has not the group's keys
  kOwn,           // this member's own, looped back
  kStale,         // of an epoch that is over, or too far ahead
  kReplayed,      // control that was accepted before, or is older than the window
  kCrowdedOut,    // not tried: too many have failed lately
  kForged,        // the tag
};
const char* refusal_name(Refusal refusal) noexcept;

class DatagramGuard {
 public:
  struct Params {
    Guarding how;
    Member self = 0;
    uint32_t members = 0;
    size_t most_payload = 0;  // of a datagram that is opened
    EpochLimits epochs;
    OpenLimits opens;
  };
  // `root`: of the group (group_root()); it is not kept, and the caller wipes it when the guards of
  // all lanes are made. `budget`: of the lane.
  static Result<std::unique_ptr<DatagramGuard>> make(const Key& root, const Params& params,
                                                     std::shared_ptr<OpenBudget> budget);

  Mode mode() const noexcept { return params_.how.mode; }
  Suite suite() const noexcept { return params_.how.suite; }
  SealKey& seal_key() noexcept { return seal_; }

  // The header of a datagram that came, or why it is none for this group. The group tag is not
  // looked at. judge(): of one whose header is parsed.
  Refusal admit(ConstBytes datagram, wire::GuardedHeader& header, Nanos now);
  Refusal judge(const wire::GuardedHeader& header, ConstBytes datagram, Nanos now);
  // After admit(): kNone, and `payload` is what was sent, valid until the next call; in kAuth a
  // part of `datagram`.
  Refusal open(const wire::GuardedHeader& header, ConstBytes datagram, ConstBytes& payload,
               Nanos now);

  uint64_t opened() const noexcept { return opened_; }
  // A member whose keys are worn out by forgeries; kNoMember: none.
  Member worn_out() const noexcept { return worn_out_; }
  // The latest epoch that was opened of a member.
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
  std::vector<std::optional<Sender>> senders_;  // by member, but for this one
  std::vector<std::byte> scratch_;
  uint64_t opened_ = 0;
  Member worn_out_ = kNoMember;
};

}  // namespace mcast::crypto
