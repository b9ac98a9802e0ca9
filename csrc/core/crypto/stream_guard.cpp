// The nonce is the epoch's iv XOR the record's number in its epoch, which both sides count: a
// record that is omitted, duplicated or reordered fails to open. Sealing takes the parts of a frame
// from where they are stored, in one pass, which replaces the checksum's pass.
#include "crypto/stream_guard.h"

#include <array>

namespace mcast::crypto {

std::optional<uint64_t> RecordClock::take(size_t bytes, bool old, bool& stepped) {
  const uint64_t blocks = blocks_of(bytes);
  stepped = old || next_ >= limits_.packets || blocks_ + blocks > limits_.blocks;
  if (stepped) {
    if (chain_.epoch() + 1 >= limits_.epochs) return std::nullopt;
    chain_.step();
    next_ = 0;
    blocks_ = 0;
  }
  blocks_ += blocks;
  return next_++;
}

Result<RecordSealer> RecordSealer::make(Key chain, Suite suite, Mode mode,
                                        const EpochLimits& limits) {
  auto keys = EpochChain::make(std::move(chain), suite);
  if (!keys.ok()) return keys.status();
  auto keyed = Keyed<SealContext>::make(*keys);
  if (!keyed.ok()) return keyed.status();
  return RecordSealer(RecordClock(std::move(keys).value(), limits), std::move(keyed).value(), mode,
                      limits.age);
}

bool RecordSealer::seal(std::optional<uint32_t> number, Parts body, std::byte* out) {
  size_t size = 0;
  for (const ConstBytes part : body) size += part.size();
  const size_t whole = record_size(size, number.has_value());
  bool stepped = false;
  const bool old = age_.over();
  const auto count = broken_ ? std::nullopt : clock_.take(whole, old, stepped);
  broken_ = true;
  if (!count) return false;
  if (stepped) {
    age_.begin();
    auto next = Keyed<SealContext>::make(clock_.chain());
    if (!next.ok()) return false;
    keyed_ = std::move(next).value();
  }
  wire::store<uint32_t>(out, static_cast<uint32_t>(whole - kRecordLength) | (old ? kNewEpoch : 0));
  size_t head = kRecordLength;
  if (number) {
    wire::store<uint32_t>(out + head, *number);
    head += kRecordNumber;
  }
  const Nonce nonce = make_nonce(keyed_.iv, *count);
  const std::span<std::byte, kTagSize> tag(out + head + size, kTagSize);
  if (mode_ == Mode::kSealed) {
    const ConstBytes aad(out, head);
    broken_ = !keyed_.context.seal(nonce, aad, body, out + head, tag);
  } else {
    std::byte* at = out + head;
    for (const ConstBytes part : body) {
      if (!part.empty()) std::memcpy(at, part.data(), part.size());
      at += part.size();
    }
    const ConstBytes aad(out, head + size);
    broken_ = !keyed_.context.seal(nonce, aad, {}, at, tag);
  }
  return !broken_;
}

Result<RecordOpener> RecordOpener::make(Key chain, Suite suite, Mode mode,
                                        const EpochLimits& limits) {
  auto keys = EpochChain::make(std::move(chain), suite);
  if (!keys.ok()) return keys.status();
  auto keyed = Keyed<OpenContext>::make(*keys);
  if (!keyed.ok()) return keyed.status();
  return RecordOpener(RecordClock(std::move(keys).value(), limits), std::move(keyed).value(), mode);
}

std::optional<ConstBytes> RecordOpener::open(bool striped, ConstBytes record, Bytes scratch) {
  const size_t head = kRecordLength + (striped ? kRecordNumber : 0);
  if (record.size() < head + kTagSize) broken_ = true;
  bool stepped = false;
  const bool old = !broken_ && (wire::load<uint32_t>(record.data()) & kNewEpoch) != 0;
  const auto count = broken_ ? std::nullopt : clock_.take(record.size(), old, stepped);
  broken_ = true;
  if (!count) return std::nullopt;
  if (stepped) {
    auto next = Keyed<OpenContext>::make(clock_.chain());
    if (!next.ok()) return std::nullopt;
    keyed_ = std::move(next).value();
  }
  const ConstBytes covered = record.first(record.size() - kTagSize);
  const ConstBytes body = covered.subspan(head);
  const bool sealed = mode_ == Mode::kSealed;
  if (sealed && scratch.size() < body.size()) return std::nullopt;
  const ConstBytes aad = sealed ? covered.first(head) : covered;
  if (!keyed_.context.open(make_nonce(keyed_.iv, *count), aad, sealed ? body : ConstBytes{},
                           record.last<kTagSize>(), scratch.data())) {
    return std::nullopt;
  }
  broken_ = false;
  return sealed ? ConstBytes(scratch.first(body.size())) : body;
}

}  // namespace mcast::crypto
