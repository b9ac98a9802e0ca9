// Text records on a connection: a length (u32, little-endian, of the text alone), then the text.
// Bounded: a reader holds at most one record and what it was given with it.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace mcast::wire {

// As it is sent; `text` must not be longer than the reader's `most`.
std::string framed(std::string_view text);

class RecordReader {
 public:
  // Of records of at most `most` bytes.
  explicit RecordReader(size_t most) : most_(most) {}

  // What has arrived. Take all records that are whole by next() before the next call.
  void append(std::string_view bytes) { held_ += bytes; }
  // The next whole record into `text`; false: it has not come yet, or never will (broken()).
  bool next(std::string& text);
  // A length of 0 or beyond `most` was announced: nothing after it can be read.
  bool broken() const { return broken_; }
  // Nothing is held: the connection stands between two records.
  bool between() const { return held_.empty() && !broken_; }

 private:
  const size_t most_;
  std::string held_;
  bool broken_ = false;
};

}  // namespace mcast::wire
