// Inputs are random elements of moderate size, so that a fold in another order gives other bits.
// The expected result is folded here, one contribution after the other, as the order is defined.
#include "aggregation/station_world.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "aggregation/big_allocations.h"
#include "base/reduce_kernels.h"
#include "protocol/deal.h"
#include "support/reach.h"

namespace mcast::test {
namespace {

using aggregation::ListEntry;

aggregation::JobParams params_of(const StationOptions& o) {
  aggregation::JobParams p;
  p.id = 9;
  p.tag = 0x1234567;
  p.self = static_cast<Member>(o.ranks + 1);
  p.hosts = o.host_of.empty() ? Hosts(o.ranks) : Hosts(o.host_of);
  p.fold = o.fold;
  p.segment = o.segment;
  p.incast = o.incast;
  p.deadline = o.deadline;
  return p;
}

std::vector<std::byte> some_elements(Element e, size_t bytes, Rng& rng) {
  std::vector<std::byte> out(bytes);
  for (size_t at = 0; at < bytes; at += element_size(e)) {
    const double value = (rng.unit() - 0.5) * 8;
    const auto narrow = static_cast<float>(value);
    uint64_t bits = rng.next();
    if (e == Element::kFloat64) std::memcpy(&bits, &value, 8);
    if (e == Element::kFloat32) std::memcpy(&bits, &narrow, 4);
    if (e == Element::kBFloat16) bits = std::bit_cast<uint32_t>(narrow) >> 16;
    if (e == Element::kFloat16) bits = (bits & 0x83ff) | 0x3c00;
    if (e == Element::kBool) bits &= 1;
    std::memcpy(out.data() + at, &bits, element_size(e));
  }
  return out;
}

// The list of an operation of the world. The world outlives it.
class List final : public aggregation::WorkList {
 public:
  List(const std::vector<ListEntry>& entries, size_t bytes) : entries_(entries), bytes_(bytes) {}
  size_t memory() const override { return bytes_; }
  uint32_t size() const override { return static_cast<uint32_t>(entries_.size()); }
  ListEntry at(uint32_t number) const override { return entries_[number]; }

 private:
  const std::vector<ListEntry>& entries_;
  const size_t bytes_;
};

bool any(const std::vector<uint64_t>& mask) {
  return std::any_of(mask.begin(), mask.end(), [](uint64_t word) { return word != 0; });
}

double host_factor(uint32_t host) { return 1.0 + host / 4.0; }

}  // namespace

StationWorld::StationWorld(const StationOptions& options)
    : options_(options),
      params_(params_of(options)),
      queues_(options.ranks),
      station_(params_, *this, *this, counters_, now_) {
  calls_.reserve(1000);  // pointers to the operations' lists must stay valid
}

StationWorld::~StationWorld() { add_reach(counters_); }

Sequence StationWorld::call(wire::Kind kind, Element element, Reduction reduction, uint64_t bytes,
                            uint64_t seed) {
  Call& c = calls_.emplace_back();
  c.descriptor.kind = kind;
  c.descriptor.element = static_cast<uint8_t>(element);
  c.descriptor.reduction = static_cast<uint8_t>(reduction);
  c.descriptor.bytes = bytes;
  c.descriptor.name = std::to_string(calls_.size() - 1);
  const size_t size = element_size(element), ranks = options_.ranks;
  c.share = kind == wire::Kind::kReduceScatter ? bytes : (bytes / size + ranks - 1) / ranks * size;
  const uint64_t total = kind == wire::Kind::kReduceScatter ? bytes * ranks : bytes;
  c.segment = options_.segment / (wide(c) ? accumulator_ratio(element) : 1);
  Rng rng(seed);
  for (uint32_t h = 0; h < params_.hosts.count(); h++) {
    c.inputs.push_back(some_elements(element, total, rng));
  }
  options_.dealt ? deal_all(c, total) : deal_in_turn(c, total);
  return static_cast<Sequence>(calls_.size() - 1);
}

// Gives the other segments to a second station and to the owners.
void StationWorld::deal_all(Call& c, uint64_t total) const {
  DealShape shape;
  shape.tag = params_.tag;
  shape.stations = {{1, 65536 / 3 * options_.share}, {2, 65536 / 6 * (3 - options_.share)}};
  for (uint32_t m = 0; m < options_.ranks; m++) {
    const uint64_t at = std::min(m * c.share, total);
    const uint64_t length = std::min(c.share, total - at);
    shape.segments.push_back(static_cast<uint32_t>((length + c.segment - 1) / c.segment));
  }
  const Deal deal(shape);
  for (uint32_t number = 0; number < deal.length(0); number++) {
    const Deal::Entry entry = deal.entry(0, number);
    const uint64_t end = std::min((entry.owner + 1) * c.share, total);
    const uint64_t at = entry.owner * c.share + uint64_t{entry.segment} * c.segment;
    const auto length = static_cast<uint32_t>(std::min<uint64_t>(c.segment, end - at));
    c.list.push_back({entry.segment, entry.owner, length, options_.keep && kept(c, entry.owner)});
  }
}

void StationWorld::deal_in_turn(Call& c, uint64_t total) const {
  const auto rows = static_cast<uint32_t>((c.share + c.segment - 1) / c.segment);
  for (uint32_t i = 0; i < rows; i++) {
    for (uint32_t place = 0; place < options_.ranks; place++) {
      const auto m = static_cast<Member>((i + place) % options_.ranks);
      const uint64_t end = std::min((m + 1) * c.share, total);
      const uint64_t at = m * c.share + uint64_t{i} * c.segment;
      if (at >= end || (i + m) % 3 >= options_.share) continue;
      const auto length = static_cast<uint32_t>(std::min<uint64_t>(c.segment, end - at));
      c.list.push_back({i, m, length, kept(c, m)});
    }
  }
}

bool StationWorld::wide(const Call& call) const {
  return !params_.hosts.flat() &&
         contributes_wide(static_cast<Element>(call.descriptor.element),
                          static_cast<Reduction>(call.descriptor.reduction));
}

bool StationWorld::kept(const Call& call, Member owner) const {
  const auto element = static_cast<Element>(call.descriptor.element);
  const Hosts& hosts = params_.hosts;
  if (!is_floating(element)) return true;
  if (options_.fold == FoldOrder::kTurn) return options_.keep;
  return options_.keep && hosts.host_of(owner) + 1 == hosts.count();
}

bool StationWorld::speaks(Member rank, const ListEntry& entry) const {
  const Hosts& hosts = params_.hosts;
  const uint32_t host = hosts.host_of(rank);
  return hosts.leader(host, entry.owner) == rank &&
         !(entry.own_kept && host == hosts.host_of(entry.owner));
}

wire::FrameHeader StationWorld::header(Member rank, wire::FrameType type, Sequence op) const {
  return {type, 1, rank, params_.tag, op, calls_[op].descriptor.hash()};
}

void StationWorld::open(Member rank, Sequence op) {
  wire::Writer body;
  wire::put_agg_open(body, {kRoster, calls_[op].descriptor});
  calls_[op].opened.insert(rank);
  send(rank, header(rank, wire::FrameType::kAggOpen, op), body.bytes());
}

void StationWorld::open_all(Sequence op) {
  for (uint32_t r = 0; r < options_.ranks; r++) open(static_cast<Member>(r), op);
  take_all();
}

wire::Writer StationWorld::contribution(Member rank, Sequence op, uint32_t number) const {
  const Call& c = calls_[op];
  const ListEntry& e = c.list[number];
  const uint32_t host = params_.hosts.host_of(rank);
  wire::Writer body;
  wire::put_reduce_head(body, number, host_factor(host));
  const std::byte* const from =
      c.inputs[host].data() + e.owner * c.share + size_t{e.segment} * c.segment;
  const auto element = static_cast<Element>(c.descriptor.element);
  std::vector<std::byte> payload(from, from + e.bytes);
  if (wide(c)) {
    const size_t count = e.bytes / element_size(element);
    payload.resize(count * accumulator_size(element));
    fold_first(element, Reduction::kSum, 1, from, payload.data(), count);
  }
  for (const std::byte b : payload) body.put<uint8_t>(static_cast<uint8_t>(b));
  return body;
}

void StationWorld::contribute(Member rank, Sequence op, uint32_t number, size_t length) {
  const wire::Writer body = contribution(rank, op, number);
  send(rank, header(rank, wire::FrameType::kReduceData, op),
       body.bytes().first(length == 0 ? body.size() : wire::kReduceHead + length));
}

bool StationWorld::contribute_next(Member rank) {
  for (Sequence op = 0; op < calls_.size(); op++) {
    Call& c = calls_[op];
    uint32_t& at = c.sent[rank];
    while (at < c.granted[rank] && !speaks(rank, c.list[at])) at++;
    if (at >= c.granted[rank] || c.declined.count(rank) != 0) continue;
    contribute(rank, op, at++);
    return true;
  }
  return false;
}

void StationWorld::repeat(Member rank, Sequence op, Rng& rng) {
  Call& c = calls_[op];
  const uint32_t sent = c.sent[rank];
  if (sent == 0) return;
  const auto number = static_cast<uint32_t>(rng.below(sent));
  if (speaks(rank, c.list[number])) contribute(rank, op, number);
}

void StationWorld::contribute_all() {
  for (bool more = true; more;) {
    more = false;
    for (uint32_t r = 0; r < options_.ranks; r++) more |= contribute_next(static_cast<Member>(r));
    take_all();
    turn();
  }
}

void StationWorld::send(Member rank, wire::FrameHeader header, ConstBytes body) {
  std::vector<std::byte> frame(wire::kFrameHeader + body.size());
  const ConstBytes parts[] = {body};
  wire::write_frame_header(frame.data(), header, parts);
  std::copy(body.begin(), body.end(), frame.begin() + wire::kFrameHeader);
  send_raw(rank, frame);
}

void StationWorld::send_raw(Member rank, ConstBytes frame) {
  const size_t before = big_allocations();
  {
    const WatchAllocations watch(true);
    station_.on_frame(rank, frame, now_);
  }
  if (big_allocations() != before) complain("a frame made the station allocate");
  check_memory();
}

void StationWorld::turn(Nanos step) {
  now_ += step;
  station_.advance(now_);
  check_memory();
}

void StationWorld::check_memory() {
  if (station_.job() == nullptr) return;
  size_t all = station_.job()->memory();
  for (uint32_t r = 0; r < options_.ranks; r++)
    all += queued(static_cast<Member>(r), Channel::kReduce);
  if (all > memory_bound(params_)) complain("more memory than the bound");
}

// ---- interfaces that the station calls ----

void StationWorld::send(Member to, Channel channel, std::span<const ConstBytes> parts) {
  const WatchAllocations mine(false);
  Queued q{channel, {}};
  for (const ConstBytes part : parts) q.frame.insert(q.frame.end(), part.begin(), part.end());
  if (q.frame.size() > kMaxBulkFrame) complain("a frame that no channel takes");
  queues_[to].push_back(std::move(q));
}

size_t StationWorld::queued(Member to, Channel channel) const {
  size_t bytes = 0;
  for (const Queued& q : queues_[to]) bytes += q.channel == channel ? q.frame.size() : 0;
  return bytes;
}

Result<std::unique_ptr<const aggregation::WorkList>> StationWorld::plan(
    uint32_t roster, const wire::Descriptor& descriptor, size_t room) const {
  if (roster != kRoster) return Status(Code::kUnavailable, "no such roster");
  const Call& c = calls_[std::stoul(descriptor.name)];
  if (c.refused || options_.list_bytes > room)
    return Status(Code::kResourceExhausted, "no list for it");
  return std::unique_ptr<const aggregation::WorkList>(
      std::make_unique<List>(c.list, options_.list_bytes));
}

// ---- ranks ----

void StationWorld::take(Member rank, size_t most) {
  for (; most > 0 && !queues_[rank].empty(); most--) {
    const Queued q = std::move(queues_[rank].front());
    queues_[rank].pop_front();
    on_frame(rank, q.channel, q.frame);
  }
}

void StationWorld::take_grants(Member rank) {
  std::deque<Queued> queue = std::move(queues_[rank]);
  queues_[rank].clear();
  for (Queued& q : queue) {
    wire::FrameHeader h;
    if (wire::parse_frame(q.frame, h) && h.type == wire::FrameType::kReduceGrant) {
      on_frame(rank, q.channel, q.frame);
    } else {
      queues_[rank].push_back(std::move(q));
    }
  }
}

void StationWorld::take_all() {
  for (uint32_t r = 0; r < options_.ranks; r++) take(static_cast<Member>(r));
}

void StationWorld::on_frame(Member at, Channel channel, const std::vector<std::byte>& frame) {
  wire::FrameHeader h;
  if (!wire::parse_frame(frame, h) || !wire::verify_frame(frame) || h.member != params_.self ||
      h.group_tag != params_.tag || h.lane != 1) {
    return complain("a frame that is not the station's");
  }
  const ConstBytes body = ConstBytes(frame).subspan(wire::kFrameHeader);
  if (h.type == wire::FrameType::kReduceGrant) {
    uint32_t& end = calls_[h.sequence].granted[at];
    const auto now = body.size() == 4 ? wire::load<uint32_t>(body.data()) : 0;
    if (now <= end || now > entries(h.sequence)) complain("a grant that is none");
    end = now;
  } else if (h.type == wire::FrameType::kAggResult) {
    on_result(at, h.sequence, body);
    if (channel != Channel::kReduce) complain("a result on another channel");
  } else if (h.type == wire::FrameType::kAggDecline) {
    if (!calls_[h.sequence].declined.insert(at).second) complain("declined twice");
  } else {
    wire::AggWait wait;
    const bool stale = h.type == wire::FrameType::kAggStale;
    if (stale && (!wire::parse_agg_wait(body, wait) || !any(wait.missing))) {
      complain("nobody is waited for");
    }
    others_.push_back({at, h, {body.begin(), body.end()}});
  }
}

void StationWorld::on_result(Member at, Sequence op, ConstBytes body) {
  Call& c = calls_[op];
  wire::AggResult r;
  if (!wire::parse_agg_result(body, r) || r.number >= c.list.size()) {
    return complain("a result that does not parse");
  }
  const ListEntry& e = c.list[r.number];
  if (e.owner != at) complain("a result for another owner");
  if (c.opened.count(at) == 0) complain("a result before its owner has opened");
  if (!c.results.insert(r.number).second) complain("a result twice");
  if ((r.form == wire::ResultForm::kPartial) != e.own_kept) complain("the form of a result");
  if (r.contributors != params_.hosts.count() - (e.own_kept ? 1 : 0)) complain("the contributors");
  const std::vector<std::byte> want = expected(c, e);
  if (!std::equal(want.begin(), want.end(), r.payload.begin(), r.payload.end())) {
    complain("the bits of result " + std::to_string(r.number) + " of operation " +
             std::to_string(op));
  }
}

std::vector<std::byte> StationWorld::expected(const Call& c, const ListEntry& e) const {
  const auto element = static_cast<Element>(c.descriptor.element);
  auto reduction = static_cast<Reduction>(c.descriptor.reduction);
  const uint32_t hosts = params_.hosts.count(), own = params_.hosts.host_of(e.owner);
  if (!params_.hosts.flat() && reduction == Reduction::kPremulSum) reduction = Reduction::kSum;
  std::vector<uint32_t> order;
  for (uint32_t h = 0; h < hosts; h++) {
    order.push_back(options_.fold == FoldOrder::kTurn ? (own + 1 + h) % hosts : h);
  }
  if (e.own_kept) std::erase(order, own);
  const size_t count = e.bytes / element_size(element);
  std::vector<std::byte> sum(count * accumulator_size(element)), out(e.bytes);
  bool first = true;
  for (const uint32_t h : order) {
    const std::byte* const from =
        c.inputs[h].data() + e.owner * c.share + size_t{e.segment} * c.segment;
    (first ? fold_first : fold_next)(element, reduction, host_factor(h), from, sum.data(), count);
    first = false;
  }
  if (e.own_kept) return sum;
  fold_finish(element, reduction, options_.ranks, sum.data(), out.data(), count);
  return out;
}

uint32_t StationWorld::granted(Member rank, Sequence op) const {
  const auto it = calls_[op].granted.find(rank);
  return it == calls_[op].granted.end() ? 0 : it->second;
}

bool StationWorld::all_done() const {
  return std::all_of(calls_.begin(), calls_.end(), [this](const Call& c) {
    if (c.opened.size() < options_.ranks) return false;
    return c.refused ? c.declined.size() == options_.ranks : c.results.size() == c.list.size();
  });
}

}  // namespace mcast::test
