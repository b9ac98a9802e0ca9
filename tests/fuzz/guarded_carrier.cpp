// The carrier of a guarded connection at both of its ends, with an attacker in between: the
// handshake as an endpoint answers it, then the records of a TCP connection, split anywhere, or the
// messages of a reliable verbs connection. The input determines which end knows which, the messages
// and the changes in transit. A changed message is never accepted, nor is anything after it;
// everything before it arrives as it was sent.
#include <array>
#include <vector>

#include "guarded_ends.h"
#include "transport/guarded/handshake.h"
#include "transport/udp/tcp_guard.h"
#include "transport/verbs/rc_guard.h"
#include "wire/bytes.h"

using namespace mcast;
using crypto::StreamChains;
using fuzz::require;

namespace {

constexpr uint64_t kConnector = 2, kAcceptor = 1;  // uids
constexpr size_t kMostFrame = 300;
constexpr crypto::EpochLimits kLimits{3, uint64_t{1} << 20, 1u << 24};

struct Ends {
  crypto::Identity acceptor = fuzz::make_end(1), connector = fuzz::make_end(2);
};

// The acceptor's knowledge of the connector, as the input determines it.
struct Known {
  Known(uint8_t how, const Ends& ends) {
    address.uid = kConnector;
    address.host = "10.0.0.2";
    if ((how & 1u) != 0) address.key = ends.connector.pair.public_key();
    if ((how & 2u) != 0) address.key = ends.acceptor.pair.public_key();
    address.aggregator = (how & 12u) == 12;
    who.welcome = (how & 48u) != 48;
    if ((how & 64u) != 0) who.address = &address;
    who.stays = (how & 128u) != 0;
  }
  guarded::Acceptor::Answer answer(const Ends& ends) const {
    using Answer = guarded::Acceptor::Answer;
    if (!who.welcome) return Answer::kRefused;
    if (who.address != nullptr && address.aggregator) return Answer::kRefused;
    const bool other =
        address.key != crypto::PublicKey{} && address.key != ends.connector.pair.public_key();
    if (who.address != nullptr && other) return Answer::kImpostor;
    return who.stays ? Answer::kYield : Answer::kAccepted;
  }
  StreamAddress address;
  guarded::Acquaintance who;
};

bool shake_hands(fuzz::Input& input, const Ends& ends, guarded::Acceptor& acceptor,
                 guarded::Connector& connector, const Hello& sent) {
  using Answer = guarded::Acceptor::Answer;
  const Known known(input.byte(), ends);
  crypto::ChallengeBytes challenge = acceptor.challenge();
  bool changed = fuzz::meddle(input, challenge);
  crypto::HelloBytes hello;
  if (!connector.on_challenge(challenge, hello).ok()) return false;
  changed = fuzz::meddle(input, hello) || changed;
  if (!acceptor.proven(hello)) return false;
  require(!changed, "a changed Hello, or Challenge, is refused");
  const auto told = decode_guarded_hello(std::span<const std::byte>(hello).first<kHelloSize>());
  require(told && told->is_for(kAcceptor, kMaxStripe) && told->source == sent.source &&
              told->channel == sent.channel && told->stripe == sent.stripe,
          "it says what was sent");
  crypto::AckBytes ack;
  const Answer answer = acceptor.answer(known.who, kAcceptor, told->channel, ack);
  require(answer == known.answer(ends), "answered by what is known");
  if (answer == Answer::kRefused || answer == Answer::kImpostor) return false;
  changed = fuzz::meddle(input, ack);
  crypto::ConfirmBytes confirm;
  const auto heard = connector.on_ack(ack, confirm);
  if (!heard.ok()) return false;
  require(!changed, "a changed answer is refused");
  const bool yields = (*heard)->verdict == Verdict::kYield;
  require((*heard)->uid == kAcceptor && yields == (answer == Answer::kYield), "as it was said");
  if (yields) return false;
  changed = fuzz::meddle(input, confirm);
  require(acceptor.confirmed(confirm) != changed, "a changed confirmation is refused, no other");
  return !changed;
}

using Frames = std::vector<std::vector<std::byte>>;

// The receiving end of a TCP connection: the frames that it takes, and the ones that it holds back
// at first.
struct Taker {
  Frames& taken;
  bool& holds;
  Bytes scratch;
  FrameTake operator()(ConstBytes frame) const {
    taken.emplace_back(frame.begin(), frame.end());
    return kTakeMore;
  }
  bool its_turn(uint32_t number) const {
    require(number == taken.size(), "a number is believed once its record is opened");
    return !std::exchange(holds, false);
  }
  Bytes room() const { return scratch; }
};

// Queues frames of the input for sending, and records where each ends among the sealed bytes.
Frames queue_up(fuzz::Input& input, bool numbered, SendQueue& queue, std::vector<size_t>& ends) {
  Frames frames(input.byte() % 6u);
  size_t sealed = 0;
  for (size_t i = 0; i < frames.size(); i++) {
    auto& frame = frames[i];
    if (numbered)
      frame.resize(kFrameNumber), wire::store<uint32_t>(frame.data(), static_cast<uint32_t>(i));
    frame.resize(frame.size() + 1 + input.byte(), static_cast<std::byte>(i + 1));
    queue.append(encode_prefix(static_cast<uint32_t>(frame.size())));
    queue.append(frame);
    ends.push_back(sealed += frame.size() + kFramePrefix + crypto::kTagSize);
  }
  return frames;
}

void over_tcp(fuzz::Input& input, StreamChains from, StreamChains to) {
  TcpGuard sender, receiver;
  require(sender.start(std::move(from), kLimits).ok(), "a direction");
  require(receiver.start(std::move(to), kLimits).ok(), "a direction");
  const uint8_t how = input.byte();
  const bool numbered = (how & 1u) != 0, goodbye = (how & 2u) != 0;
  SendQueue queue;
  std::vector<size_t> ends;
  const Frames frames = queue_up(input, numbered, queue, ends);
  if (goodbye) queue.append(encode_prefix(kGoodbyeLength));
  require(sender.seal_from(queue, numbered) && queue.empty(), "sealing goes on");
  std::vector<std::byte> bytes(sender.waiting().begin(), sender.waiting().end());
  size_t good = bytes.size();  // this many arrive as they were sent
  if ((how & 4u) != 0 && !bytes.empty()) {
    good = (input.byte() * 8u + (how >> 5)) % bytes.size();
    bytes[good] ^= static_cast<std::byte>(1u << (how >> 2 & 7u));
  }
  Frames taken;
  bool holds = (how & 8u) != 0;
  std::array<std::byte, kMostFrame + kFrameNumber> scratch;
  FrameScan scan;
  for (size_t begin = 0, end = 0; end < bytes.size() || scan.end == FrameScan::End::kHeld;) {
    end = std::min(bytes.size(), end + 1 + input.byte());
    scan = receiver.scan(ConstBytes(bytes).first(end).subspan(begin), kMostFrame, numbered,
                         Taker{taken, holds, scratch});
    begin += scan.consumed;
    if (scan.end != FrameScan::End::kNeedMore && scan.end != FrameScan::End::kHeld) break;
  }
  size_t whole = 0;
  while (whole < ends.size() && ends[whole] <= good) whole++;
  require(taken.size() == whole, "all that comes before the change arrives, and nothing else");
  for (size_t i = 0; i < whole; i++) require(taken[i] == frames[i], "as it was sent");
  const bool ended = scan.end == FrameScan::End::kGoodbye;
  require(ended == (goodbye && good == bytes.size()), "a goodbye is believed of its sender only");
}

void over_verbs(fuzz::Input& input, StreamChains from, StreamChains to) {
  verbs::RcGuard sender, receiver;
  require(sender.records.start(std::move(from), kLimits).ok(), "a direction");
  require(receiver.records.start(std::move(to), kLimits).ok(), "a direction");
  bool broken = false;
  for (int i = 0; i < 8 && !input.empty(); i++) {
    const uint8_t how = input.byte();
    verbs::Message message;
    message.kind = static_cast<verbs::Kind>(how % 3u);
    message.channel = static_cast<Channel>((how >> 2) % kChannels);
    message.first = (how & 64u) != 0;
    message.credits = how;
    const bool data = message.kind == verbs::Kind::kData;
    const std::vector<std::byte> piece(data ? input.byte() : 0, std::byte{how});
    message.length = static_cast<uint32_t>(piece.size());
    std::array<std::byte, verbs::kMessageHeader> header;
    verbs::write_message(header.data(), message);
    const std::array<ConstBytes, 2> body{header, piece};
    std::vector<std::byte> record(crypto::record_size(header.size() + piece.size(), false));
    require(sender.records.seal(std::nullopt, body, record.data()), "sealing goes on");
    const size_t size = record.size();
    if (const uint8_t length = input.byte(); length >= 224) record.resize(length % 32u);
    if (!record.empty()) broken = fuzz::meddle(input, record) || broken;
    broken = broken || record.size() != size;
    const auto got = receiver.open(record);
    require(got.has_value() == !broken, "a message is believed until the first that was changed");
    if (!got) continue;
    const auto read = verbs::parse_message(*got);
    require(read && read->kind == message.kind && read->channel == message.channel &&
                read->credits == message.credits,
            "and says what was sent");
    require(fuzz::equal(got->subspan(verbs::kMessageHeader), piece), "with what it brings");
  }
}

// Replaces the first record by any bytes.
void noise(ConstBytes raw, const guarded::Acceptor& acceptor) {
  TcpGuard tcp;
  verbs::RcGuard rc;
  require(tcp.start(acceptor.chains(), kLimits).ok(), "a direction");
  require(rc.records.start(acceptor.chains(), kLimits).ok(), "a direction");
  Frames taken;
  bool holds = false;
  std::array<std::byte, kMostFrame + kFrameNumber> scratch;
  const FrameScan scan = tcp.scan(raw, kMostFrame, !raw.empty() && raw.front() < std::byte{128},
                                  Taker{taken, holds, scratch});
  require(taken.empty() && scan.consumed == 0 && scan.end != FrameScan::End::kGoodbye,
          "a stranger's record is refused");
  if (raw.size() <= verbs::kEntry) require(!rc.open(raw), "and so is its message");
  (void)verbs::decode_hello(raw, crypto::kGuardedStreamVersion);
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Ends ends;
  fuzz::Input input(fuzz::bytes_of(data, size));
  const uint8_t what = input.byte();
  Hello hello;
  hello.source = kConnector;
  hello.target = kAcceptor;
  hello.channel = static_cast<Channel>((what >> 2) % kChannels);
  hello.stripes = 1 + (what >> 5);
  if (hello.channel != Channel::kControl) hello.stripe = (what >> 4) % hello.stripes;
  StreamAddress address;
  address.uid = kAcceptor;
  address.key = ends.acceptor.pair.public_key();
  guarded::Acceptor acceptor(ends.acceptor, {});
  guarded::Connector connector(ends.connector, address, encode(hello));
  if (!shake_hands(input, ends, acceptor, connector, hello)) return 0;
  noise(fuzz::bytes_of(data, size), acceptor);
  const bool backwards = (what & 2u) != 0;
  StreamChains from = backwards ? acceptor.chains() : connector.chains();
  StreamChains to = backwards ? connector.chains() : acceptor.chains();
  if ((what & 1u) != 0) {
    over_verbs(input, std::move(from), std::move(to));
  } else {
    over_tcp(input, std::move(from), std::move(to));
  }
  return 0;
}
