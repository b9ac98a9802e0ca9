// A guarded connection from Challenge to records, with an attacker in between. The input determines
// which messages are changed and how. A change is detected before a frame is accepted, and invalid
// bytes only end a handshake or a connection.
#include <array>
#include <vector>

#include "crypto/stream_guard.h"
#include "guarded_ends.h"

using namespace mcast;
using namespace mcast::crypto;
using fuzz::make_end;
using fuzz::meddle;
using fuzz::require;

namespace {

// Returns whether both ends consider themselves connected; then no message was changed.
bool shake_hands(fuzz::Input& input, Acceptor& acceptor, Connector& connector) {
  std::array<std::byte, kHelloHead> hello_head{};
  std::array<std::byte, kAckHead> ack_head{};
  HandshakeNonce nonce{};
  ChallengeBytes challenge = acceptor.challenge();
  bool changed = meddle(input, challenge);
  HelloBytes hello;
  if (connector.hello(challenge, hello_head, nonce, hello) != HandshakeError::kNone) return false;
  changed = meddle(input, hello) || changed;
  if (acceptor.check_hello(hello) != HandshakeError::kNone) return false;
  require(!changed, "a changed Hello, or Challenge, is refused");
  AckBytes ack;
  if (acceptor.answer(ack_head, ack) != HandshakeError::kNone) return false;
  changed = meddle(input, ack);
  ConfirmBytes confirm;
  if (connector.check_ack(ack, confirm) != HandshakeError::kNone) return false;
  require(!changed, "a changed answer is refused");
  changed = meddle(input, confirm);
  const bool good = acceptor.check_confirm(confirm) == HandshakeError::kNone;
  require(good != changed, "a changed confirmation is refused, and no other");
  return good;
}

void records(fuzz::Input& input, StreamChains from, StreamChains to) {
  EpochLimits limits;
  limits.packets = 3;
  auto sealer = RecordSealer::make(std::move(from.seal), from.suite, from.mode, limits);
  auto opener = RecordOpener::make(std::move(to.open), to.suite, to.mode, limits);
  require(sealer.ok() && opener.ok(), "a direction");
  std::array<std::byte, 256> body{}, scratch{};
  bool broken = false;
  for (int i = 0; i < 8 && !input.empty(); i++) {
    const ConstBytes part = ConstBytes(body).first(input.byte());
    const bool striped = input.byte() % 2 == 1;
    std::vector<std::byte> record(record_size(part.size(), striped));
    require(sealer->seal(striped ? std::optional<uint32_t>(i) : std::nullopt, {&part, 1},
                         record.data()),
            "sealing goes on");
    broken = meddle(input, record) || broken;
    const auto got = opener->open(striped, record, scratch);
    require(got.has_value() == !broken, "a record is believed until the first that was changed");
    require(!got || fuzz::equal(*got, part), "and is what was sent");
  }
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Identity one = make_end(1), two = make_end(2);
  fuzz::Input input(fuzz::bytes_of(data, size));
  Acceptor acceptor(one, {});
  Connector connector(two, one.pair.public_key());
  if (shake_hands(input, acceptor, connector)) {
    const bool backwards = input.byte() % 2 == 1;
    records(input, backwards ? acceptor.chains() : connector.chains(),
            backwards ? connector.chains() : acceptor.chains());
  }
  // Replaces each message by any bytes.
  const ConstBytes raw = fuzz::bytes_of(data, size);
  const auto padded = [&raw]<size_t N>(std::array<std::byte, N> out) {
    for (size_t i = 0; i < N && i < raw.size(); i++) out[i] = raw[i];
    return out;
  };
  HelloBytes hello;
  Connector any(two, one.pair.public_key());
  (void)any.hello(padded(ChallengeBytes{}), std::array<std::byte, kHelloHead>{}, {}, hello);
  Acceptor strangers(one, {});
  require(strangers.check_hello(padded(HelloBytes{})) != HandshakeError::kNone,
          "a stranger's Hello is refused");
  ConfirmBytes confirm;
  require(any.check_ack(padded(AckBytes{}), confirm) != HandshakeError::kNone,
          "a stranger's answer is refused");
  return 0;
}
