// Messages on the socket between an engine of the host and its client, for rare events. One message
// is one packet (SOCK_SEQPACKET): a head of 16 bytes, then parts, each a u32 of its length and its
// bytes. File descriptors travel with it (SCM_RIGHTS): the link's segment in Welcome, an arena's in
// ArenaOffer, the client's /proc/self/mem in MemoryOffer.
//
// Parsers are total: false for anything but exactly one well-formed message of that kind. In
// messages of scalars a reader ignores fields that it does not know.
#pragma once

#include <array>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/types.h"

namespace mcast::ipc {

inline constexpr uint16_t kControlVersion = 3;
inline constexpr size_t kMostControl = size_t{64} << 10;  // bytes of a message
inline constexpr size_t kControlHead = 16;

enum class ControlType : uint16_t {
  // From the client.
  kHello = 1,
  kArenaOffer = 2,
  kGroupAsk = 3,
  kStoreAnswer = 4,
  kInterrupt = 5,  // interrupts a creation; the call is GroupAsk's
  kAbort = 6,
  kClose = 7,
  kStatsAsk = 8,  // one part: the group's handle
  kBye = 9,
  kDrain = 10,  // from its owner, on a separate socket
  kMemoryOffer = 24,
  // From the engine.
  kWelcome = 32,
  kRefused = 33,
  kArena = 34,
  kStoreSet = 35,
  kStoreGet = 36,
  kGroupMade = 37,
  kGroupFailed = 38,
  kClosed = 39,
  kStats = 40,
  kDraining = 41,
  kMemory = 56,
  kStoreClaim = 57,  // sent if GroupAsk allows it
  // From both: the ring contains new records.
  kLook = 64,
};

// Any message. `call` is the number of the request that a reply belongs to; 0: not a reply.
struct Control {
  ControlType type = ControlType::kLook;
  uint64_t call = 0;
  std::vector<std::string> parts;
};

// Returns an empty vector if the message is longer than kMostControl.
std::vector<std::byte> bytes_of(const Control& message);
// Number of `parts`, from the first on, that fit into `message` behind its present parts.
size_t fitting(const Control& message, std::span<const std::string> parts);
// The reason why bytes_of() refuses the message; empty: it does not.
std::string too_long(const Control& message);
std::optional<Control> parse_control(ConstBytes packet);

struct Hello {
  uint16_t oldest = kControlVersion, newest = kControlVersion;  // versions that the client supports
  std::string product;                                          // its version, for error texts
};

struct Welcome {
  Nanos silence = kSecond;  // without beats, the other side is considered hung
  // For groups: supported values of the setting `security`, separated by commas, and
  // JobSecret::make_check() of the secret for guarded groups.
  std::string security = "off", secret_check;
  std::string settings;  // known settings, separated by commas; empty: not sent
};

// Result of a close or of a store request. For requests with another reply on success (Hello,
// ArenaOffer, GroupAsk, StatsAsk): the reason of the failure.
struct Verdict {
  Code code = Code::kInternal;
  std::string text;
  Status status() const { return code == Code::kOk ? Status() : Status(code, text); }
  static Verdict of(const Status& status) { return {status.code(), status.message()}; }
};

struct GroupAsk {
  std::string name;
  Member rank = 0;
  uint32_t size = 1;
  Nanos timeout = 0;
  std::map<std::string, std::string> settings;  // non_defaults()
  std::string scope{};     // of its store, for a guarded group (KeyValueStore::scope())
  std::string fallback{};  // GroupSpec::fallback
  bool claims = false;     // it supports StoreClaim
};

struct StoreSet {
  std::string key, value;
};

// KeyValueStore::claim(); the reply's value is the owner.
struct StoreClaim {
  std::string key, owner;
};

struct StoreGet {
  Nanos timeout = 0;
  std::vector<std::string> keys;
};

struct StoreAnswer {
  Verdict verdict;
  // Values of the first keys: as many as fit into a message, at least one.
  std::vector<std::string> values;
};

struct GroupMade {
  uint32_t handle = 0;
  uint64_t longest = UINT64_MAX;  // longest block in bytes
  bool messages = false;          // Group::carries_messages()
  std::string stats;              // as in Stats
};

struct Close {
  uint32_t handle = 0;
  Nanos limit = 0;
  bool force = false;
};

struct Abort {
  uint32_t handle = 0;
  std::string reason;
};

// The engine takes no new clients or groups, and ends at most `limit` after this began. In Drain:
// requests that.
struct Draining {
  Nanos limit = 0;
};

// An offer, with the descriptor of a sealed memfd of `bytes`; and the reply to it.
struct Arena {
  uint16_t space = 0;  // ipc::Space; assigned by the engine
  uint64_t bytes = 0;
};

// Allows the engine to copy from and to the sender's address space. The attached descriptor, if
// any, is the sender's /proc/self/mem.
struct MemoryOffer {
  uint64_t address = 0;  // where these bytes are stored
  std::array<uint64_t, 2> cookie{};
};

// The access method that the engine has found.
enum class AccessMethod : uint8_t { kVm = 1, kDescriptor = 2 };
struct Memory {
  AccessMethod method = AccessMethod::kVm;
};

// Each pair converts a message to parts and back. A message without its kind's required fields is
// refused.
Control control_of(const Hello& m);
Control control_of(const Welcome& m);
Control control_of(ControlType type, uint64_t call, const Verdict& m);
Control control_of(uint64_t call, const GroupAsk& m);
Control control_of(uint64_t call, const StoreSet& m);
Control control_of(uint64_t call, const StoreClaim& m);
Control control_of(uint64_t call, const StoreGet& m);
Control control_of(uint64_t call, const StoreAnswer& m);
Control control_of(uint64_t call, const GroupMade& m);
Control control_of(uint64_t call, const Close& m);
Control control_of(const Abort& m);
Control control_of(ControlType type, uint64_t call, const Draining& m);
Control control_of(ControlType type, uint64_t call, const Arena& m);
Control control_of(uint64_t call, const MemoryOffer& m);
Control control_of(uint64_t call, const Memory& m);

bool read(const Control& from, Hello& m);
bool read(const Control& from, Welcome& m);
bool read(const Control& from, Verdict& m);
bool read(const Control& from, GroupAsk& m);
bool read(const Control& from, StoreSet& m);
bool read(const Control& from, StoreClaim& m);
bool read(const Control& from, StoreGet& m);
bool read(const Control& from, StoreAnswer& m);
bool read(const Control& from, GroupMade& m);
bool read(const Control& from, Close& m);
bool read(const Control& from, Abort& m);
bool read(const Control& from, Draining& m);
bool read(const Control& from, Arena& m);
bool read(const Control& from, MemoryOffer& m);
bool read(const Control& from, Memory& m);

}  // namespace mcast::ipc
