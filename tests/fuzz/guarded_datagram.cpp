// Datagrams of a guarded group: one that parses is written back as the same bytes. A receiver that
// holds the keys refuses everything that no member has sent, and still accepts members' datagrams
// afterwards. Inputs with the right filter, which only members can make, reach the check of the
// tag.
#include <memory>
#include <vector>

#include "crypto/datagram_guard.h"
#include "crypto/library.h"
#include "fuzz.h"
#include "support/admit.h"

using namespace mcast;
using namespace mcast::crypto;
using fuzz::require;

namespace {

struct Pair {
  explicit Pair(Mode mode) {
    require(load_library().ok(), "libcrypto is there");
    root = root_key(std::vector<std::byte>(16));
    DatagramGuard::Params params;
    params.how = {mode, Suite::kAes128Gcm, 0};
    params.members = 3;
    params.most_payload = 1024;
    params.epochs.packets = 64;
    const auto make = [&](Member self) {
      params.self = self;
      auto made = DatagramGuard::make(root, params, budget);
      require(made.ok(), "a guard");
      return std::move(made).value();
    };
    sender = make(0);
    receiver = make(1);
  }
  Key root;
  std::shared_ptr<OpenBudget> budget = std::make_shared<OpenBudget>();
  std::unique_ptr<DatagramGuard> sender, receiver;
  Nanos now = 0;
};

// Returns true if it is accepted.
bool take(Pair& pair, ConstBytes datagram, size_t* size = nullptr) {
  wire::GuardedHeader header;
  ConstBytes payload;
  const DatagramVerdict verdict = mcast::test::admit(*pair.receiver, datagram, header, pair.now);
  require(verdict_name(verdict) != nullptr, "every verdict has a name");
  if (verdict != DatagramVerdict::kVerified) return false;
  if (pair.receiver->open(header, datagram, payload, pair.now) != DatagramVerdict::kVerified)
    return false;
  if (size != nullptr) *size = payload.size();
  return true;
}

void attack(Pair& pair, ConstBytes input) {
  pair.now += kMilli;
  require(!take(pair, input), "nobody but a member is believed");
  if (input.size() >= wire::kGuardedHeader) {
    std::vector<std::byte> member(input.begin(), input.end());
    const FilterKey key = filter_key(pair.root, 0);
    wire::store<uint32_t>(member.data(),
                          static_cast<uint32_t>(siphash13(key, ConstBytes(member).subspan(4, 36))));
    require(!take(pair, member), "a header alone is not believed");
  }
  pair.now += kSecond;  // a window without forgeries
  std::vector<std::byte> out(input.size() + 64);
  const size_t payload = std::min<size_t>(input.size(), 1024);
  wire::DatagramHeader header;
  const size_t written = pair.sender->seal_key().seal(out, header, input.first(payload));
  size_t size = 0;
  require(written != 0 && take(pair, ConstBytes(out).first(written), &size) && size == payload,
          "what a member sends is taken");
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const ConstBytes input = fuzz::bytes_of(data, size);
  wire::GuardedHeader header;
  if (wire::parse_guarded(input, header) == wire::ParseError::kNone) {
    std::array<std::byte, wire::kGuardedHeader> again;
    wire::write_guarded(again.data(), header);
    require(fuzz::equal(again, input.first(again.size())), "a header is written as it was read");
  }
  static Pair auth(Mode::kAuth), sealed(Mode::kSealed);
  attack(auth, input);
  attack(sealed, input);
  return 0;
}
