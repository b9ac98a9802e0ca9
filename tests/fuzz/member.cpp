// One member of a group alone: a GroupCore whose peers are the input. The input determines which
// operations this member posts, and which datagrams and frames arrive in which order, from which
// member and when. Most headers name operations that exist, and checksums are right, since only a
// member can make them. Every operation must end once, at the latest when the group is abandoned,
// and nothing may be written outside the memory of the operations. It is many times faster than the
// group target, which has several members and a network. The group may be sealed: then datagrams
// are made with the senders' keys, and changed, truncated or repeated as the input specifies; a
// changed one is never accepted.
#include <array>
#include <vector>

#include "base/checksum.h"
#include "base/log.h"
#include "collective/group_core.h"
#include "crypto/library.h"
#include "fuzz.h"

namespace mcast::fuzz {
namespace {

constexpr uint32_t kMembers = 4;
constexpr size_t kChunk = 64;
constexpr uint64_t kTag = 7;
constexpr size_t kGuard = 32;
constexpr std::byte kGuardByte{0xa5};

// Accepts everything and keeps nothing.
class Sink final : public Port {
 public:
  Bytes lend(size_t size) override {
    return size <= out_.size() ? Bytes(out_).first(size) : Bytes();
  }
  void commit(size_t) override {}
  void send(Member, Channel, std::span<const ConstBytes>) override {}
  size_t queued(Member, Channel) const override { return 0; }
  uint32_t busy_groups() const override { return 1; }

 private:
  std::array<std::byte, 4096> out_;
};

// Memory of one operation between guard bytes.
struct Memory {
  explicit Memory(size_t n) : bytes(n + 2 * kGuard, kGuardByte) {
    region = std::make_shared<Region>(bytes.data() + kGuard, n, nullptr);
  }
  bool intact() const {
    for (size_t i = 0; i < kGuard; i++) {
      if (bytes[i] != kGuardByte || bytes[bytes.size() - 1 - i] != kGuardByte) return false;
    }
    return true;
  }
  std::vector<std::byte> bytes;
  std::shared_ptr<Region> region;
};

class Alone {
 public:
  explicit Alone(ConstBytes input) : in_(input), core_(params(in_.byte()), sink_, counters_) {
    core_.adopt_path(ring_ ? GroupCore::Path::kRing : GroupCore::Path::kMulticast, "adopted");
  }

  void run() {
    while (!in_.empty()) {
      const uint8_t what = in_.byte();
      switch (what & 3u) {
        case 0:
          if (runs_.size() < 6) post(what >> 2);
          break;
        case 1:
          datagram(what >> 2);
          break;
        case 2:
          frame(what >> 2);
          break;
        default:
          turn(what >> 2);
          break;
      }
    }
    for (int i = 0; i < 8; i++) turn(20);
    core_.fail(Status(Code::kAborted, "the input is over"), kNoMember, now_);
    turn(0);
    for (const auto& run : runs_) {
      require(run.ended == 1, "every operation ends once");
      require(run.memory->intact(), "nothing is written beside the memory");
    }
    require(core_.quiet() && core_.deadline(now_) == kNever, "a group that failed wants nothing");
  }

 private:
  struct Run {
    std::shared_ptr<Memory> memory;
    uint32_t hash = 0;
    uint64_t bytes = 0;
    int ended = 0;
  };

  GroupParams params(uint8_t shape) {
    ring_ = (shape & 4u) != 0;
    GroupParams p;
    p.name = "alone";
    p.self = shape & 3u;
    p.tag = kTag;
    p.agreed.members = kMembers;
    p.agreed.chunk = kChunk;
    p.arity = 2;
    p.staging = p.retransmit = 4096;
    p.multicast.wanted = !ring_;
    if ((shape & 32u) != 0) guard(p);
    p.agreed.source_auth = (shape & 96u) == 96u;
    if ((shape & 8u) != 0) p.agreed.eager = 200;
    if ((shape & 16u) != 0) p.agreed.window = 4 * kChunk;
    return p;
  }

  void guard(GroupParams& p) {
    static const crypto::Key root = [] {
      require(crypto::load_library().ok(), "libcrypto is there");
      return crypto::root_key(std::vector<std::byte>(16));
    }();
    crypto::DatagramGuard::Params how;
    how.how = {crypto::Mode::kSealed, crypto::Suite::kAes128Gcm, 0};
    how.self = p.self;
    how.members = kMembers;
    how.most_payload = 1024;
    how.epochs.packets = 5;
    auto made = crypto::DatagramGuard::make(root, how, std::make_shared<crypto::OpenBudget>());
    require(made.ok(), "a guard");
    p.multicast.guard = std::move(made).value();
    p.agreed.guard = wire::kGuardedExtra;
    for (Member m = 0; m < kMembers; m++) {
      auto key = crypto::SealKey::make(root, how.how, m, how.epochs);
      require(key.ok(), "a sender's key");
      keys_.push_back(std::move(key).value());
    }
  }

  void post(uint8_t what) {
    constexpr uint64_t kSizes[] = {1, 64, 200, 1500};
    wire::Descriptor d;
    d.kind = static_cast<wire::Kind>(1 + (what & 7u) % 6);
    const bool barrier = d.kind == wire::Kind::kBarrier;
    const bool reduction = wire::is_reduction(d.kind);
    d.element = barrier ? 0xff : static_cast<uint8_t>(Element::kInt8);
    d.bytes = barrier ? 0 : kSizes[what >> 3 & 3u];
    if (reduction) d.reduction = static_cast<uint8_t>(Reduction::kSum);
    if (d.kind == wire::Kind::kBroadcast || d.kind == wire::Kind::kReduce) d.root = what >> 5 & 1u;
    Post post;
    post.sequence = core_.next_sequence();
    post.descriptor = d;
    post.posted = now_;
    post.timeout = 10 * kSecond;
    auto memory = std::make_shared<Memory>(kMembers * d.bytes);
    const auto block = [&](uint32_t m) { return Slice{memory->region, m * d.bytes, d.bytes}; };
    const Member self = core_.params().self;
    if (reduction) {
      ReduceArgs args{Element::kInt8, Reduction::kSum, 1, {}, {}};
      const bool scatter = d.kind == wire::Kind::kReduceScatter;
      for (uint32_t m = 0; m < (scatter ? kMembers : 1); m++) args.inputs.push_back(block(m));
      if (d.kind != wire::Kind::kReduce || d.root == self) args.output = block(scatter ? self : 1);
      post.reduce = std::move(args);
    } else if (!barrier) {
      const bool all = d.kind == wire::Kind::kAllgather;
      for (uint32_t m = 0; m < (all ? kMembers : 1); m++) post.outputs.push_back(block(m));
      if (all || d.root == self) post.input = post.outputs[all ? self : 0];
    }
    const size_t index = runs_.size();
    runs_.push_back({memory, d.hash(), d.bytes, 0});
    post.done = [this, index](const Status&) { runs_[index].ended++; };
    core_.post(std::move(post), now_);
  }

  // The hash of that operation here, or another value.
  uint32_t hash(uint32_t sequence, uint8_t how) {
    if (sequence < runs_.size() && how < 240) return runs_[sequence].hash;
    return how;
  }

  void datagram(uint8_t what) {
    wire::DatagramHeader h;
    h.type = static_cast<wire::DatagramType>(1 + (what & 3u));
    h.last = (what & 4u) != 0;
    h.in_order = (what & 8u) != 0;
    h.group_tag = kTag;
    h.member = static_cast<Member>(what >> 4 & 3u);
    h.sequence = in_.byte() & 7u;
    h.descriptor = hash(h.sequence, in_.byte());
    h.chunk = in_.byte();
    size_t length = in_.byte();
    // Uses the length of a chunk of that operation.
    if (length >= 128 && h.sequence < runs_.size()) {
      const uint64_t at = uint64_t{h.chunk} * kChunk, all = runs_[h.sequence].bytes;
      length = at < all ? std::min<uint64_t>(kChunk, all - at) : 1;
    }
    std::vector<std::byte> payload(length, std::byte{what});
    if (h.type == wire::DatagramType::kAbort) payload = rest(length % 32);
    handed();
    if (!keys_.empty()) return guarded(h, payload);
    std::vector<std::byte> out(wire::kDatagramHeader + payload.size());
    wire::write_datagram(out, h, payload);
    core_.on_datagram(h, out, now_);
  }

  // Seals it as its member, or changes it afterwards as an attacker.
  void guarded(const wire::DatagramHeader& h, ConstBytes payload) {
    std::vector<std::byte> out(wire::kGuardedHeader + payload.size() + wire::kDatagramTag);
    require(keys_[h.member].seal(out, h, payload) == out.size(), "a datagram");
    const std::vector<std::byte> whole = out;
    const uint8_t how = in_.byte();
    if ((how & 3u) == 1) out[in_.byte() % out.size()] ^= std::byte{how};
    if ((how & 3u) == 2) out.resize(in_.byte() % out.size());
    const bool changed = out != whole;
    if ((how & 3u) == 3 && !last_.empty()) out = last_;
    last_ = whole;
    wire::GuardedHeader header;
    if (wire::parse_guarded(out, header) != wire::ParseError::kNone) return;
    const DatagramVerdict verdict = core_.on_guarded(header, out, now_);
    require(!changed || verdict != DatagramVerdict::kVerified, "what was changed is not believed");
  }

  void frame(uint8_t what) {
    wire::FrameHeader h;
    h.type = static_cast<wire::FrameType>(1 + in_.byte() % wire::kFrameTypeMax);
    h.member = static_cast<Member>(what & 3u);
    h.group_tag = kTag;
    h.sequence = in_.byte() & 7u;
    const uint8_t how = in_.byte();
    h.argument = (what & 4u) != 0 ? how : hash(h.sequence, how);
    std::vector<std::byte> body;
    if ((what & 8u) != 0) {  // the usual beginning: descriptor, member
      body.resize(4);
      wire::store<uint32_t>(body.data(), hash(h.sequence, how));
    }
    const std::vector<std::byte> more = rest(in_.byte() % 80u);
    body.insert(body.end(), more.begin(), more.end());
    handed();
    core_.on_frame(h, body, now_);
  }

  std::vector<std::byte> rest(size_t length) {
    std::vector<std::byte> out(length);
    for (std::byte& b : out) b = std::byte{in_.byte()};
    return out;
  }

  void turn(uint8_t steps) {
    constexpr Nanos kSteps[] = {0, 100 * kMicro, 3 * kMilli, 600 * kMilli};
    now_ += kSteps[steps & 3u];
    for (int i = 0; i < 4 && core_.progress(now_, (steps & 4u) != 0); i++) {
    }
    core_.deliver();
  }

  Input in_;
  Sink sink_;
  Counters counters_;
  bool ring_ = false;
  Nanos now_ = kSecond;
  std::vector<Run> runs_;
  std::vector<crypto::SealKey> keys_;  // by member; of a sealed group
  std::vector<std::byte> last_;        // the last datagram as it was sealed
  GroupCore core_;
};

}  // namespace
}  // namespace mcast::fuzz

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  mcast::set_log_level(mcast::LogLevel::kOff);
  mcast::fuzz::Alone(mcast::fuzz::bytes_of(data, size)).run();
  return 0;
}
