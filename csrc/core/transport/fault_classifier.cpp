// Predicates over unverified headers: type (datagram or frame type name), last (final chunk of a
// stream), chunk (index or range), member (root of the stream or sender of the frame), sequence.
#include "transport/fault_classifier.h"

#include <charconv>

#include "wire/frame.h"
#include "wire/guarded_datagram.h"

namespace mcast {
namespace {

bool parse_range(std::string_view text, uint64_t& lo, uint64_t& hi) {
  const auto number = [](std::string_view t, uint64_t& out) {
    const auto [end, error] = std::from_chars(t.data(), t.data() + t.size(), out);
    return error == std::errc() && end == t.data() + t.size();
  };
  const size_t dash = text.find('-');
  if (!number(text.substr(0, dash), lo)) return false;
  if (dash == std::string_view::npos) {
    hi = lo;
    return true;
  }
  return number(text.substr(dash + 1), hi) && lo <= hi;
}

bool known_type(std::string_view name) {
  for (uint8_t t = 1; t <= 4; t++) {
    if (name == wire::datagram_type_name(static_cast<wire::DatagramType>(t))) return true;
  }
  for (uint8_t t = 1; t <= wire::kFrameTypeMax; t++) {
    if (name == wire::frame_type_name(static_cast<wire::FrameType>(t))) return true;
  }
  return false;
}

class WireClassifier final : public FaultClassifier {
 public:
  bool knows(std::string_view predicate, std::string_view value) const override {
    uint64_t lo, hi;
    if (predicate == "type") return known_type(value);
    if (predicate == "last") return value == "0" || value == "1";
    return (predicate == "chunk" || predicate == "member" || predicate == "sequence") &&
           parse_range(value, lo, hi);
  }

  bool matches(std::string_view predicate, std::string_view value, ConstBytes message,
               bool frame) const override {
    wire::DatagramHeader d;
    wire::FrameHeader f;
    const bool parsed = frame ? wire::parse_frame(message, f) : wire::peek_datagram(message, d);
    if (!parsed) return false;
    if (predicate == "type") {
      return value == (frame ? wire::frame_type_name(f.type) : wire::datagram_type_name(d.type));
    }
    if (predicate == "last") return !frame && d.last == (value == "1");
    uint64_t lo = 0, hi = 0, x = 0;
    if (!parse_range(value, lo, hi)) return false;
    if (predicate == "chunk") {
      if (frame) return false;
      x = d.chunk;
    } else if (predicate == "member") {
      x = frame ? f.member : d.member;
    } else {
      x = frame ? f.sequence : d.sequence;
    }
    return lo <= x && x <= hi;
  }

  std::string grammar() const override {
    std::string types;
    for (uint8_t t = 1; t <= 4; t++) {
      types += std::string(t > 1 ? "|" : "") +
               wire::datagram_type_name(static_cast<wire::DatagramType>(t));
    }
    for (uint8_t t = 1; t <= wire::kFrameTypeMax; t++) {
      types += std::string("|") + wire::frame_type_name(static_cast<wire::FrameType>(t));
    }
    return "type=" + types + ", last=0|1, chunk=N or N-M, member=N or N-M, sequence=N or N-M";
  }
};

}  // namespace

const FaultClassifier& wire_fault_classifier() {
  static const WireClassifier* const classifier = new WireClassifier;
  return *classifier;
}

}  // namespace mcast
