// Text records on a connection: a length (u32, little-endian, of the text alone), then the text.
// Bounded: a reader stores at most one record and the bytes appended with it.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace mcast::wire {

// The bytes to send; `text` must not be longer than the reader's `most`.
std::string framed(std::string_view text);

class RecordReader {
 public:
  // Reads records of at most `most` bytes.
  explicit RecordReader(size_t most) : most_(most) {}

  // Appends received bytes. Take all complete records with next() before the next call.
  void append(std::string_view bytes) { held_ += bytes; }
  // Moves the next complete record to `text`. Returns false if it has not arrived, or never will
  // (broken()).
  bool next(std::string& text);
  // Returns true if a length of 0 or beyond `most` was announced: the rest cannot be read.
  bool broken() const { return broken_; }
  // Returns true if no bytes are stored: the connection is between two records.
  bool between() const { return held_.empty() && !broken_; }

 private:
  const size_t most_;
  std::string held_;
  bool broken_ = false;
};

}  // namespace mcast::wire
