// The roster's encoding (docs/protocol.md, section 1). A rank costs 34 bytes if its address is a
// single one of IPv4, 46 bytes of IPv6; a code before each address gives its form.
#include <algorithm>
#include <iterator>
#include <string_view>

#include "base/ip_address.h"
#include "runtime/rendezvous.h"
#include "wire/bytes.h"
#include "wire/datagram.h"

namespace mcast {
namespace {

// Flags. The transport's number has the lowest bit and the upper three.
constexpr uint8_t kAgain = 2, kShared = 4, kHostsKnown = 8, kLoopback = 16;
constexpr size_t kTransports = std::size(kTransportNames);
static_assert(kTransports <= 16);
// Form of an address: 4 or 16 bytes; a loopback address; as the one before; none; a text with its
// length (addresses of a stripe, and what is no number).
enum class Form : uint8_t { kV4, kV6, kLocalV4, kLocalV6, kSame, kNone, kText };
constexpr const char* kLocalHostV4 = "127.0.0.1";
constexpr const char* kLocalHostV6 = "::1";

uint8_t transport_bits(std::string_view name) {
  const auto* at = std::find(std::begin(kTransportNames), std::end(kTransportNames), name);
  const auto number = static_cast<size_t>(at - std::begin(kTransportNames));
  return static_cast<uint8_t>((number & 1) | (number >> 1) << 5);
}

size_t transport_number(uint8_t flags) { return (flags & 1u) | (flags >> 5 & 7u) << 1; }

void put_text(wire::Writer& out, const std::string& text) {
  const std::string cut = text.substr(0, UINT16_MAX);
  out.put<uint16_t>(static_cast<uint16_t>(cut.size()));
  out.put_text(cut);
}

std::string get_text(wire::Reader& in, size_t size) {
  std::string text;
  for (size_t i = 0; i < size && in.ok(); i++) text += static_cast<char>(in.get<uint8_t>());
  return text;
}

void put_form(wire::Writer& out, Form form) { out.put<uint8_t>(static_cast<uint8_t>(form)); }

void put_address(wire::Writer& out, const StreamAddress& a, const std::string& same) {
  const auto number = IpAddress::parse(a.host);
  if (a.host.empty()) {
    put_form(out, Form::kNone);
  } else if (a.host == same) {
    put_form(out, Form::kSame);
  } else if (a.host == kLocalHostV4 || a.host == kLocalHostV6) {
    put_form(out, a.host == kLocalHostV4 ? Form::kLocalV4 : Form::kLocalV6);
  } else if (number && number->text() == a.host) {
    put_form(out, number->is_v4() ? Form::kV4 : Form::kV6);
    for (size_t i = number->is_v4() ? 12 : 0; i < 16; i++) out.put<uint8_t>(number->bytes[i]);
  } else {
    put_form(out, Form::kText);
    put_text(out, a.host);
  }
  out.put<uint16_t>(a.port);
}

// Returns false if the form is not known.
bool get_address(wire::Reader& in, uint64_t uid, const std::string& same, StreamAddress& a) {
  a.uid = uid;
  const auto form = static_cast<Form>(in.get<uint8_t>());
  if (form > Form::kText) return false;
  if (form == Form::kV4 || form == Form::kV6) {
    IpAddress number = form == Form::kV4 ? IpAddress::v4(0) : IpAddress();
    for (size_t i = form == Form::kV4 ? 12 : 0; i < 16; i++) number.bytes[i] = in.get<uint8_t>();
    a.host = number.text();
  } else if (form == Form::kText) {
    a.host = get_text(in, in.get<uint16_t>());
  } else if (form != Form::kNone) {
    a.host = form == Form::kSame ? same : form == Form::kLocalV4 ? kLocalHostV4 : kLocalHostV6;
  }
  a.port = in.get<uint16_t>();
  return true;
}

}  // namespace

std::string Roster::encode() const {
  wire::Writer out;
  out.put<uint8_t>(static_cast<uint8_t>(transport_bits(transport) | (again ? kAgain : 0) |
                                        (shared ? kShared : 0) | (hosts_known ? kHostsKnown : 0) |
                                        (address.loopback ? kLoopback : 0)));
  put_text(out, transport_reason);
  put_text(out, network);
  out.put<uint32_t>(static_cast<uint32_t>(datagram));
  out.put<uint64_t>(budget);
  out.put<uint64_t>(tag);
  put_text(out, salt);
  out.put<uint32_t>(address.group);
  out.put<uint16_t>(address.port);
  out.put<uint16_t>(static_cast<uint16_t>(racks.size()));
  for (const std::string& rack : racks) put_text(out, rack);
  out.put<uint16_t>(static_cast<uint16_t>(again ? 0 : ranks.size()));
  for (const Rank& r : ranks) {
    if (again) break;
    out.put<uint16_t>(static_cast<uint16_t>(r.host));
    out.put<uint64_t>(r.external.uid);
    put_address(out, r.external, "");
    put_address(out, r.loopback, r.external.host);
    out.put<uint64_t>(r.reduce_external.uid);
    put_address(out, r.reduce_external, r.external.host);
    put_address(out, r.reduce_loopback, r.loopback.host);
    if (!racks.empty()) out.put<uint16_t>(static_cast<uint16_t>(r.rack));
  }
  const ConstBytes bytes = out.bytes();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

Result<Roster> Roster::decode(const std::string& text) {
  wire::Reader in({reinterpret_cast<const std::byte*>(text.data()), text.size()});
  Roster out;
  const auto flags = in.get<uint8_t>();
  const size_t number = transport_number(flags);
  if (number < kTransports) out.transport = kTransportNames[number];
  out.again = flags & kAgain;
  out.shared = flags & kShared;
  out.hosts_known = flags & kHostsKnown;
  out.address.loopback = flags & kLoopback;
  out.transport_reason = get_text(in, in.get<uint16_t>());
  out.network = get_text(in, in.get<uint16_t>());
  out.datagram = in.get<uint32_t>();
  out.budget = in.get<uint64_t>();
  out.tag = in.get<uint64_t>();
  out.salt = get_text(in, in.get<uint16_t>());
  out.address.group = in.get<uint32_t>();
  out.address.port = in.get<uint16_t>();
  for (uint32_t i = in.get<uint16_t>(); i > 0 && in.ok(); i--) {
    out.racks.push_back(get_text(in, in.get<uint16_t>()));
  }
  const auto count = in.get<uint16_t>();
  bool known_forms = true;
  for (uint32_t i = 0; i < count && in.ok() && known_forms; i++) {
    Rank r;
    r.host = in.get<uint16_t>();
    const auto uid = in.get<uint64_t>();
    known_forms = known_forms && get_address(in, uid, "", r.external) &&
                  get_address(in, uid, r.external.host, r.loopback);
    const auto reduce_uid = in.get<uint64_t>();
    known_forms = known_forms && get_address(in, reduce_uid, r.external.host, r.reduce_external) &&
                  get_address(in, reduce_uid, r.loopback.host, r.reduce_loopback);
    if (!out.racks.empty()) r.rack = in.get<uint16_t>();
    out.ranks.push_back(std::move(r));
  }
  // An address with a zero byte would be another one for all that take it for a C string.
  const auto plain = [](const StreamAddress& a) { return a.host.find('\0') == std::string::npos; };
  const auto known = [count, &out, &plain](const Rank& r) {
    return r.host < count && r.rack <= out.racks.size() && plain(r.external) && plain(r.loopback) &&
           plain(r.reduce_external) && plain(r.reduce_loopback);
  };
  const bool sound = number < kTransports && known_forms &&
                     (out.again || (out.datagram >= wire::kDatagramHeader + kChunkUnit &&
                                    std::all_of(out.ranks.begin(), out.ranks.end(), known)));
  if (!in.done() || !sound) {
    return Status(Code::kMismatch,
                  "the conclusions of rank 0 cannot be read; all ranks must use "
                  "backend mcast of the same version");
  }
  return out;
}

}  // namespace mcast
