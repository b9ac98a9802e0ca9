// Text records on a connection: whole records are read in order however their bytes arrive, and an
// impossible length ends the reading.
#include "wire/record_stream.h"

#include <gtest/gtest.h>

#include "base/rng.h"

namespace mcast::wire {
namespace {

TEST(RecordStream, RecordsComeOutInOrderHoweverTheirBytesArrive) {
  Rng rng(7);
  std::string bytes;
  std::vector<std::string> sent;
  for (size_t i = 0; i < 200; i++) {
    sent.emplace_back(1 + rng.below(300), static_cast<char>(rng.below(256)));
    bytes += framed(sent.back());
  }
  RecordReader reader(300);
  std::vector<std::string> got;
  for (size_t at = 0; at < bytes.size();) {
    const size_t n = std::min<size_t>(bytes.size() - at, 1 + rng.below(500));
    reader.append(std::string_view(bytes).substr(at, n));
    at += n;
    for (std::string text; reader.next(text);) got.push_back(text);
  }
  EXPECT_EQ(got, sent);
  EXPECT_TRUE(reader.between());
}

TEST(RecordStream, HalfARecordIsNone) {
  RecordReader reader(100);
  const std::string bytes = framed("hello");
  reader.append(std::string_view(bytes).substr(0, bytes.size() - 1));
  std::string text;
  EXPECT_FALSE(reader.next(text));
  EXPECT_FALSE(reader.between());
  EXPECT_FALSE(reader.broken());
}

TEST(RecordStream, ALengthThatCannotBeEndsTheReading) {
  for (const std::string& bytes :
       {std::string("GET / HTTP/1.1\r\n"), std::string(4, '\0'), framed(std::string(101, 'x'))}) {
    RecordReader reader(100);
    reader.append(framed("fine") + bytes + framed("unread"));
    std::string text;
    EXPECT_TRUE(reader.next(text));
    EXPECT_FALSE(reader.next(text));
    EXPECT_TRUE(reader.broken());
    reader.append(framed("more"));
    EXPECT_FALSE(reader.next(text));
  }
}

}  // namespace
}  // namespace mcast::wire
