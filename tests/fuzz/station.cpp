// A station that receives from hostile ranks. The input determines its group, the messages and
// their senders, and the passing of time; most frames are well-formed, so that they get past the
// parsers. The station must not break, memory stays within the admitted amount, results go to
// owners that have posted, at most one per segment, and no operation or job remains in the end.
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "aggregation/fold/station.h"
#include "fuzz.h"

using namespace mcast;
using namespace mcast::aggregation;
using fuzz::require;

namespace {

constexpr Nanos kStart = kSecond;
constexpr size_t kSegment = 256;
constexpr uint64_t kTag = 77;

class List final : public WorkList {
 public:
  List(uint64_t bytes, size_t element, uint32_t ranks, bool kept)
      : bytes_(bytes / element * element), ranks_(ranks), kept_(kept) {}
  uint32_t size() const override {
    return static_cast<uint32_t>((bytes_ + kSegment - 1) / kSegment);
  }
  ListEntry at(uint32_t number) const override {
    const auto length = std::min<uint64_t>(kSegment, bytes_ - uint64_t{number} * kSegment);
    return {number / ranks_, static_cast<Member>(number % ranks_), static_cast<uint32_t>(length),
            kept_};
  }

 private:
  uint64_t bytes_;
  uint32_t ranks_;
  bool kept_;
};

class Attack : public Outlet, public Planner {
 public:
  explicit Attack(ConstBytes input) : in_(input) {
    const uint8_t shape = in_.byte();
    ranks_ = 2 + (shape & 3u);
    params_.id = 1;
    params_.tag = kTag;
    params_.self = static_cast<Member>(ranks_);
    params_.hosts = Hosts(ranks_);
    if ((shape & 4u) != 0) {
      std::vector<uint32_t> host_of(ranks_, 1);
      host_of[0] = 0;
      params_.hosts = Hosts(host_of);
    }
    params_.fold = (shape & 8u) != 0 ? FoldOrder::kTurn : FoldOrder::kRank;
    params_.segment = kSegment;
    params_.incast = (shape & 16u) != 0 ? 1024 : 8192;
    params_.deadline = 16 * kMilli;
    kept_ = (shape & 32u) != 0;
    waiting_.resize(ranks_);
    station_ = std::make_unique<Station>(params_, *this, *this, counters_, now_);
  }

  void run() {
    const size_t memory = station_->job()->memory();
    while (!in_.empty()) {
      step();
      if (station_->job() == nullptr) break;
      require(station_->job()->memory() == memory, "nothing has grown");
      require(memory + queued_ <= memory_bound(params_), "within what was admitted");
      require(station_->job()->operations() <= Job::kAhead, "so many operations");
      require(station_->job()->blocks() <= station_lookahead(params_), "so many segments");
    }
    for (uint32_t r = 0; r < ranks_; r++) station_->on_stream_end(static_cast<Member>(r), now_);
    station_->advance(now_ + 2 * Station::kLease);
    require(station_->closed().has_value(), "it ends");
  }

 private:
  void step() {
    const uint8_t what = in_.byte();
    const auto rank = static_cast<Member>((what >> 4) % ranks_);
    switch (what & 7u) {
      case 0:
      case 1:
        return open(rank);
      case 2:
      case 3:
        return contribute(rank, (what & 8u) != 0);
      case 4:
        return (what & 8u) != 0 ? contribute(rank, true) : leave_out(rank);
      case 5:
        queued_ -= std::exchange(waiting_[rank], 0);
        return;
      case 6:
        now_ += Nanos{in_.byte()} * kMilli;
        return station_->advance(now_);
      default:
        return (what & 8u) != 0 ? noise(rank) : station_->on_stream_end(rank, now_);
    }
  }

  // Opens one of a few operations, on which ranks mostly agree.
  void open(Member rank) {
    const uint8_t which = in_.byte();
    wire::AggOpen open;
    open.roster = which == 255 ? 2 : 1;
    wire::Descriptor& d = open.descriptor;
    constexpr Element kElements[] = {Element::kFloat32, Element::kFloat16, Element::kInt8};
    d.kind = (which & 1u) != 0 ? wire::Kind::kAllreduce : wire::Kind::kReduceScatter;
    d.element = static_cast<uint8_t>(kElements[which % 3]);
    d.reduction = 1 + which / 3 % 9;
    d.bytes = which * 61u;
    const auto sequence = static_cast<Sequence>(opened_[rank] + (which > 250 ? 2 : 0));
    opened_[rank] = sequence + 1;
    posted_.insert({rank, sequence});
    descriptors_[sequence] = d;
    wire::Writer body;
    put_agg_open(body, open);
    send(rank, {wire::FrameType::kAggOpen, 1, rank, kTag, sequence, d.hash()}, body.bytes());
  }

  // Contributes to one of the latest operations; with `right`, the entry's length is used.
  void contribute(Member rank, bool right) {
    const uint8_t where = in_.byte();
    const uint32_t behind = where & 3u;
    const auto sequence =
        static_cast<Sequence>(opened_[rank] > behind ? opened_[rank] - 1 - behind : behind);
    const wire::Descriptor& d = descriptors_[sequence];
    uint32_t& number = sent_[{rank, sequence}];
    const uint32_t at = (where & 64u) != 0 ? in_.byte() : number++;
    const size_t element = std::max<size_t>(1, element_size(static_cast<Element>(d.element)));
    const uint64_t all = d.bytes / element * element, from = uint64_t{at} * kSegment;
    size_t length = from < all ? std::min<uint64_t>(kSegment, all - from) : 1;
    if (!right && (where & 128u) != 0) length = in_.byte() + 1u;
    wire::Writer body;
    wire::put_reduce_head(body, at, where);
    for (size_t i = 0; i < length; i++) body.put<uint8_t>(static_cast<uint8_t>(where + i));
    send(rank, {wire::FrameType::kReduceData, 1, rank, kTag, sequence, d.hash()}, body.bytes());
  }

  // Excludes some ranks from one of the latest operations.
  void leave_out(Member rank) {
    const uint8_t which = in_.byte();
    const uint32_t behind = which & 1u;
    const auto sequence =
        static_cast<Sequence>(opened_[rank] > behind ? opened_[rank] - 1 - behind : 0);
    wire::PartialResult partial{static_cast<uint16_t>(ranks_), {which >> 1u & 7u}};
    for (const Member m : partial.ranks()) partial.contributors -= m < ranks_ ? 1 : 0;
    wire::Writer body;
    wire::put_partial(body, partial);
    send(rank, {wire::FrameType::kPartial, 1, rank, kTag, sequence, descriptors_[sequence].hash()},
         body.bytes());
  }

  void noise(Member rank) {
    wire::FrameHeader h{static_cast<wire::FrameType>(1 + in_.byte() % wire::kFrameTypeMax),
                        static_cast<uint8_t>(in_.byte() & 1u),
                        rank,
                        kTag + (in_.byte() & 1u),
                        in_.byte(),
                        in_.byte()};
    wire::Writer body;
    for (unsigned i = in_.byte() % 40u; i > 0; i--) body.put<uint8_t>(in_.byte());
    send(rank, h, body.bytes());
  }

  void send(Member rank, const wire::FrameHeader& header, ConstBytes body) {
    std::vector<std::byte> frame(wire::kFrameHeader + body.size());
    const ConstBytes parts[] = {body};
    wire::write_frame_header(frame.data(), header, parts);
    std::copy(body.begin(), body.end(), frame.begin() + wire::kFrameHeader);
    fuzz::handed();
    station_->on_frame(rank, frame, now_);
  }

  void send(Member to, Channel channel, std::span<const ConstBytes> parts) override {
    std::vector<std::byte> frame;
    for (const ConstBytes part : parts) frame.insert(frame.end(), part.begin(), part.end());
    wire::FrameHeader h;
    require(wire::parse_frame(frame, h) && wire::verify_frame(frame), "a frame");
    require(h.member == params_.self && h.group_tag == kTag && to < ranks_, "of the station");
    if (channel == Channel::kReduce) waiting_[to] += frame.size(), queued_ += frame.size();
    if (h.type != wire::FrameType::kAggResult) return;
    wire::AggResult result;
    require(wire::parse_agg_result(ConstBytes(frame).subspan(wire::kFrameHeader), result),
            "a result");
    require(posted_.count({to, h.sequence}) != 0, "to who has posted");
    require(results_.insert({h.sequence, result.number}).second, "once");
  }
  size_t queued(Member to, Channel channel) const override {
    return channel == Channel::kReduce ? waiting_[to] : 0;
  }
  uint32_t busy_jobs() const override { return 1; }
  Result<std::unique_ptr<const WorkList>> plan(uint32_t roster, const wire::Descriptor& d,
                                               size_t room) const override {
    require(room <= kMostLists, "no more room than was admitted");
    if (roster != 1) return Status(Code::kUnavailable, "no such roster");
    if (d.bytes % 7 == 3) return Status(Code::kResourceExhausted, "not this one");
    return std::unique_ptr<const WorkList>(std::make_unique<List>(
        d.bytes, element_size(static_cast<Element>(d.element)), ranks_, kept_));
  }

  fuzz::Input in_;
  uint32_t ranks_ = 2;
  bool kept_ = false;
  JobParams params_;
  Counters counters_;
  Nanos now_ = kStart;
  std::vector<size_t> waiting_;  // by rank: bytes not yet delivered
  size_t queued_ = 0;
  std::map<Member, uint64_t> opened_;
  std::map<Sequence, wire::Descriptor> descriptors_;
  std::map<std::pair<Member, Sequence>, uint32_t> sent_;
  std::set<std::pair<Member, Sequence>> posted_;
  std::set<std::pair<Sequence, uint32_t>> results_;
  std::unique_ptr<Station> station_;
};

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Attack(fuzz::bytes_of(data, size)).run();
  return 0;
}
