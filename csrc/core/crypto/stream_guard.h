// One direction of a guarded stream connection: records with a counter that is never sent, since
// streams bring everything once and in order. Each direction has a chain of its own
// (kdf.h, stream_chain()), whose epochs both sides count alike.
//
//   record: length u32 of the rest | on stripes: number u32 | body | tag (16 bytes)
//
// Length and number are in clear and authenticated. The length's highest bit says that the sealer
// begins a new epoch, since the one before has become too old. The body is a frame; no body is the
// goodbye. In kAuth the body is in clear. Any record that does not open ends the connection.
//
// Pure; not thread-safe. Needs an ok() of load_library().
#pragma once

#include <optional>

#include "crypto/epoch_chain.h"
#include "crypto/limits.h"

namespace mcast::crypto {

inline constexpr size_t kRecordLength = 4;
inline constexpr uint32_t kNewEpoch = uint32_t{1} << 31;
inline constexpr size_t kRecordNumber = 4;

// What a record with a body of `body` bytes takes, its length field included.
constexpr size_t record_size(size_t body, bool striped) noexcept {
  return kRecordLength + (striped ? kRecordNumber : 0) + body + kTagSize;
}
// Bytes of the rest, by a record's first field.
constexpr uint32_t record_length(uint32_t field) noexcept { return field & ~kNewEpoch; }
// Whether a record may have this length field; `most`: bytes of a body.
constexpr bool record_length_allowed(uint32_t length, size_t most, bool striped) noexcept {
  const size_t least = record_size(0, striped) - kRecordLength;
  return length >= least && length <= least + most;
}

// What both directions have: the chain, and when it goes on. Counts a record, or says why not.
class RecordClock {
 public:
  RecordClock(EpochChain chain, const EpochLimits& limits)
      : chain_(std::move(chain)), limits_(limits) {}
  const EpochChain& chain() const { return chain_; }
  // Takes the number of the next record of so many bytes; `old`: the epoch has to end before it.
  // `stepped`: it is of a new epoch. Nothing: all epochs are used up.
  std::optional<uint64_t> take(size_t bytes, bool old, bool& stepped);

 private:
  EpochChain chain_;
  EpochLimits limits_;
  uint64_t next_ = 0, blocks_ = 0;
};

class RecordSealer {
 public:
  static Result<RecordSealer> make(Key chain, Suite suite, Mode mode,
                                   const EpochLimits& limits = {});
  // Writes one record to `out`, which has room for record_size(); the parts are read once. Each
  // record must be sent, whole and in this order. False: never one again.
  bool seal(std::optional<uint32_t> number, Parts body, std::byte* out);
  // To be called now and then: an epoch that is too old by then ends with the next record.
  void age(Nanos now) noexcept { age_.look(now); }
  uint32_t epoch() const { return clock_.chain().epoch(); }

 private:
  RecordSealer(RecordClock clock, Keyed<SealContext> keyed, Mode mode, Nanos age)
      : clock_(std::move(clock)), age_(age), keyed_(std::move(keyed)), mode_(mode) {}
  RecordClock clock_;
  EpochAge age_;
  Keyed<SealContext> keyed_;
  Mode mode_;
  bool broken_ = false;
};

class RecordOpener {
 public:
  static Result<RecordOpener> make(Key chain, Suite suite, Mode mode,
                                   const EpochLimits& limits = {});
  // `record`: a whole one, its length field included, of an allowed length. Its body, which may be
  // written to `scratch` (room for it) or lie in the record; empty: the goodbye. Nothing: forged,
  // and the connection is over.
  std::optional<ConstBytes> open(bool striped, ConstBytes record, Bytes scratch);
  uint32_t epoch() const { return clock_.chain().epoch(); }

 private:
  RecordOpener(RecordClock clock, Keyed<OpenContext> keyed, Mode mode)
      : clock_(std::move(clock)), keyed_(std::move(keyed)), mode_(mode) {}
  RecordClock clock_;
  Keyed<OpenContext> keyed_;
  Mode mode_;
  bool broken_ = false;
};

}  // namespace mcast::crypto
