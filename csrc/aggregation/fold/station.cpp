// Streams deliver in order and intact, so a frame that is out of order was sent out of order: the
// job ends, and the ranks, which see the streams end, fold by themselves. Only harmless frames that
// occur without a fault are dropped: repetitions, frames of finished operations, frames of another
// group.
#include "aggregation/fold/station.h"

#include <algorithm>
#include <array>
#include <utility>

namespace mcast::aggregation {

Station::Station(const JobParams& params, const Planner& planner, Outlet& out, Counters& counters,
                 Nanos now)
    : tag_(params.tag),
      self_(params.self),
      out_(out),
      counters_(counters),
      streams_(params.hosts.members(), Stream::kNone),
      unconnected_since_(now) {
  job_.emplace(params, planner, out, counters);
}

void Station::on_stream(Member from) {
  if (from >= streams_.size() || streams_[from] != Stream::kNone) return;
  streams_[from] = Stream::kOpen;
  open_++;
}

void Station::on_stream_end(Member from, Nanos now) {
  if (from >= streams_.size()) {
    if (!closed_) job_->lose(from);
    return;
  }
  open_ -= streams_[from] == Stream::kOpen ? 1 : 0;
  streams_[from] = Stream::kEnded;
  if (closed_) return;
  job_->stop_granting();
  unconnected_since_ = now;
  if (until_ == kNever) {
    until_ = now + kFarewell;
    left_ = from;
  }
  if (open_ == 0) close("all ranks have left");
}

void Station::on_bye() {
  if (!closed_) close("the group has ended");
}

void Station::on_frame(Member from, ConstBytes frame, Nanos now) {
  const bool rank = from < streams_.size();
  if (closed_ || (rank && streams_[from] == Stream::kEnded)) return;
  counters_.add(Counter::frames_received);
  counters_.add(Counter::frame_bytes_received, frame.size());
  wire::FrameHeader header;
  if (!wire::parse_frame(frame, header) || !wire::verify_frame(frame)) {
    counters_.add(Counter::corrupt);
    return close((rank ? "rank " + std::to_string(from) : std::string("another station")) +
                 " sent a frame that is corrupt");
  }
  if (header.group_tag != tag_) {
    counters_.add(Counter::foreign);
    return;
  }
  on_stream(from);
  const ConstBytes body = frame.subspan(wire::kFrameHeader);
  const Status status =
      rank ? dispatch(from, header, body, now) : dispatch_tree(from, header, body, now);
  if (!status.ok()) close(status.message());
}

Status Station::dispatch(Member from, const wire::FrameHeader& header, ConstBytes body, Nanos now) {
  const auto broke = [&](const char* what) {
    counters_.add(Counter::agg_malformed);
    return Status(Code::kInternal, "rank " + std::to_string(from) + " sent " + what + " (" +
                                       wire::frame_type_name(header.type) + ")");
  };
  if (header.member != from || header.lane != 1)
    return broke("a frame in the name of another rank");
  if (header.type == wire::FrameType::kAggOpen) {
    wire::AggOpen open;
    if (!wire::parse_agg_open(body, open)) return broke("a frame that does not parse");
    return job_->on_open(from, header.sequence, header.argument, open, now);
  }
  if (header.type == wire::FrameType::kReduceData) {
    wire::ReduceData data;
    if (!wire::parse_reduce_data(body, data)) return broke("a frame that does not parse");
    return job_->on_data(from, header.sequence, header.argument, data, now);
  }
  if (header.type == wire::FrameType::kAggDecline) {
    wire::AggDecline decline;
    if (!wire::parse_agg_decline(body, decline)) return broke("a frame that does not parse");
    job_->on_decline(header.sequence, decline.text);
    return {};
  }
  if (header.type == wire::FrameType::kPartial) {
    wire::PartialResult partial;
    if (!wire::parse_partial(body, partial)) return broke("a frame that does not parse");
    return job_->on_partial(from, header.sequence, header.argument, partial);
  }
  if (header.type != wire::FrameType::kPing) return broke("a frame that stations do not accept");
  on_ping(from, now);
  return {};
}

// Handles a frame from another station of a tree. Its stream identifies the station; the member
// number in the frame is not checked.
Status Station::dispatch_tree(Member from, const wire::FrameHeader& header, ConstBytes body,
                              Nanos now) {
  using wire::FrameType;
  const auto broke = [&](const char* what) {
    counters_.add(Counter::agg_malformed);
    return Status(Code::kInternal, std::string("another station sent ") + what + " (" +
                                       wire::frame_type_name(header.type) + ")");
  };
  if (header.lane != 1 || from >= streams_.size() + kMostPartners)
    return broke("a frame that it may not send");
  if (header.type == FrameType::kAggOpen) {
    wire::AggOpen open;
    if (!wire::parse_agg_open(body, open)) return broke("a frame that does not parse");
    return job_->on_open(from, header.sequence, header.argument, open, now);
  }
  if (header.type == FrameType::kAggResult) {
    wire::AggResult sum;
    if (!wire::parse_agg_result(body, sum)) return broke("a frame that does not parse");
    return job_->on_sum(from, header.sequence, header.argument, sum, now);
  }
  if (header.type == FrameType::kReduceGrant) {
    wire::Reader in(body);
    const auto end = in.get<uint32_t>();
    if (!in.done()) return broke("a frame that does not parse");
    return job_->on_grant(from, header.sequence, end);
  }
  wire::AggDecline decline;
  if (header.type != FrameType::kAggDecline || !wire::parse_agg_decline(body, decline)) {
    return broke("a frame that stations do not accept");
  }
  job_->on_decline(header.sequence, decline.text);
  return {};
}

void Station::on_ping(Member from, Nanos now) {
  wire::FrameHeader header{wire::FrameType::kPong, 1, self_, tag_, 0, 0};
  wire::Writer body;
  if (const auto waiting = job_->waiting(now)) {
    header.sequence = waiting->sequence;
    wire::put_agg_wait(body, waiting->wait);
  }
  const ConstBytes bodies[] = {body.bytes()};
  std::array<std::byte, wire::kFrameHeader> head;
  wire::write_frame_header(head.data(), header, bodies);
  const ConstBytes parts[] = {head, body.bytes()};
  out_.send(from, Channel::kControl, parts);
}

void Station::advance(Nanos now) {
  if (closed_) return;
  if (open_ == 0 && now - unconnected_since_ >= kLease) return close("no rank has connected");
  if (now >= until_) return close("rank " + std::to_string(left_) + " has left");
  job_->advance(now);
}

Nanos Station::deadline() const {
  if (closed_) return kNever;
  return std::min({job_->deadline(), until_, open_ == 0 ? unconnected_since_ + kLease : kNever});
}

void Station::close(std::string why) {
  closed_ = std::move(why);
  job_.reset();
}

}  // namespace mcast::aggregation
