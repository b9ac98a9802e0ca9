// An impossible length is refused before any data of that length is awaited.
#include "wire/store_record.h"

#include <cstring>

namespace mcast::wire {
namespace {

constexpr size_t kWord = sizeof(uint32_t);
constexpr size_t kLeast = 1 + kWord;  // operation, number of parts

void put_word(std::string& out, size_t value) {
  const auto word = static_cast<uint32_t>(value);
  char bytes[kWord];
  std::memcpy(bytes, &word, kWord);
  out.append(bytes, kWord);
}

uint32_t word_at(std::string_view from) {
  uint32_t word = 0;
  std::memcpy(&word, from.data(), kWord);
  return word;
}

bool known(uint8_t op) {
  return (op >= static_cast<uint8_t>(StoreOp::kOpen) &&
          op <= static_cast<uint8_t>(StoreOp::kGet)) ||
         (op >= static_cast<uint8_t>(StoreOp::kDone) &&
          op <= static_cast<uint8_t>(StoreOp::kFailed));
}

size_t part_bytes(const StoreRecord& record) {
  size_t bytes = 0;
  for (const std::string& part : record.parts) bytes += part.size();
  return bytes;
}

std::optional<StoreRecord> parse_body(std::string_view body) {
  const auto op = static_cast<uint8_t>(body[0]);
  uint32_t count = word_at(body.substr(1));
  std::string_view rest = body.substr(kLeast);
  if (!known(op) || count > rest.size() / kWord || count > kMostStoreParts) return std::nullopt;
  StoreRecord record{static_cast<StoreOp>(op), {}};
  record.parts.reserve(count);
  for (; count > 0; count--) {
    if (rest.size() < kWord) return std::nullopt;
    const uint32_t length = word_at(rest);
    rest.remove_prefix(kWord);
    if (length > rest.size()) return std::nullopt;
    record.parts.emplace_back(rest.substr(0, length));
    rest.remove_prefix(length);
  }
  if (!rest.empty()) return std::nullopt;
  return record;
}

}  // namespace

bool fits(const StoreRecord& record) {
  return store_record_fits(record.parts.size(), part_bytes(record));
}

std::string bytes_of(const StoreRecord& record) {
  const size_t bytes = part_bytes(record);
  if (!store_record_fits(record.parts.size(), bytes)) return "";
  const size_t body = store_record_bytes(record.parts.size(), bytes);
  std::string out;
  out.reserve(kWord + body);
  put_word(out, body);
  out += static_cast<char>(record.op);
  put_word(out, record.parts.size());
  for (const std::string& part : record.parts) {
    put_word(out, part.size());
    out += part;
  }
  return out;
}

size_t StoreReader::expected() const {
  return broken_ || bytes_.size() < kWord ? 0 : kWord + word_at(bytes_);
}

std::optional<StoreRecord> StoreReader::next() {
  if (broken_ || bytes_.size() < kWord) return std::nullopt;
  const size_t body = word_at(bytes_);
  broken_ = body < kLeast || body > kMostStoreRecord;
  if (broken_ || bytes_.size() < kWord + body) return std::nullopt;
  auto record = parse_body(std::string_view(bytes_).substr(kWord, body));
  broken_ = !record.has_value();
  bytes_.erase(0, kWord + body);
  return record;
}

}  // namespace mcast::wire
