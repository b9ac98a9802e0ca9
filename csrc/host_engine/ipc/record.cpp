// Encoding and total parsing, field by field, of records of the rings. An accepted record has only
// one encoding (reserved bytes are zero, enumerations within their range), so writing it again
// gives the same bytes. Sums over a run's fields are computed so that they cannot wrap: an accepted
// run lies within the 64 bits of its space.
#include "host_engine/ipc/record.h"

#include <algorithm>
#include <bit>

#include "base/status.h"
#include "host_engine/ipc/ring.h"

namespace mcast::ipc {
namespace {

enum class Type : uint16_t {
  kPost = 1,
  kPart = 2,
  kReady = 3,
  kMessage = 4,
  kDone = 16,
  kFailed = 17,
  kMessageDone = 18,
};

constexpr size_t kLengthAt = 0;
constexpr uint8_t kMore = 1, kStaged = 2;  // of PostRecord
// Flag of DoneRecord and MessageDoneRecord, in the byte of the code.
constexpr uint8_t kHeld = 0x80;

// Begins a record; its length is filled in at the end.
wire::Writer begin(Type type, uint8_t a, uint8_t b) {
  wire::Writer out;
  out.put<uint32_t>(0);
  out.put<uint16_t>(static_cast<uint16_t>(type));
  out.put<uint8_t>(a);
  out.put<uint8_t>(b);
  return out;
}

std::vector<std::byte> finish(const wire::Writer& out) {
  std::vector<std::byte> bytes(out.bytes().begin(), out.bytes().end());
  bytes.resize(std::max(rounded(bytes.size()), kMinRecord));
  wire::store<uint32_t>(bytes.data() + kLengthAt, static_cast<uint32_t>(bytes.size()));
  return bytes;
}

// Writes a text after its length.
void put_text(wire::Writer& out, std::string_view text) {
  text = text.substr(0, kMostText);
  out.put<uint32_t>(static_cast<uint32_t>(text.size()));
  out.put_text(text);
}

bool only_zeros(ConstBytes rest) {
  return std::all_of(rest.begin(), rest.end(), [](std::byte b) { return b == std::byte{0}; });
}

// Returns true if everything was read: less than a word of padding is left.
bool ends(wire::Reader& in, size_t most = 7) {
  const ConstBytes rest = in.rest();
  return in.ok() && rest.size() <= most && only_zeros(rest);
}

bool take_text(wire::Reader& in, std::string& text) {
  const auto length = in.get<uint32_t>();
  if (!in.ok() || length > kMostText || length > in.remaining()) return false;
  const ConstBytes rest = in.rest();
  text.assign(reinterpret_cast<const char*>(rest.data()), length);
  return rest.size() - length <= 7 && only_zeros(rest.subspan(length));
}

bool take_lane(uint8_t byte, LaneId& lane) {
  lane = static_cast<LaneId>(byte);
  return byte <= static_cast<uint8_t>(LaneId::kReduce);
}

void put_runs(wire::Writer& out, const std::vector<SliceRun>& runs) {
  for (const SliceRun& run : runs) {
    out.put<uint16_t>(static_cast<uint16_t>(run.space));
    out.put<uint16_t>(static_cast<uint16_t>(run.role));
    out.put<uint32_t>(run.count);
    out.put<uint64_t>(run.base);
    out.put<uint64_t>(run.length);
    out.put<uint64_t>(run.stride);
  }
}

bool within_its_space(const SliceRun& run) {
  if (run.count == 0 || run.count > kMostSlices) return false;
  if (run.count == 1 && run.stride != 0) return false;
  uint64_t end = 0;
  return !__builtin_mul_overflow(run.stride, uint64_t{run.count - 1}, &end) &&
         !__builtin_add_overflow(end, run.length, &end) &&
         !__builtin_add_overflow(end, run.base, &end);
}

bool take_runs(wire::Reader& in, size_t count, std::vector<SliceRun>& runs) {
  if (in.remaining() != count * kRunBytes) return false;
  runs.reserve(count);
  uint64_t slices = 0;
  for (size_t i = 0; i < count; i++) {
    SliceRun run;
    const auto space = in.get<uint16_t>(), role = in.get<uint16_t>();
    run.space = static_cast<Space>(space);
    run.role = static_cast<Role>(role);
    run.count = in.get<uint32_t>();
    run.base = in.get<uint64_t>();
    run.length = in.get<uint64_t>();
    run.stride = in.get<uint64_t>();
    const bool known = space <= static_cast<uint16_t>(Space::kOwn) ||
                       space >= static_cast<uint16_t>(Space::kFirstArena);
    if (!known || role > static_cast<uint16_t>(Role::kOutput) || !within_its_space(run)) {
      return false;
    }
    slices += run.count;
    runs.push_back(run);
  }
  return slices <= kMostSlices;
}

// length u32, type u16, lane u8, kind u8; group u32, sequence u32; bytes u64; timeout u64; factor
// f64; element u8, reduction u8, root u16, runs u16, flags u8, name length u8; name 32.
std::vector<std::byte> encode(const PostRecord& r) {
  const wire::Descriptor& d = r.descriptor;
  wire::Writer out = begin(Type::kPost, static_cast<uint8_t>(r.lane), static_cast<uint8_t>(d.kind));
  out.put<uint32_t>(r.group);
  out.put<uint32_t>(r.sequence);
  out.put<uint64_t>(d.bytes);
  out.put<uint64_t>(static_cast<uint64_t>(r.timeout));
  out.put<uint64_t>(std::bit_cast<uint64_t>(r.factor));
  out.put<uint8_t>(d.element);
  out.put<uint8_t>(d.reduction);
  out.put<uint16_t>(static_cast<uint16_t>(d.root));
  out.put<uint16_t>(static_cast<uint16_t>(r.runs.size()));
  out.put<uint8_t>(static_cast<uint8_t>((r.more ? kMore : 0) | (r.staged ? kStaged : 0)));
  std::string name = d.name.substr(0, kMostName);
  out.put<uint8_t>(static_cast<uint8_t>(name.size()));
  name.resize(kMostName + 1, '\0');
  out.put_text(name);
  put_runs(out, r.runs);
  return finish(out);
}

bool decode(wire::Reader& in, uint8_t lane, uint8_t kind, PostRecord& r) {
  wire::Descriptor& d = r.descriptor;
  if (!take_lane(lane, r.lane) || kind == 0 || kind > wire::kKindMax) return false;
  d.kind = static_cast<wire::Kind>(kind);
  r.group = in.get<uint32_t>();
  r.sequence = in.get<uint32_t>();
  d.bytes = in.get<uint64_t>();
  const auto timeout = in.get<uint64_t>();
  r.timeout = static_cast<Nanos>(timeout);
  r.factor = std::bit_cast<double>(in.get<uint64_t>());
  d.element = in.get<uint8_t>();
  d.reduction = in.get<uint8_t>();
  d.root = in.get<uint16_t>();
  const auto runs = in.get<uint16_t>();
  const auto flags = in.get<uint8_t>(), length = in.get<uint8_t>();
  std::string name(kMostName + 1, '\0');
  for (char& c : name) c = static_cast<char>(in.get<uint8_t>());
  r.more = (flags & kMore) != 0;
  r.staged = (flags & kStaged) != 0;
  d.name = name.substr(0, length);
  const bool plain = flags <= (kMore | kStaged) && length <= kMostName && r.timeout >= 0 &&
                     std::all_of(name.begin() + std::min<size_t>(length, name.size()), name.end(),
                                 [](char c) { return c == '\0'; });
  return in.ok() && plain && take_runs(in, runs, r.runs);
}

std::vector<std::byte> encode(const PartRecord& r) {
  wire::Writer out = begin(Type::kPart, r.more ? 1 : 0, 0);
  out.put<uint32_t>(r.group);
  out.put<uint32_t>(static_cast<uint32_t>(r.runs.size()));
  put_runs(out, r.runs);
  return finish(out);
}

bool decode(wire::Reader& in, uint8_t more, uint8_t zero, PartRecord& r) {
  r.more = more == 1;
  r.group = in.get<uint32_t>();
  const auto runs = in.get<uint32_t>();
  return in.ok() && more <= 1 && zero == 0 && runs <= kRunsInPart && runs > 0 &&
         take_runs(in, runs, r.runs);
}

std::vector<std::byte> encode(const ReadyRecord& r) {
  wire::Writer out = begin(Type::kReady, static_cast<uint8_t>(r.lane), r.message ? 1 : 0);
  out.put<uint32_t>(r.group);
  out.put<uint32_t>(r.sequence);
  out.put<uint64_t>(r.bytes);
  out.put<uint32_t>(r.input);
  return finish(out);
}

bool decode(wire::Reader& in, uint8_t lane, uint8_t message, ReadyRecord& r) {
  r.message = message == 1;
  r.group = in.get<uint32_t>();
  r.sequence = in.get<uint32_t>();
  r.bytes = in.get<uint64_t>();
  r.input = in.get<uint32_t>();
  return take_lane(lane, r.lane) && message <= 1 &&
         (!r.message || (r.lane == LaneId::kReduce && r.input == 0)) && in.remaining() == 4 &&
         ends(in);
}

// length u32, type u16, receives u8, staged u8; group u32, number u32; tag u32, peer u16, zero u16;
// timeout u64; a run.
std::vector<std::byte> encode(const MessageRecord& r) {
  wire::Writer out = begin(Type::kMessage, r.receives ? 1 : 0, r.staged ? 1 : 0);
  out.put<uint32_t>(r.group);
  out.put<uint32_t>(r.number);
  out.put<uint32_t>(r.tag);
  out.put<uint16_t>(r.peer);
  out.put<uint16_t>(0);
  out.put<uint64_t>(static_cast<uint64_t>(r.timeout));
  put_runs(out, {r.memory});
  return finish(out);
}

bool decode(wire::Reader& in, uint8_t receives, uint8_t staged, MessageRecord& r) {
  r.receives = receives == 1;
  r.staged = staged == 1;
  r.group = in.get<uint32_t>();
  r.number = in.get<uint32_t>();
  r.tag = in.get<uint32_t>();
  r.peer = in.get<uint16_t>();
  const auto zero = in.get<uint16_t>();
  r.timeout = static_cast<Nanos>(in.get<uint64_t>());
  std::vector<SliceRun> runs;
  if (receives > 1 || staged > 1 || zero != 0 || r.timeout < 0 || (r.receives && r.staged) ||
      !take_runs(in, 1, runs)) {
    return false;
  }
  r.memory = runs[0];
  return r.memory.count == 1 && r.memory.role == (r.receives ? Role::kOutput : Role::kInput);
}

std::vector<std::byte> encode(const DoneRecord& r) {
  const auto code = static_cast<uint8_t>(r.code | (r.held ? kHeld : 0));
  wire::Writer out = begin(Type::kDone, static_cast<uint8_t>(r.lane), code);
  out.put<uint32_t>(r.group);
  out.put<uint32_t>(r.sequence);
  out.put<uint32_t>(r.contributors);
  out.put<uint64_t>(static_cast<uint64_t>(r.first_byte));
  out.put<uint64_t>(static_cast<uint64_t>(r.last_byte));
  put_text(out, r.text);
  return finish(out);
}

bool decode(wire::Reader& in, uint8_t lane, uint8_t code, DoneRecord& r) {
  r.held = (code & kHeld) != 0;
  r.code = code = code & static_cast<uint8_t>(~kHeld);
  r.group = in.get<uint32_t>();
  r.sequence = in.get<uint32_t>();
  r.contributors = in.get<uint32_t>();
  r.first_byte = static_cast<Nanos>(in.get<uint64_t>());
  r.last_byte = static_cast<Nanos>(in.get<uint64_t>());
  const bool durations = r.first_byte >= 0 && r.last_byte >= 0;
  return take_lane(lane, r.lane) && durations && code <= static_cast<uint8_t>(Code::kInternal) &&
         take_text(in, r.text) && (code != 0 || (r.text.empty() && !r.held));
}

std::vector<std::byte> encode(const MessageDoneRecord& r) {
  const auto code = static_cast<uint8_t>(r.code | (r.held ? kHeld : 0));
  wire::Writer out = begin(Type::kMessageDone, 0, code);
  out.put<uint32_t>(r.group);
  out.put<uint32_t>(r.number);
  out.put<uint16_t>(r.source);
  out.put<uint16_t>(0);
  put_text(out, r.text);
  return finish(out);
}

bool decode(wire::Reader& in, uint8_t first, uint8_t code, MessageDoneRecord& r) {
  r.held = (code & kHeld) != 0;
  r.code = code = code & static_cast<uint8_t>(~kHeld);
  r.group = in.get<uint32_t>();
  r.number = in.get<uint32_t>();
  r.source = in.get<uint16_t>();
  const auto second = in.get<uint16_t>();
  return first == 0 && second == 0 && code <= static_cast<uint8_t>(Code::kInternal) &&
         take_text(in, r.text) && (code != 0 || (r.text.empty() && !r.held));
}

std::vector<std::byte> encode(const FailedRecord& r) {
  wire::Writer out = begin(Type::kFailed, r.code, 0);
  out.put<uint32_t>(r.group);
  put_text(out, r.text);
  return finish(out);
}

bool decode(wire::Reader& in, uint8_t code, uint8_t zero, FailedRecord& r) {
  r.code = code;
  r.group = in.get<uint32_t>();
  return code != 0 && code <= static_cast<uint8_t>(Code::kInternal) && zero == 0 &&
         take_text(in, r.text);
}

// The record as type `Record`, if that is one of the variant's types.
template <typename Record, typename Any>
std::optional<Any> as(wire::Reader& in, uint8_t a, uint8_t b) {
  Record record;
  if (!decode(in, a, b, record)) return std::nullopt;
  return Any(std::move(record));
}

}  // namespace

void add_slice(std::vector<SliceRun>& runs, Space space, Role role, uint64_t base,
               uint64_t length) {
  if (!runs.empty()) {
    SliceRun& last = runs.back();
    const bool alike = last.space == space && last.role == role && last.length == length;
    const uint64_t stride = last.count == 1 ? base - last.base : last.stride;
    if (alike && base > last.base && base - last.base == stride * last.count &&
        last.count < kMostSlices) {
      last.stride = stride;
      last.count++;
      return;
    }
  }
  runs.push_back({space, role, 1, base, length, 0});
}

std::vector<std::byte> bytes_of(const Submission& record) {
  return std::visit([](const auto& r) { return encode(r); }, record);
}

std::vector<std::byte> bytes_of(const Completed& record) {
  return std::visit([](const auto& r) { return encode(r); }, record);
}

std::optional<Submission> parse_submission(ConstBytes record) {
  wire::Reader in(record);
  if (in.get<uint32_t>() != record.size() || record.size() % 8 != 0) return std::nullopt;
  const auto type = in.get<uint16_t>();
  const auto a = in.get<uint8_t>(), b = in.get<uint8_t>();
  switch (static_cast<Type>(type)) {
    case Type::kPost:
      return as<PostRecord, Submission>(in, a, b);
    case Type::kPart:
      return as<PartRecord, Submission>(in, a, b);
    case Type::kReady:
      return as<ReadyRecord, Submission>(in, a, b);
    case Type::kMessage:
      return as<MessageRecord, Submission>(in, a, b);
    default:
      return std::nullopt;
  }
}

std::optional<Completed> parse_completed(ConstBytes record) {
  wire::Reader in(record);
  if (in.get<uint32_t>() != record.size() || record.size() % 8 != 0) return std::nullopt;
  const auto type = in.get<uint16_t>();
  const auto a = in.get<uint8_t>(), b = in.get<uint8_t>();
  switch (static_cast<Type>(type)) {
    case Type::kDone:
      return as<DoneRecord, Completed>(in, a, b);
    case Type::kFailed:
      return as<FailedRecord, Completed>(in, a, b);
    case Type::kMessageDone:
      return as<MessageDoneRecord, Completed>(in, a, b);
    default:
      return std::nullopt;
  }
}

}  // namespace mcast::ipc
