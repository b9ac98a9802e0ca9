// What a rank asks of a job's store through the engines of hosts, and what it is answered. One
// record: u32 of the bytes that follow, operation u8, number of parts u32, then each part behind
// its length u32. Numbers are decimal texts. A connection has one question at a time.
//
// Parsing is total: nothing but one well-formed record is accepted.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace mcast::wire {

enum class StoreOp : uint8_t {
  // From the rank; `limit`: milliseconds, 0: none.
  kOpen = 1,    // host, port, name of the store, limit: the first record
  kSet,         // key, value
  kMultiSet,    // key, value, key, value, ...
  kCompareSet,  // key, expected, desired -> the value now
  kAdd,         // key, number -> the sum
  kAppend,      // key, value
  kDelete,      // key -> "1", "0": there was none
  kCheck,       // keys -> "1": all are there
  kCount,       // -> how many keys
  kList,        // -> keys
  kWait,        // limit, keys: until all are there
  kGet,         // limit, keys -> their values, once all are there
  // From the store.
  kDone = 32,  // what the operation has
  kLate,       // the limit is over; the keys that are not there
  kFailed,     // why
};

struct StoreRecord {
  StoreOp op = StoreOp::kDone;
  std::vector<std::string> parts;
};

inline constexpr size_t kMostStoreRecord = size_t{16} << 20;  // bytes behind the length
inline constexpr size_t kMostStoreParts = size_t{1} << 17;  // a part takes memory beside its bytes

// Bytes of a record behind its length field: so many parts with so many bytes together.
constexpr size_t store_record_bytes(size_t parts, size_t bytes) {
  return 1 + sizeof(uint32_t) + parts * sizeof(uint32_t) + bytes;
}
constexpr bool store_record_fits(size_t parts, size_t bytes) {
  return parts <= kMostStoreParts && store_record_bytes(parts, bytes) <= kMostStoreRecord;
}

// Whether it is within kMostStoreRecord and kMostStoreParts.
bool fits(const StoreRecord& record);
// Empty: it does not fit.
std::string bytes_of(const StoreRecord& record);

// Records of one direction, from bytes as they come.
class StoreReader {
 public:
  void feed(std::string_view bytes) { bytes_ += bytes; }
  // The next one; none: more bytes are needed, or what came is no record.
  std::optional<StoreRecord> next();
  bool broken() const { return broken_; }
  size_t waiting() const { return bytes_.size(); }
  // Bytes of the record that has begun to come, its length field included; 0: not known yet.
  size_t expected() const;
  // Forgets what came, of a record whose rest the caller passes over.
  void clear() { bytes_.clear(); }

 private:
  std::string bytes_;
  bool broken_ = false;
};

}  // namespace mcast::wire
