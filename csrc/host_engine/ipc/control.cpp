// A message is a head (type u16, flags u16 = 0, length u32 of all, call u64) and parts. Scalars are
// lines of key=value in the first part, so that a later version can add some; texts and values of
// any bytes are parts of their own.
#include "host_engine/ipc/control.h"

#include <algorithm>

#include "wire/bytes.h"
#include "wire/text_record.h"

namespace mcast::ipc {
namespace {

using wire::Fields;

constexpr size_t kMostParts = 4096;

class Scalars {
 public:
  template <typename T>
  Scalars& add(std::string_view key, T value) {
    wire::put_field(text_, key, std::to_string(value));
    return *this;
  }
  Scalars& add(std::string_view key, const std::string& value) {
    wire::put_field(text_, key, value);
    return *this;
  }
  // A time that is over is sent as 0, since none below is read.
  Scalars& add_time(std::string_view key, Nanos time) { return add(key, std::max<Nanos>(0, time)); }
  std::string text() { return std::move(text_); }

 private:
  std::string text_;
};

bool text_of(const Fields& fields, std::string_view key, std::string& out) {
  const auto it = fields.find(key);
  if (it == fields.end()) return false;
  out = it->second;
  return true;
}

// Accepts only whole, non-negative times.
bool time_of(const Fields& fields, std::string_view key, Nanos& out) {
  uint64_t value = 0;
  if (!wire::number(fields, key, value, INT64_MAX)) return false;
  out = static_cast<Nanos>(value);
  return true;
}

bool flag_of(const Fields& fields, std::string_view key, bool& out) {
  uint8_t value = 0;
  if (!wire::number(fields, key, value, 1)) return false;
  out = value == 1;
  return true;
}

bool code_of(const Fields& fields, Code& out) {
  uint8_t value = 0;
  if (!wire::number(fields, "code", value, static_cast<uint8_t>(Code::kInternal))) return false;
  out = static_cast<Code>(value);
  return true;
}

// The fields of the first part; the message must have exactly `parts` parts, or at least so many.
std::optional<Fields> scalars(const Control& from, size_t parts, bool exactly = true) {
  const size_t have = from.parts.size();
  if (exactly ? have != parts : have < parts) return std::nullopt;
  return wire::fields_of(from.parts.front());
}

bool known(uint16_t type) {
  const auto is = [type](ControlType t) { return type == static_cast<uint16_t>(t); };
  const auto between = [type](ControlType a, ControlType b) {
    return type >= static_cast<uint16_t>(a) && type <= static_cast<uint16_t>(b);
  };
  return between(ControlType::kHello, ControlType::kDrain) ||
         between(ControlType::kWelcome, ControlType::kDraining) || is(ControlType::kLook) ||
         is(ControlType::kMemoryOffer) || is(ControlType::kMemory) || is(ControlType::kStoreClaim);
}

size_t length_of(const Control& message) {
  size_t length = kControlHead;
  for (const std::string& part : message.parts) length += 4 + part.size();
  return length;
}

}  // namespace

size_t fitting(const Control& message, std::span<const std::string> parts) {
  size_t length = length_of(message), count = 0;
  const size_t most = kMostParts - std::min(kMostParts, message.parts.size());
  while (count < std::min(most, parts.size())) {
    length += 4 + parts[count].size();
    if (length > kMostControl) break;
    count++;
  }
  return count;
}

std::string too_long(const Control& message) {
  const size_t length = length_of(message), parts = message.parts.size();
  if (length <= kMostControl && parts <= kMostParts) return "";
  return "a message of " + std::to_string(length) + " bytes in " + std::to_string(parts) +
         " parts is too long for the link of an engine and its client (" +
         std::to_string(kMostControl) + " bytes, " + std::to_string(kMostParts) + " parts)";
}

std::vector<std::byte> bytes_of(const Control& message) {
  const size_t length = length_of(message);
  if (length > kMostControl || message.parts.size() > kMostParts) return {};
  wire::Writer out;
  out.put<uint16_t>(static_cast<uint16_t>(message.type));
  out.put<uint16_t>(0);
  out.put<uint32_t>(static_cast<uint32_t>(length));
  out.put<uint64_t>(message.call);
  for (const std::string& part : message.parts) {
    out.put<uint32_t>(static_cast<uint32_t>(part.size()));
    out.put_text(part);
  }
  return {out.bytes().begin(), out.bytes().end()};
}

std::optional<Control> parse_control(ConstBytes packet) {
  wire::Reader in(packet);
  const auto type = in.get<uint16_t>(), flags = in.get<uint16_t>();
  const auto length = in.get<uint32_t>();
  Control message{static_cast<ControlType>(type), in.get<uint64_t>(), {}};
  if (!in.ok() || !known(type) || flags != 0 || length != packet.size() ||
      packet.size() > kMostControl) {
    return std::nullopt;
  }
  ConstBytes rest = in.rest();
  while (!rest.empty()) {
    wire::Reader part(rest);
    const auto size = part.get<uint32_t>();
    if (!part.ok() || size > part.remaining() || message.parts.size() == kMostParts) {
      return std::nullopt;
    }
    rest = part.rest();
    message.parts.emplace_back(reinterpret_cast<const char*>(rest.data()), size);
    rest = rest.subspan(size);
  }
  return message;
}

Control control_of(const Hello& m) {
  Scalars s;
  s.add("oldest", m.oldest).add("newest", m.newest).add("product", m.product);
  return {ControlType::kHello, 0, {s.text()}};
}

bool read(const Control& from, Hello& m) {
  const auto f = scalars(from, 1);
  return f && wire::number(*f, "oldest", m.oldest) && wire::number(*f, "newest", m.newest) &&
         m.oldest <= m.newest && text_of(*f, "product", m.product);
}

Control control_of(const Welcome& m) {
  Scalars s;
  s.add_time("silence", m.silence).add("security", m.security).add("secret_check", m.secret_check);
  s.add("settings", m.settings);
  return {ControlType::kWelcome, 0, {s.text()}};
}

bool read(const Control& from, Welcome& m) {
  const auto f = scalars(from, 1);
  if (!f || !time_of(*f, "silence", m.silence)) return false;
  // An engine that does not send the field guards nothing.
  if (!text_of(*f, "security", m.security)) m.security = "off";
  if (!text_of(*f, "secret_check", m.secret_check)) m.secret_check.clear();
  if (!text_of(*f, "settings", m.settings)) m.settings.clear();
  return true;
}

Control control_of(ControlType type, uint64_t call, const Verdict& m) {
  Scalars s;
  s.add("code", static_cast<unsigned>(m.code));
  return {type, call, {s.text(), m.text}};
}

bool read(const Control& from, Verdict& m) {
  const auto f = scalars(from, 2);
  if (!f || !code_of(*f, m.code)) return false;
  m.text = from.parts[1];
  return m.code != Code::kOk || m.text.empty();
}

Control control_of(uint64_t call, const GroupAsk& m) {
  Scalars s;
  s.add("name", m.name).add("rank", m.rank).add("size", m.size).add_time("timeout", m.timeout);
  if (!m.scope.empty()) s.add("scope", m.scope);
  if (!m.fallback.empty()) s.add("fallback", m.fallback);
  if (m.claims) s.add("claims", 1);
  Control out{ControlType::kGroupAsk, call, {s.text()}};
  for (const auto& [key, value] : m.settings) {
    out.parts.push_back(key);
    out.parts.push_back(value);
  }
  return out;
}

bool read(const Control& from, GroupAsk& m) {
  const auto f = scalars(from, 1, false);
  if (!f || from.parts.size() % 2 == 0) return false;
  m.settings.clear();
  m.scope.clear();
  (void)text_of(*f, "scope", m.scope);
  m.fallback.clear();
  (void)text_of(*f, "fallback", m.fallback);
  m.claims = false;
  (void)flag_of(*f, "claims", m.claims);
  for (size_t i = 1; i < from.parts.size(); i += 2) m.settings[from.parts[i]] = from.parts[i + 1];
  return m.settings.size() == from.parts.size() / 2 && text_of(*f, "name", m.name) &&
         wire::number(*f, "rank", m.rank) && wire::number(*f, "size", m.size, kNoMember - 1) &&
         m.rank < m.size && time_of(*f, "timeout", m.timeout);
}

Control control_of(uint64_t call, const StoreSet& m) {
  return {ControlType::kStoreSet, call, {m.key, m.value}};
}

bool read(const Control& from, StoreSet& m) {
  if (from.parts.size() != 2) return false;
  m = {from.parts[0], from.parts[1]};
  return true;
}

Control control_of(uint64_t call, const StoreClaim& m) {
  return {ControlType::kStoreClaim, call, {m.key, m.owner}};
}

bool read(const Control& from, StoreClaim& m) {
  if (from.parts.size() != 2) return false;
  m = {from.parts[0], from.parts[1]};
  return true;
}

Control control_of(uint64_t call, const StoreGet& m) {
  Control out{ControlType::kStoreGet, call, {Scalars().add_time("timeout", m.timeout).text()}};
  out.parts.insert(out.parts.end(), m.keys.begin(), m.keys.end());
  return out;
}

bool read(const Control& from, StoreGet& m) {
  const auto f = scalars(from, 2, false);
  if (!f) return false;
  m.keys.assign(from.parts.begin() + 1, from.parts.end());
  return time_of(*f, "timeout", m.timeout);
}

Control control_of(uint64_t call, const StoreAnswer& m) {
  Control out = control_of(ControlType::kStoreAnswer, call, m.verdict);
  out.parts.insert(out.parts.end(), m.values.begin(), m.values.end());
  return out;
}

bool read(const Control& from, StoreAnswer& m) {
  if (from.parts.size() < 2) return false;
  m.values.assign(from.parts.begin() + 2, from.parts.end());
  return read(Control{from.type, from.call, {from.parts[0], from.parts[1]}}, m.verdict) &&
         (m.verdict.code == Code::kOk || m.values.empty());
}

Control control_of(uint64_t call, const GroupMade& m) {
  Scalars s;
  s.add("handle", m.handle).add("longest", m.longest).add("messages", m.messages ? 1 : 0);
  return {ControlType::kGroupMade, call, {s.text(), m.stats}};
}

bool read(const Control& from, GroupMade& m) {
  const auto f = scalars(from, 2);
  if (!f) return false;
  m.stats = from.parts[1];
  return wire::number(*f, "handle", m.handle) && wire::number(*f, "longest", m.longest) &&
         flag_of(*f, "messages", m.messages);
}

Control control_of(uint64_t call, const Close& m) {
  Scalars s;
  s.add("handle", m.handle).add_time("limit", m.limit).add("force", m.force ? 1 : 0);
  return {ControlType::kClose, call, {s.text()}};
}

bool read(const Control& from, Close& m) {
  const auto f = scalars(from, 1);
  return f && wire::number(*f, "handle", m.handle) && time_of(*f, "limit", m.limit) &&
         flag_of(*f, "force", m.force);
}

Control control_of(const Abort& m) {
  return {ControlType::kAbort, 0, {Scalars().add("handle", m.handle).text(), m.reason}};
}

bool read(const Control& from, Abort& m) {
  const auto f = scalars(from, 2);
  if (!f) return false;
  m.reason = from.parts[1];
  return wire::number(*f, "handle", m.handle);
}

Control control_of(ControlType type, uint64_t call, const Draining& m) {
  return {type, call, {Scalars().add_time("limit", m.limit).text()}};
}

bool read(const Control& from, Draining& m) {
  const auto f = scalars(from, 1);
  return f && time_of(*f, "limit", m.limit);
}

Control control_of(ControlType type, uint64_t call, const Arena& m) {
  return {type, call, {Scalars().add("space", m.space).add("bytes", m.bytes).text()}};
}

bool read(const Control& from, Arena& m) {
  const auto f = scalars(from, 1);
  return f && wire::number(*f, "space", m.space) && wire::number(*f, "bytes", m.bytes);
}

Control control_of(uint64_t call, const MemoryOffer& m) {
  Scalars s;
  s.add("address", m.address).add("first", m.cookie[0]).add("second", m.cookie[1]);
  return {ControlType::kMemoryOffer, call, {s.text()}};
}

bool read(const Control& from, MemoryOffer& m) {
  const auto f = scalars(from, 1);
  return f && wire::number(*f, "address", m.address) && wire::number(*f, "first", m.cookie[0]) &&
         wire::number(*f, "second", m.cookie[1]);
}

Control control_of(uint64_t call, const Memory& m) {
  Scalars s;
  s.add("road", static_cast<unsigned>(m.method));
  return {ControlType::kMemory, call, {s.text()}};
}

bool read(const Control& from, Memory& m) {
  const auto f = scalars(from, 1);
  uint8_t method = 0;
  if (!f || !wire::number(*f, "road", method)) return false;
  m.method = static_cast<AccessMethod>(method);
  return m.method == AccessMethod::kVm || m.method == AccessMethod::kDescriptor;
}

}  // namespace mcast::ipc
