// all_to_all, gather and scatter over the streams between ranks.
//   1. A rank sends the first 16 to 48 KiB of each block at once, within an allowance at each other
//      rank, which operations return when they are complete everywhere. Each piece gives the length
//      of its block: if the receiver expects another length, the error names both.
//   2. The receiver grants the rest of longer blocks, a window per sender, at most `incast` bytes
//      over all exchanges in flight, the oldest first.
//   3. An exchange is complete at a rank when its own blocks have been sent and the others' are
//      here.
// Cost: every block crosses the network once. One step if blocks are short.
#include "collective/movements/exchanges.h"

#include <cstring>

#include "base/coverage.h"
#include "collective/error_text.h"
#include "protocol/early_frames.h"

namespace mcast {
namespace {

constexpr size_t kPeerQueueLimit = 256u << 10;  // bytes waiting for one rank's connection
constexpr int kPiecesPerTurn = 8;               // then the receive side is polled
constexpr Sequence kGrantsAhead = 64;           // operations for which a rank has sent grants early

size_t cost_of(const BlockExchange::Piece& piece) {
  return early_cost(wire::kExchangeHead + piece.bytes);
}

// Reductions leave half of it, and one piece beyond the account takes a quarter (exchange_run.cpp).
static_assert(kGrantsAhead * early_cost(wire::kExchangeGrantSize) <=
                  EarlyFrames::kMostReductions / 4,
              "a correct member could overflow the store");

}  // namespace

void Exchanges::start(Operation& op, Nanos) {
  op.exchange = std::make_unique<ExchangeRun>(op.plan.descriptor, *op.post.exchange, g_.self,
                                              g_.params.agreed.incast);
}

bool Exchanges::pump(Operation& op, Nanos now, bool) {
  if (op.local_complete) return false;
  grant_pieces(op);
  const bool more = send_pieces(op, now);
  g_.may_be_complete(op);
  return more;
}

void Exchanges::grant_pieces(Operation& op) {
  BlockExchange& machine = op.exchange->machine;
  // A rank that is behind must store early grants.
  if (machine.all_granted() || op.post.sequence - g_.ops.base() >= kGrantsAhead) return;
  uint64_t outstanding = 0;
  for (const Sequence s : g_.ops.busy()) {
    const Operation* const o = g_.ops.find(s);
    if (!o->exchange) continue;
    outstanding += o->exchange->machine.outstanding();
    if (o == &op) break;
    // A rank may wait for the older operation before it posts this one: leave the window to the
    // older one.
    if (!o->exchange->machine.all_granted()) return;
  }
  const uint64_t most = ingress_.window(op.exchange->most_outstanding());
  const uint64_t of_others = outstanding - machine.outstanding();
  while (of_others + machine.outstanding() < most) {
    const auto grant = machine.grant(most - of_others - machine.outstanding());
    if (!grant) return;
    wire::Writer body;
    wire::put_exchange_grant(body, {machine.expected(grant->to), grant->end});
    g_.send_frame(grant->to, Channel::kReduce, wire::FrameType::kExchangeGrant, op.post.sequence,
                  op.plan.hash, body.bytes());
  }
}

bool Exchanges::send_pieces(Operation& op, Nanos now) {
  ExchangeRun& run = *op.exchange;
  const bool oldest = op.post.sequence == g_.ops.base();
  const auto can = [&](const BlockExchange::Piece& piece) {
    if (!run.readable(piece)) return false;
    if (g_.port.queued(piece.to, Channel::kReduce) >= kPeerQueueLimit) {
      MCAST_COVER(exchange_queue_full);
      return false;
    }
    return !piece.unasked || unasked_.room(piece.to, op.post.sequence, cost_of(piece), oldest);
  };
  for (int i = 0;; i++) {
    const auto piece = run.machine.next(can);
    if (!piece) return false;
    if (i == kPiecesPerTurn) return true;
    wire::Writer head;
    wire::put_exchange_head(head, run.machine.length_to(piece->to), piece->offset);
    g_.send_frame(piece->to, Channel::kReduce, wire::FrameType::kExchangeData, op.post.sequence,
                  op.plan.hash, head.bytes(), run.source(*piece));
    g_.counters.add(Counter::exchange_bytes_sent, piece->bytes);
    run.machine.sent(*piece);
    if (op.first_byte == kNever) op.first_byte = now;
    op.last_byte = now;
    if (piece->offset > 0) continue;
    // A piece that has been granted meanwhile no longer waits for room in the account.
    const size_t cost = piece->unasked ? cost_of(*piece) : 0;
    if (!piece->unasked) MCAST_COVER(exchange_granted_meanwhile);
    unasked_.charge(piece->to, op.post.sequence, cost);
    run.unasked[piece->to] += cost;
  }
}

void Exchanges::give_back(const Operation& op) {
  for (uint32_t m = 0; m < g_.size; m++) {
    unasked_.give_back(static_cast<Member>(m), op.exchange->unasked[m]);
  }
}

void Exchanges::on_frame(Operation& op, const Frame& header, ConstBytes body, Nanos now) {
  if (!op.exchange)
    return g_.broke(header, "an exchange frame for an operation that is not an exchange");
  if (op.local_complete) {
    g_.counters.add(Counter::stale);
    return;
  }
  g_.ops.touch(op);
  if (header.type == wire::FrameType::kExchangeGrant) return on_grant(op, header, body);
  op.last_byte = now;
  op.first_byte = std::min(op.first_byte, now);
  on_data(op, header, body);
}

void Exchanges::on_grant(Operation& op, const Frame& header, ConstBytes body) {
  BlockExchange& machine = op.exchange->machine;
  wire::ExchangeGrant grant;
  const Verdict verdict = wire::parse_exchange_grant(body, grant)
                              ? machine.on_grant(header.member, grant.total, grant.end)
                              : Verdict::kBroken;
  if (verdict == Verdict::kBroken) return g_.broke(header, "a grant beyond the block");
  if (verdict == Verdict::kTaken) return;
  differ(op, g_.self, machine.length_to(header.member), header.member, grant.total);
}

// Ranks `from` and `to` have made the same call with blocks of different lengths.
void Exchanges::differ(const Operation& op, Member from, uint64_t sent, Member to,
                       uint64_t expected) {
  g_.counters.add(Counter::mismatched);
  g_.fail(lengths_differ(op.post.sequence, op.plan.descriptor, from, sent, to, expected),
          from == g_.self ? to : from);
}

void Exchanges::on_data(Operation& op, const Frame& header, ConstBytes body) {
  ExchangeRun& run = *op.exchange;
  wire::ExchangeData data;
  const Verdict verdict =
      wire::parse_exchange_data(body, data)
          ? run.machine.accept(header.member, data.total, data.offset, data.payload.size())
          : Verdict::kBroken;
  if (verdict == Verdict::kBroken) return g_.broke(header, "a piece that was not asked for");
  if (verdict == Verdict::kOtherLength) {
    return differ(op, header.member, data.total, g_.self, run.machine.expected(header.member));
  }
  if (!data.payload.empty()) {
    std::memcpy(run.destination(header.member) + data.offset, data.payload.data(),
                data.payload.size());
  }
  g_.counters.add(Counter::exchange_bytes_received, data.payload.size());
  g_.may_be_complete(op);
}

}  // namespace mcast
