// Datagrams: one that parses is written back as the same bytes, and is only believed with the right
// checksum. The one body that is parsed, an abort's, is in the frame target too.
#include <array>
#include <vector>

#include "fuzz.h"
#include "transport/fault_classifier.h"
#include "wire/datagram.h"
#include "wire/frame.h"

using namespace mcast;
using fuzz::require;

namespace {

void check_abort(ConstBytes payload) {
  wire::AbortNotice notice;
  if (!wire::parse_abort(payload, notice)) return;
  wire::Writer out;
  wire::put_abort(out, notice);
  require(fuzz::equal(out.bytes(), payload), "an abort is written as it was read");
}

// The fault injector matches unverified bytes.
void classify(ConstBytes datagram) {
  constexpr std::array<std::array<const char*, 2>, 5> kPredicates{
      {{"type", "data"}, {"last", "1"}, {"chunk", "0-7"}, {"member", "1"}, {"sequence", "1-3"}}};
  for (const auto& [key, value] : kPredicates) {
    (void)wire_fault_classifier().matches(key, value, datagram, false);
  }
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const ConstBytes datagram = fuzz::bytes_of(data, size);
  classify(datagram);
  wire::DatagramHeader header;
  const wire::ParseError error = wire::parse_datagram(datagram, header);
  require(wire::parse_error_name(error) != nullptr, "every error has a name");
  if (error != wire::ParseError::kNone) return 0;
  const ConstBytes payload = datagram.subspan(wire::kDatagramHeader);
  std::vector<std::byte> again(size);
  require(wire::write_datagram(again, header, payload) == size, "no byte more or less");
  require(wire::verify_datagram(again), "what is written has the right checksum");
  require(fuzz::equal(ConstBytes(again).subspan(4), datagram.subspan(4)),
          "a datagram is written as it was read");
  require(wire::verify_datagram(datagram) == fuzz::equal(again, datagram),
          "one checksum and no other is right");
  wire::DatagramHeader reread;
  require(wire::parse_datagram(again, reread) == wire::ParseError::kNone && reread == header,
          "the same header");
  // A CRC detects every single flipped bit.
  const size_t bit = header.chunk % (size * 8);
  again[bit / 8] ^= std::byte{1} << bit % 8;
  require(!wire::verify_datagram(again), "a flipped bit is found");
  check_abort(payload);
  return 0;
}
