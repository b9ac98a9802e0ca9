// Requests of a rank to a job's store through the engines of hosts, and the replies. One record:
// u32 of the bytes that follow, operation u8, number of parts u32, then each part after its length
// u32. Numbers are decimal texts. A connection has one request at a time.
//
// Parsing is total: only well-formed records are accepted.
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
  kCompareSet,  // key, expected, desired -> the current value
  kAdd,         // key, number -> the sum
  kAppend,      // key, value
  kDelete,      // key -> "1", or "0" if it did not exist
  kCheck,       // keys -> "1": all exist
  kCount,       // -> number of keys
  kList,        // -> keys
  kWait,        // limit, keys: until all exist
  kGet,         // limit, keys -> their values, once all exist
  // From the store.
  kDone = 32,  // result of the operation
  kLate,       // the limit has expired; the missing keys
  kFailed,     // the reason
};

struct StoreRecord {
  StoreOp op = StoreOp::kDone;
  std::vector<std::string> parts;
};

inline constexpr size_t kMostStoreRecord = size_t{16} << 20;  // bytes behind the length
inline constexpr size_t kMostStoreParts = size_t{1} << 17;  // a part needs memory besides its bytes

// Bytes of a record after its length field: `parts` parts with `bytes` bytes in total.
constexpr size_t store_record_bytes(size_t parts, size_t bytes) {
  return 1 + sizeof(uint32_t) + parts * sizeof(uint32_t) + bytes;
}
constexpr bool store_record_fits(size_t parts, size_t bytes) {
  return parts <= kMostStoreParts && store_record_bytes(parts, bytes) <= kMostStoreRecord;
}

// Returns true if the record is within kMostStoreRecord and kMostStoreParts.
bool fits(const StoreRecord& record);
// Empty if the record does not fit.
std::string bytes_of(const StoreRecord& record);

// Records of one direction, from bytes as they arrive.
class StoreReader {
 public:
  void feed(std::string_view bytes) { bytes_ += bytes; }
  // The next record; none: more bytes are needed, or the bytes are not a record.
  std::optional<StoreRecord> next();
  bool broken() const { return broken_; }
  size_t waiting() const { return bytes_.size(); }
  // Length of the record whose first bytes have arrived, its length field included; 0: unknown yet.
  size_t expected() const;
  // Drops the bytes of a record whose rest the caller skips.
  void clear() { bytes_.clear(); }

 private:
  std::string bytes_;
  bool broken_ = false;
};

}  // namespace mcast::wire
