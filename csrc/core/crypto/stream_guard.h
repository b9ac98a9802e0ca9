// One direction of a guarded stream connection: records with a counter that is never sent, since
// streams deliver everything once and in order. Each direction has its own chain (kdf.h,
// stream_chain()), whose epochs both sides count alike.
//
//   record: length u32 of the rest | on stripes: number u32 | body | tag (16 bytes)
//
// Length and number are not encrypted but authenticated. The length's highest bit means that the
// sealer begins a new epoch, since the previous one has become too old. The body is a frame; an
// empty body is the goodbye. In kAuth the body is not encrypted. Any record that does not open ends
// the connection.
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

// Bytes of a record with a body of `body` bytes, its length field included.
constexpr size_t record_size(size_t body, bool striped) noexcept {
  return kRecordLength + (striped ? kRecordNumber : 0) + body + kTagSize;
}
// Length of the rest, from a record's first field.
constexpr uint32_t record_length(uint32_t field) noexcept { return field & ~kNewEpoch; }
// Returns true if a record may have this length field; `most`: longest body.
constexpr bool record_length_allowed(uint32_t length, size_t most, bool striped) noexcept {
  const size_t least = record_size(0, striped) - kRecordLength;
  return length >= least && length <= least + most;
}

// State common to both directions: the chain, and when it advances. Counts records, or refuses
// them.
class RecordClock {
 public:
  RecordClock(EpochChain chain, const EpochLimits& limits)
      : chain_(std::move(chain)), limits_(limits) {}
  const EpochChain& chain() const { return chain_; }
  // Takes the number of the next record of `bytes`; `old`: the epoch must end before it. `stepped`:
  // the record is of a new epoch. Nothing: all epochs are used up.
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
  // record must be sent completely and in this order. Returns false if no record can be sealed, now
  // or later.
  bool seal(std::optional<uint32_t> number, Parts body, std::byte* out);
  // To be called periodically: an epoch that is too old by then ends with the next record.
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
  // `record`: a complete one, its length field included, of an allowed length. Returns its body,
  // which is either written to `scratch` (which has room for it) or in the record; empty: the
  // goodbye. Nothing: the record is forged, and the connection must end.
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
