// Changes a message of the group target as the input specifies.
#pragma once

#include <algorithm>
#include <vector>

#include "base/checksum.h"
#include "fuzz.h"
#include "wire/datagram.h"
#include "wire/frame.h"

namespace mcast::fuzz {

enum Forgery : unsigned { kEdit = 2, kCut = 3, kLengthen = 4, kAsIs = 5, kElsewhere = 6, kNew = 7 };

// Replaces type, sequence, argument and body by bytes of the input.
inline void make_new(Input& in, bool frame, Member from, std::vector<std::byte>& m) {
  m.resize(std::min(m.size(), frame ? wire::kFrameHeader : wire::kDatagramHeader));
  if (frame) {
    m[4] = std::byte{in.byte()};
    wire::store<uint16_t>(m.data() + 6, from);
  } else {
    m[6] = static_cast<std::byte>(wire::kDatagramVersion << 4 | (1 + in.byte() % 4));
  }
  m[16] = std::byte{in.byte()};
  // The descriptor of the message before is often the expected one.
  if (const uint8_t argument = in.byte(); argument < 255) {
    m[frame ? 20 : 24] = std::byte{argument};
  }
  for (unsigned i = in.byte() % 48u; i > 0; i--) m.push_back(std::byte{in.byte()});
}

// `m` holds a whole header at least.
inline void forge(Input& in, unsigned kind, bool frame, Member from, std::vector<std::byte>& m) {
  if (kind <= kEdit) {  // up to three bytes of the header or the body
    for (unsigned i = 0; i <= kind; i++) {
      // Fields of the header and the start of the body matter most.
      const size_t at = in.byte();
      m[at % (at < 192 ? std::min<size_t>(m.size(), 48) : m.size())] = std::byte{in.byte()};
    }
  } else if (kind == kCut) {
    m.resize(in.byte() % m.size());
  } else if (kind == kLengthen) {
    for (unsigned i = in.byte() % 64u; i > 0; i--) m.push_back(std::byte{in.byte()});
  } else if (kind == kNew) {
    make_new(in, frame, from, m);
  }
}

// Does nothing if there is no room for a checksum.
inline void make_checksum_right(std::vector<std::byte>& m) {
  if (m.size() >= 4) wire::store<uint32_t>(m.data(), crc32c(ConstBytes(m).subspan(4)));
}

}  // namespace mcast::fuzz
