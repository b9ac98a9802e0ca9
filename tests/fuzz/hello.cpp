// The start of a connection of the UDP and verbs transports, the splitting of its bytes into
// frames, and the address of an endpoint that is striped over interfaces.
#include <algorithm>
#include <string>
#include <vector>

#include "fuzz.h"
#include "transport/udp/stream_wire.h"
#if __has_include(<infiniband/verbs.h>)
#include "transport/verbs/rc_wire.h"
#define MCAST_FUZZ_VERBS 1
#endif

using namespace mcast;
using fuzz::require;

namespace {

void check_hello(ConstBytes bytes) {
  if (bytes.size() >= kHelloSize) {
    const auto first = bytes.first<kHelloSize>();
    if (const auto hello = decode_hello(first)) {
      require(fuzz::equal(encode(*hello), first), "a hello is written as it was read");
      require(hello->stripe < hello->stripes && hello->stripes <= kMaxStripe, "a stripe there is");
    }
  }
  if (bytes.size() >= kHelloAckSize) {
    const auto first = bytes.first<kHelloAckSize>();
    if (const auto ack = decode_hello_ack(first)) {
      require(fuzz::equal(encode(*ack), first), "an answer is written as it was read");
    }
  }
}

#ifdef MCAST_FUZZ_VERBS
void check_verbs(ConstBytes bytes) {
  if (const auto hello = verbs::decode_hello(bytes)) {
    const auto again = verbs::encode(*hello);
    // The two bytes of padding are ignored.
    require(fuzz::equal(ConstBytes(again).first(30), bytes.first(30)), "a verbs hello");
  }
  if (const auto refusal = verbs::decode_refusal(bytes)) {
    require(fuzz::equal(verbs::encode(*refusal), bytes.first(5)), "a verbs refusal");
  }
  if (const auto message = verbs::parse_message(bytes)) {
    std::vector<std::byte> again(verbs::kMessageHeader);
    verbs::write_message(again.data(), *message);
    require(fuzz::equal(again, bytes.first(verbs::kMessageHeader)), "a verbs message");
  }
}
#else
void check_verbs(ConstBytes) {}
#endif

// The frames do not depend on how the bytes are split.
void check_frames(ConstBytes bytes, size_t cut) {
  constexpr size_t kLongest = 300;
  using Frames = std::vector<std::vector<std::byte>>;
  const auto collect = [](Frames& into) {
    return [&into](ConstBytes f) {
      require(!f.empty() && f.size() <= kLongest, "a frame of a length that is allowed");
      into.emplace_back(f.begin(), f.end());
      return kTakeMore;
    };
  };
  Frames whole, pieces;
  const FrameScan all = scan_frames(bytes, kLongest, collect(whole));
  require(all.consumed <= bytes.size() && all.frames == whole.size(), "what it says it has read");
  const FrameScan begun = scan_frames(bytes.first(cut), kLongest, collect(pieces));
  if (begun.end != FrameScan::End::kNeedMore) return;
  const FrameScan rest = scan_frames(bytes.subspan(begun.consumed), kLongest, collect(pieces));
  require(rest.end == all.end && rest.bad_length == all.bad_length, "the same end");
  require(begun.consumed + rest.consumed == all.consumed && pieces == whole, "the same frames");
}

void check_stripe(const StreamAddress& address) {
  const auto endpoints = stripe_endpoints(address);
  if (!endpoints.ok()) return;
  require(endpoints->size() == stripe_count(address), "as many as it says");
  const StreamAddress plain = stripe_address(address.uid, *endpoints);
  const auto again = stripe_endpoints(plain);
  require(again.ok() && again->size() == endpoints->size(), "an address can be read again");
  const StreamAddress same = stripe_address(address.uid, *again);
  require(same.host == plain.host && same.port == plain.port, "it stays what it is");
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const ConstBytes bytes = fuzz::bytes_of(data, size);
  check_hello(bytes);
  check_verbs(bytes);
  if (size > 0) check_frames(bytes.subspan(1), std::min<size_t>(data[0], size - 1));
  check_stripe({1, std::string(fuzz::text_of(data, size)), 29500});
  return 0;
}
