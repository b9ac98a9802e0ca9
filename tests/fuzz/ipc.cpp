// Data that a host engine reads from a client that may be hostile, and the reverse: words and bytes
// of a ring that change while it is read, records, control messages. The input's first byte selects
// one. Accepted data is the same when it is written again; no byte outside the ring is read.
#include <vector>

#include "fuzz.h"
#include "host_engine/ipc/control.h"
#include "host_engine/ipc/record.h"
#include "host_engine/ipc/ring.h"

using namespace mcast;
using namespace mcast::ipc;
using fuzz::require;

namespace {

constexpr size_t kCapacity = size_t{64} << 10;

// The input plays the writer: it stores words and bytes anywhere, between reads.
void read_ring(fuzz::Input in) {
  static std::vector<std::byte> memory(kCapacity);
  RingWords words{};
  RingReader reader({&words, memory.data(), kCapacity});
  uint64_t position = 0;
  while (!in.empty()) {
    const uint8_t what = in.byte();
    const uint64_t at = (position + in.byte() * 8u) & (kCapacity - 1);
    if (what < 64) wire::store<uint32_t>(&memory[at], in.byte() * 8u);
    if (what >= 64 && what < 128) memory[at + (what & 7u)] = std::byte{in.byte()};
    if (what >= 128 && what < 192) words.tail = position + in.byte() * 8u;
    if (what >= 192 && what < 200) words.tail = words.tail ^ uint64_t { 1 } << (in.byte() & 63u);
    fuzz::handed();
    const auto found = reader.read();
    if (found == RingReader::Found::kBroken) break;
    if (found != RingReader::Found::kRecord) continue;
    const ConstBytes record = reader.record();
    require(record.size() >= kMinRecord && record.size() <= kMaxRecord, "a record's length");
    require(wire::load<uint32_t>(record.data()) == record.size(), "says its length");
    position += record.size();
    require(reader.position() == position, "records follow each other");
    (void)parse_submission(record);
    (void)parse_completed(record);
  }
}

void read_control(ConstBytes packet) {
  const auto message = parse_control(packet);
  if (!message) return;
  require(fuzz::equal(bytes_of(*message), packet), "a message stays what it is");
  const auto again = [&](auto kind) {
    if (!read(*message, kind)) return;
    auto copy = kind;
    require(read(*message, copy), "read twice");
  };
  again(Hello());
  again(Welcome());
  again(Verdict());
  again(GroupAsk());
  again(StoreSet());
  again(StoreClaim());
  again(StoreGet());
  again(StoreAnswer());
  again(GroupMade());
  again(Close());
  again(Abort());
  again(Draining());
  again(Arena());
  again(MemoryOffer());
  again(Memory());
}

// The length at the front is corrected, since a ring's reader has checked it.
void read_records(ConstBytes bytes) {
  std::vector<std::byte> record(4 + bytes.size());
  std::copy(bytes.begin(), bytes.end(), record.begin() + 4);
  wire::store<uint32_t>(record.data(), static_cast<uint32_t>(record.size()));
  if (const auto s = parse_submission(record)) {
    require(bytes_of(*s) == record, "a submission stays what it is");
  }
  if (const auto c = parse_completed(record)) {
    require(bytes_of(*c) == record, "a completion stays what it is");
  }
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const ConstBytes rest = fuzz::bytes_of(data + 1, size - 1);
  if (data[0] % 3 == 0) read_ring(fuzz::Input(rest));
  if (data[0] % 3 == 1) read_records(rest);
  if (data[0] % 3 == 2) read_control(rest);
  return 0;
}
