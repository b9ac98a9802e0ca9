// The buffer of sealed bytes. Frames that are sealed at once and frames that wait in the queue
// arrive whole and in order while the kernel takes any part of the buffer, and the buffer stays
// within its limit.
#include "transport/udp/tcp_guard.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "base/rng.h"
#include "crypto/library.h"

namespace mcast {
namespace {

constexpr size_t kMost = 48u << 10;
using Frame = std::vector<std::byte>;

struct Frames {
  std::vector<Frame>& taken;
  Frame& scratch;
  bool waits = false;  // for a frame of another connection
  FrameTake operator()(ConstBytes frame) const {
    taken.emplace_back(frame.begin(), frame.end());
    return kTakeMore;
  }
  bool its_turn(uint32_t number) const { return !waits && number == taken.size(); }
  Bytes room() const { return scratch; }
};

// Two directions that match each other.
crypto::StreamChains chains_of(bool sender) {
  const auto key = [](uint8_t of) { return crypto::Key(std::array<std::byte, 32>{std::byte{of}}); };
  return {key(sender ? 1 : 2), key(sender ? 2 : 1), crypto::Suite::kAes128Gcm,
          crypto::Mode::kSealed};
}

void run_guard(uint64_t seed, bool numbered) {
  Rng rng(seed);
  TcpGuard sender, receiver;
  ASSERT_TRUE(sender.start(chains_of(true), {}).ok());
  ASSERT_TRUE(receiver.start(chains_of(false), {}).ok());
  SendQueue queue;
  std::vector<Frame> sent, taken;
  Frame wire, scratch(kMost + kFrameNumber);
  while (sent.size() < 200 || !sender.waiting().empty() || !queue.empty()) {
    if (sent.size() < 200 && rng.below(16) > 0) {
      const auto number = static_cast<uint32_t>(sent.size());
      Frame frame(1 + rng.below(rng.below(8) == 0 ? kMost : 2000), static_cast<std::byte>(number));
      const size_t cut = rng.below(frame.size() + 1);
      const ConstBytes whole = frame, parts[] = {whole.first(cut), whole.subspan(cut)};
      if (queue.empty() && !sender.full()) {
        const auto its = numbered ? std::optional<uint32_t>(number) : std::nullopt;
        ASSERT_TRUE(sender.seal(its, parts));
      } else {
        const size_t head = numbered ? kFrameNumber : 0;
        queue.append(encode_prefix(static_cast<uint32_t>(head + frame.size())));
        if (numbered) queue.append(encode_prefix(number));
        queue.append(frame);
      }
      sent.push_back(std::move(frame));
    } else {
      if (sender.waiting().empty()) {
        ASSERT_TRUE(sender.seal_from(queue, numbered));
      }
      const ConstBytes waiting = sender.waiting();
      const size_t takes = rng.below(3) == 0 ? waiting.size() : rng.below(waiting.size() + 1);
      wire.insert(wire.end(), waiting.begin(), waiting.begin() + static_cast<ptrdiff_t>(takes));
      sender.written(takes);
    }
    ASSERT_LT(sender.waiting().size(), TcpGuard::kSealAhead + kMost + 64);
    const bool waits = numbered && rng.below(4) == 0;
    const FrameScan scan =
        receiver.scan(wire, kMost + kFrameNumber, numbered, Frames{taken, scratch, waits});
    ASSERT_TRUE(scan.end == FrameScan::End::kNeedMore || waits);
    wire.erase(wire.begin(), wire.begin() + static_cast<ptrdiff_t>(scan.consumed));
  }
  const FrameScan rest =
      receiver.scan(wire, kMost + kFrameNumber, numbered, Frames{taken, scratch});
  ASSERT_EQ(rest.end, FrameScan::End::kNeedMore);
  ASSERT_EQ(taken.size(), sent.size());
  for (size_t i = 0; i < sent.size(); i++) {
    const ConstBytes got = ConstBytes(taken[i]).subspan(numbered ? kFrameNumber : 0);
    ASSERT_TRUE(std::equal(got.begin(), got.end(), sent[i].begin(), sent[i].end())) << i;
  }
}

TEST(TcpGuard, FramesKeepTheirOrderWhateverTheKernelTakes) {
  ASSERT_TRUE(crypto::load_library().ok());
  for (uint64_t seed = 1; seed <= 40; seed++) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    run_guard(seed, seed % 2 == 0);
  }
}

// A changed number must not make the receiver wait before it opens the record.
TEST(TcpGuard, AChangedNumberIsForged) {
  ASSERT_TRUE(crypto::load_library().ok());
  for (size_t bit = 0; bit < 32; bit++) {
    TcpGuard sender, receiver;
    ASSERT_TRUE(sender.start(chains_of(true), {}).ok());
    ASSERT_TRUE(receiver.start(chains_of(false), {}).ok());
    const Frame frame(100, std::byte{1});
    const ConstBytes parts[] = {frame};
    ASSERT_TRUE(sender.seal(0, parts));
    const ConstBytes waiting = sender.waiting();
    Frame wire(waiting.begin(), waiting.end()), scratch(kMost + kFrameNumber);
    wire[kFramePrefix + bit / 8] ^= static_cast<std::byte>(1u << bit % 8);
    std::vector<Frame> taken;
    const FrameScan scan = receiver.scan(wire, kMost, true, Frames{taken, scratch});
    EXPECT_EQ(scan.end, FrameScan::End::kForged) << bit;
    EXPECT_TRUE(taken.empty());
  }
}

}  // namespace
}  // namespace mcast
