// An impossible length is detected as soon as its four bytes have arrived, so a peer with another
// protocol is recognized by its first bytes, and no memory is allocated for an announced length.
#include "wire/record_stream.h"

namespace mcast::wire {
namespace {
constexpr size_t kLengthBytes = 4;
}  // namespace

std::string framed(std::string_view text) {
  std::string out;
  out.reserve(kLengthBytes + text.size());
  for (size_t i = 0; i < kLengthBytes; i++) out += static_cast<char>(text.size() >> (8 * i));
  out += text;
  return out;
}

bool RecordReader::next(std::string& text) {
  if (broken_ || held_.size() < kLengthBytes) return false;
  size_t length = 0;
  for (size_t i = 0; i < kLengthBytes; i++) {
    length |= size_t{static_cast<unsigned char>(held_[i])} << (8 * i);
  }
  if (length == 0 || length > most_) {
    broken_ = true;
    held_.clear();
    return false;
  }
  if (held_.size() < kLengthBytes + length) return false;
  text.assign(held_, kLengthBytes, length);
  held_.erase(0, kLengthBytes + length);
  return true;
}

}  // namespace mcast::wire
