// The run records the chunks that the NIC has put into the completion queue while their slice was
// open. Exactly these must have bits in the end (fewer, if the slice was closed), the count must
// equal the number of bits, and each byte of the destination is the chunk's if the bit is set, and
// untouched otherwise. Words of a bitmap are read with their horizon at random times, also in the
// middle of calls: their chunks must be in place as soon as that many writes have landed. When
// nothing arrives any more, all slots must be posted again.
#include "dpa/schedule.h"

#include <algorithm>
#include <bit>
#include <deque>
#include <memory>
#include <set>
#include <vector>

#include "base/rng.h"
#include "dpa/observed.h"

namespace mcast::dpa {
namespace {

constexpr uint8_t kUntouched = 0xdd;

struct Open {
  rig_stream stream{};
  uint32_t slot = 0;
  std::set<uint32_t> arrived;  // indices within the slice
  bool closed = false, retired = false;
};

struct Datagram {
  rig_stream stream{};
  uint32_t chunk = 0;
  uint32_t extra = 0;  // excess bytes
};

// A word of a bitmap as the control plane has read it.
struct Taken {
  size_t open = 0;
  uint32_t word = 0;
  uint64_t bits = 0;
  uint32_t horizon = 0;
};

uint8_t byte_of(const rig_stream& stream, uint32_t chunk, uint32_t at) {
  return static_cast<uint8_t>(mix64(stream.sequence * 77 + stream.member + stream.task * 13 +
                                    (uint64_t{chunk} << 20) + at / 8) >>
                              at % 8 * 8);
}

class Run {
 public:
  Run(uint64_t seed, const Schedule& schedule) : rng_(seed), schedule_(schedule) {
    rig_init(rig_.get(), schedule.flavour, 5 + static_cast<uint32_t>(rng_.below(4)),
             schedule.kernel);
    rig_->nic.noise = seed;
    if (schedule.failing) {
      if (schedule.flavour != RIG_PLACED && rng_.chance(0.5)) {
        rig_->nic.fail_write = 1 + static_cast<uint32_t>(rng_.below(100));
      } else {
        fail_receive_at_ = rng_.below(300);
      }
    }
  }

  std::string run() {
    const Observing observing(&rig_->nic, [this] {
      if (rng_.chance(0.1)) take_word();
    });
    const size_t streams = schedule_.flavour == RIG_HEADER ? 1 + rng_.below(5) : 1;
    for (size_t i = 0; i < streams; i++) open(static_cast<uint32_t>(i));
    for (uint32_t step = 0; step < 1500 && wrong_.empty() && !failed_; step++) act();
    settle();
    for (const Open& o : opens_) check_slice(o);
    if (schedule_.failing && wrong_.empty() && !failed_ && failure_came()) {
      wrong_ = "an error was taken for success";
    }
    return wrong_;
  }

 private:
  void open(uint32_t member) {
    Open o;
    rig_stream& s = o.stream;
    s.tag = 0x1234567890abcdef;
    s.sequence = generation_ * 2;  // so that slots of the table do not overlap
    s.descriptor = 0x5eed0000 + generation_;
    s.member = static_cast<uint16_t>(member);
    s.task = static_cast<uint8_t>(generation_);
    s.chunk_bytes = 4 + 4 * static_cast<uint32_t>(rng_.below(RIG_CHUNK / 4));
    const uint32_t most = std::min<uint32_t>(RIG_BYTES / s.chunk_bytes, RIG_WORDS * 64);
    s.chunks = 1 + static_cast<uint32_t>(rng_.below(std::min<uint32_t>(most, 400)));
    s.tail_bytes = 1 + static_cast<uint32_t>(rng_.below(s.chunk_bytes));
    s.first = rng_.chance(0.5) ? 0 : static_cast<uint32_t>(rng_.below(s.chunks));
    s.count = rng_.chance(0.7) ? s.chunks - s.first
                               : 1 + static_cast<uint32_t>(rng_.below(s.chunks - s.first));
    o.slot = rig_slot(rig_.get(), &s);
    rig_open(rig_.get(), o.slot, &s);
    opens_.push_back(std::move(o));
    send(opens_.back().stream);
  }

  // The datagrams of a stream in flight: a few lost, a few duplicated, slightly out of order.
  void send(const rig_stream& stream) {
    std::vector<std::pair<uint64_t, Datagram>> sent;
    for (uint32_t chunk = 0; chunk < stream.chunks; chunk++) {
      for (uint64_t copies = rng_.below(16) == 0 ? rng_.below(4) : 1; copies > 0; copies--) {
        sent.push_back({chunk + rng_.below(20), {stream, chunk, 0}});
      }
      if (rng_.chance(0.05)) sent.push_back({chunk + rng_.below(20), strange(stream)});
    }
    std::stable_sort(sent.begin(), sent.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    for (const auto& [order, datagram] : sent) coming_.push_back(datagram);
    if (rng_.chance(0.5)) {  // streams of several roots, mixed
      for (size_t i = coming_.size(); i > 1; i--) {
        const size_t j = i - 1 - rng_.below(std::min<size_t>(i, 8));
        std::swap(coming_[i - 1], coming_[j]);
      }
    }
  }

  Datagram strange(rig_stream stream) {
    uint32_t chunk = static_cast<uint32_t>(rng_.below(stream.chunks));
    const uint64_t kind = rng_.below(schedule_.flavour == RIG_HEADER ? 8 : 3);
    if (kind == 0 && stream.chunk_bytes < RIG_CHUNK) return {stream, chunk, 1};
    if (kind == 1) chunk = stream.chunks + 1 + static_cast<uint32_t>(rng_.below(1000));
    if (kind == 2) stream.task |= 0x80;  // there are fewer generations: an unused task
    if (schedule_.flavour == RIG_HEADER) {
      if (kind == 2 || kind == 3) stream.tag ^= uint64_t{1} << rng_.below(64);
      if (kind == 4) stream.descriptor ^= 1u << rng_.below(32);
      if (kind == 5) stream.sequence ^= 1u << (4 + rng_.below(28));  // lands in its slice's slot
      if (kind == 6) stream.lane ^= 1;
      if (kind == 7) stream.member = static_cast<uint16_t>(stream.member + 8);
    }
    return {stream, chunk, 0};
  }

  void act() {
    const uint64_t what = rng_.below(20);
    if (what < 10) {
      for (uint64_t i = rng_.below(24); i > 0; i--) arrive();
    } else if (what < 15) {
      poll();
    } else if (what < 18) {
      nic_write(&rig_->nic, static_cast<uint32_t>(rng_.below(40)));
    } else if (what == 18) {
      take_word();
    } else if (schedule_.closing && rng_.chance(0.15)) {
      close_one();
    }
    look();
  }

  void arrive() {
    if (coming_.empty()) return;
    const Datagram d = coming_.front();
    coming_.pop_front();
    if (fail_receive_at_ != UINT64_MAX && fail_receive_at_-- == 0) {
      rig_->nic.fail_receives = 1;
      fail_receive_at_ = UINT64_MAX;
    }
    const bool fails = rig_->nic.fail_receives != 0;
    rig_stream stream = d.stream;
    stream.tail_bytes += d.extra;
    stream.chunk_bytes += d.extra;
    uint8_t payload[RIG_CHUNK + 1];
    const uint32_t bytes = rig_bytes(&stream, d.chunk);
    for (uint32_t i = 0; i < bytes; i++) payload[i] = byte_of(d.stream, d.chunk, i);
    const bool taken = rig_arrive(rig_.get(), &stream, d.chunk, payload) != 0;
    receive_fails_ |= taken && fails;  // only if a receive was posted
    if (!taken || fails || d.extra != 0) return;
    for (Open& o : opens_) {
      if (!same(o.stream, d.stream) || o.retired) continue;
      const uint32_t index = d.chunk - o.stream.first;
      if (index < o.stream.count) o.arrived.insert(index);
    }
  }

  bool same(const rig_stream& a, const rig_stream& b) const {
    if (schedule_.flavour != RIG_HEADER) return a.task == b.task;
    return a.tag == b.tag && a.sequence == b.sequence && a.descriptor == b.descriptor &&
           a.member == b.member && a.lane == b.lane;
  }

  void poll() {
    const int taken = rig_->kernel(&rig_->worker);
    if (taken == DPA_FAILED) {
      failed_ = true;
      if (rig_->kernel(&rig_->worker) != DPA_FAILED) wrong_ = "works again after it has failed";
      if (!failure_came()) wrong_ = "failed without an error";
    } else if (taken < 0 || taken > DPA_BATCH) {
      wrong_ = "took " + std::to_string(taken);
    }
  }

  bool failure_came() const { return rig_->nic.failed || receive_fails_; }

  void close_one() {
    const size_t i = rng_.below(opens_.size());
    Open& o = opens_[i];
    if (o.closed) return;
    o.closed = true;
    rig_close(rig_.get(), o.slot);
  }

  void take_word() {
    Taken t;
    t.open = rng_.below(opens_.size());
    const Open& o = opens_[t.open];
    if (o.closed || schedule_.flavour == RIG_PLACED) return;
    t.word = static_cast<uint32_t>(rng_.below((o.stream.count + 63) / 64));
    t.bits = rig_->bitmaps[o.slot][t.word];
    t.horizon = rig_->worker.progress.horizon;
    taken_.push_back(t);
  }

  // The control plane's checks after each step.
  void look() {
    if (rig_->nic.broken != nullptr && wrong_.empty()) wrong_ = rig_->nic.broken;
    const dpa_progress& p = rig_->worker.progress;
    std::erase_if(taken_, [&](const Taken& t) {
      const bool landed = static_cast<int32_t>(p.landed - t.horizon) >= 0 || p.landed == p.horizon;
      if (!landed || opens_[t.open].retired) return opens_[t.open].retired;
      for (uint64_t bits = t.bits; bits != 0; bits &= bits - 1) {
        check_chunk(opens_[t.open], t.word * 64 + static_cast<uint32_t>(std::countr_zero(bits)));
      }
      return true;
    });
    for (size_t i = 0; i < opens_.size(); i++) {
      Open& o = opens_[i];
      if (!o.closed || o.retired || !rig_retired(rig_.get(), o.slot)) continue;
      check_slice(o);
      o.retired = true;
      if (!failed_ && generation_ < 8) {
        generation_++;
        open(o.stream.member);
      }
    }
  }

  // No datagrams arrive; pending work completes.
  void settle() {
    for (uint32_t i = 0; i < 400 && wrong_.empty() && !failed_; i++) {
      poll();
      nic_write(&rig_->nic, 64);
      look();
    }
    if (!wrong_.empty() || failed_) return;
    const nic& n = rig_->nic;
    if (n.rq_posted - n.rq_consumed != 1u << n.received.log) {
      wrong_ = "slots never come back: " + std::to_string(n.rq_posted - n.rq_consumed) + " of " +
               std::to_string(1u << n.received.log);
    } else if (rig_->worker.progress.landed != rig_->worker.progress.horizon) {
      wrong_ = "writes are never known to be done";
    }
    for (const Open& o : opens_) {
      if (o.closed && !o.retired && wrong_.empty()) wrong_ = "a slice never retires";
    }
  }

  void check_chunk(const Open& o, uint32_t index) {
    if (schedule_.flavour == RIG_PLACED) return;
    const uint32_t chunk = o.stream.first + index, bytes = rig_bytes(&o.stream, chunk);
    const uint8_t* const at = rig_destination(rig_.get(), o.slot) + index * o.stream.chunk_bytes;
    for (uint32_t i = 0; i < bytes && wrong_.empty(); i++) {
      if (at[i] != byte_of(o.stream, chunk, i)) {
        wrong_ = "chunk " + std::to_string(chunk) + " has other bytes";
      }
    }
  }

  void check_slice(const Open& o) {
    if (o.retired || !wrong_.empty()) return;
    const uint64_t* const bitmap = rig_->bitmaps[o.slot];
    uint32_t bits = 0;
    for (uint32_t i = 0; i < RIG_WORDS * 64; i++) {
      if ((bitmap[i / 64] >> i % 64 & 1) == 0) continue;
      bits++;
      if (o.arrived.count(i) == 0) {
        wrong_ = "a bit for chunk " + std::to_string(i) + ", which has not come";
        return;
      }
      // After a failure, bits do not imply that their writes have landed.
      if (!failed_) check_chunk(o, i);
    }
    const uint32_t present = rig_->slices[o.slot].counts.present;
    if (wrong_.empty() && present != bits) {
      wrong_ =
          "counts " + std::to_string(present) + " chunks with " + std::to_string(bits) + " bits";
    }
    if (wrong_.empty() && !o.closed && !failed_ && bits != o.arrived.size()) {
      wrong_ = std::to_string(o.arrived.size() - bits) + " chunks have come and have no bit";
    }
    check_untouched(o);
  }

  void check_untouched(const Open& o) {
    const uint8_t* const all = rig_->destinations[o.slot];
    for (uint32_t i = 0; i < RIG_GUARD + RIG_BYTES + RIG_GUARD && wrong_.empty(); i++) {
      const uint32_t index = i < RIG_GUARD ? UINT32_MAX : (i - RIG_GUARD) / o.stream.chunk_bytes;
      const bool has_bit =
          index < o.stream.count && (rig_->bitmaps[o.slot][index / 64] >> index % 64 & 1) != 0;
      const bool in_chunk = has_bit && (i - RIG_GUARD) % o.stream.chunk_bytes <
                                           rig_bytes(&o.stream, o.stream.first + index);
      if (!in_chunk && all[i] != kUntouched) {
        wrong_ = "byte " + std::to_string(i) + " of a destination was touched";
      }
    }
  }

  Rng rng_;
  const Schedule schedule_;
  std::unique_ptr<rig> rig_{std::make_unique<rig>()};
  std::vector<Open> opens_;
  std::deque<Datagram> coming_;
  std::vector<Taken> taken_;
  uint32_t generation_ = 1;
  uint64_t fail_receive_at_ = UINT64_MAX;
  bool receive_fails_ = false, failed_ = false;
  std::string wrong_;
};

}  // namespace

std::string run_schedule(uint64_t seed, const Schedule& schedule) {
  return Run(seed, schedule).run();
}

}  // namespace mcast::dpa
