// The send kernel under the NIC model. Each chunk leaves once, in order, as our own parser reads
// it, never beyond the credit, and never from a source that was given back.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>

#include "base/rng.h"
#include "dpa/observed.h"
#include "dpa/send_rig.h"
#include "support/seeds.h"
#include "wire/datagram.h"

namespace mcast::dpa {
namespace {

class Sender {
 public:
  Sender(bool header, uint32_t log) : header_(header) {
    send_rig_init(rig_.get(), log, header ? dpa_observed_send_header : dpa_observed_send_immediate);
    rig_->nic.on_sent = [](void* self, const uint8_t* head, const uint8_t* payload, uint32_t bytes,
                           uint32_t immediate) {
      static_cast<Sender*>(self)->sent(head, payload, bytes, immediate);
    };
    rig_->nic.context = this;
    observing_ = std::make_unique<Observing>(&rig_->nic);
  }

  void open(const rig_stream& stream) {
    stream_ = stream;
    next_ = 0;
    send_rig_open(rig_.get(), &stream);
  }
  void credit(uint32_t limit) { rig_->stream.limit = limit; }
  int poll() {
    const int count = rig_->kernel(&rig_->sender);
    if (rig_->nic.broken != nullptr && wrong_.empty()) wrong_ = rig_->nic.broken;
    return count;
  }
  uint32_t leave(uint32_t most) {
    const uint32_t count = nic_send(&rig_->nic, most);
    if (rig_->nic.broken != nullptr && wrong_.empty()) wrong_ = rig_->nic.broken;
    return count;
  }
  rig_stream& stream() { return stream_; }
  send_rig& rig() { return *rig_; }
  uint32_t left() const { return next_; }
  const std::string& wrong() const { return wrong_; }
  void fail(const std::string& why) {
    if (wrong_.empty()) wrong_ = why;
  }

 private:
  void sent(const uint8_t* head, const uint8_t* payload, uint32_t bytes, uint32_t immediate) {
    const uint32_t chunk = next_++;
    wire::DatagramHeader h;
    const auto error = wire::parse_datagram({reinterpret_cast<const std::byte*>(head), 32}, h);
    if (error != wire::ParseError::kNone) return fail(wire::parse_error_name(error));
    const bool last = chunk + 1 == stream_.chunks;
    if (chunk >= rig_->stream.limit) fail("beyond the credit");
    if (h.chunk != chunk || h.last != last || h.sequence != stream_.sequence ||
        h.group_tag != stream_.tag || h.member != stream_.member ||
        h.descriptor != stream_.descriptor) {
      fail("header of chunk " + std::to_string(chunk) + ": " + std::to_string(h.chunk));
    }
    if (bytes != rig_bytes(&stream_, chunk)) fail("length of chunk " + std::to_string(chunk));
    for (uint32_t i = 0; i < bytes; i++) {
      if (payload[i] != static_cast<uint8_t>(chunk * 7 + i)) return fail("bytes");
    }
    if (!header_ && immediate != (chunk << 8 | stream_.task)) fail("immediate");
  }

  const bool header_;
  std::unique_ptr<send_rig> rig_{std::make_unique<send_rig>()};
  std::unique_ptr<Observing> observing_;
  rig_stream stream_{};
  uint32_t next_ = 0;
  std::string wrong_;
};

std::string run(uint64_t seed, bool header) {
  Rng rng(seed);
  Sender sender(header, 5 + static_cast<uint32_t>(rng.below(2)));
  for (uint32_t generation = 1; generation < 6 && sender.wrong().empty(); generation++) {
    rig_stream s{};
    s.tag = 77 + seed;
    s.sequence = generation;
    s.descriptor = 5 * generation;
    s.member = 3;
    s.task = static_cast<uint8_t>(generation);
    s.chunk_bytes = 1 + static_cast<uint32_t>(rng.below(64));
    s.chunks = 1 + static_cast<uint32_t>(rng.below(300));
    s.tail_bytes = 1 + static_cast<uint32_t>(rng.below(s.chunk_bytes));
    sender.open(s);
    const bool cut = rng.chance(0.3);
    uint32_t limit = 0;
    for (uint32_t step = 0; step < 2000 && sender.left() != s.chunks; step++) {
      if (rng.chance(0.3)) limit += static_cast<uint32_t>(rng.below(s.chunks - limit + 1));
      sender.credit(limit);
      if (sender.poll() < 0) sender.fail("failed");
      sender.leave(static_cast<uint32_t>(rng.below(20)));
      if (cut && rng.chance(0.05)) break;
    }
    if (!cut && sender.left() != s.chunks)
      sender.fail("stopped at " + std::to_string(sender.left()));
    send_rig_close(&sender.rig());
    for (uint32_t i = 0; i < 1000 && send_rig_retired(&sender.rig()) == 0; i++) {
      sender.poll();
      sender.leave(1);
    }
    if (send_rig_retired(&sender.rig()) == 0) sender.fail("never retires");
    sender.poll();
    sender.leave(100);
  }
  return sender.wrong();
}

TEST(DpaSend, EachChunkLeavesOnceInOrderWithAHeader) {
  test::for_seeds(test::seeds(100, 3), [](uint64_t seed) { return run(seed, true); });
}

TEST(DpaSend, EachChunkLeavesOnceInOrderWithAnImmediate) {
  test::for_seeds(test::seeds(100, 4), [](uint64_t seed) { return run(seed, false); });
}

TEST(DpaSend, ABatchIsSixteenAndOneCompletion) {
  Sender sender(true, 6);
  sender.open({1, 2, 3, 4, 0, 5, 100, 64, 10, 0, 100});
  EXPECT_EQ(0, sender.poll()) << "no credit";
  sender.credit(100);
  EXPECT_EQ(16, sender.poll());
  EXPECT_EQ(16u, sender.leave(100));
  EXPECT_EQ(1u, sender.rig().nic.sent.produced);
  for (int i = 0; i < 4; i++) EXPECT_EQ(16, sender.poll());
  EXPECT_EQ(0, sender.poll()) << "the queue is full";
  sender.leave(100);
  EXPECT_EQ(16, sender.poll());
  EXPECT_EQ(4, sender.poll()) << "the tail";
  sender.leave(100);
  EXPECT_EQ(100u, sender.left());
  EXPECT_EQ("", sender.wrong());
}

TEST(DpaSend, AnErrorEndsIt) {
  Sender sender(true, 6);
  sender.open({1, 2, 3, 4, 0, 5, 100, 64, 10, 0, 100});
  sender.credit(100);
  sender.rig().nic.send_fail = 3;
  sender.poll();
  sender.leave(100);
  EXPECT_EQ(DPA_FAILED, sender.poll());
  EXPECT_EQ(DPA_FAILED, sender.poll());
  EXPECT_NE(0u, sender.rig().sender.syndrome);
}

}  // namespace
}  // namespace mcast::dpa
