// All parts of an operation are posted at once; data flows between them by ready marks. What a rail
// delivers raises the mark of a region over the output's memory, which is the source of the
// operations among the ranks of the host; on a broadcast root's host it is the other way round. The
// host's operations go by pieces, in the order in which the rails deliver: where all roots send at
// once, piece by piece over all blocks, else block by block. That order, like all that is posted
// here, follows from the descriptor and from what the whole group has agreed on.
#include "engine/rails.h"

#include <algorithm>
#include <mutex>
#include <utility>

namespace mcast {
namespace {

constexpr size_t kLeastBytes = 4u << 20;  // in all; less is not worth two steps
constexpr size_t kLeastPiece = 256u << 10, kMostPiece = 4u << 20;
constexpr size_t kAlign = 64;

size_t round_up(size_t n) { return (n + kAlign - 1) / kAlign * kAlign; }

// How much the ranks of a host take from each other at once.
size_t piece_of(size_t block) { return std::clamp(round_up(block / 8), kLeastPiece, kMostPiece); }

// `length` bytes of `whole` from `offset`.
Slice within(const Slice& whole, size_t offset, size_t length) {
  return {whole.region, whole.offset + offset, length};
}

// The same memory with a mark of its own, of which nothing is ready. Holds the memory.
Slice unready(const Slice& memory) {
  Slice s{std::make_shared<Region>(memory.data(), memory.length, memory.region), 0, memory.length};
  s.region->set_ready(0);
  return s;
}

// Done marks of a broadcast, whose parts arrive side by side: how far it is final from its start.
class Prefix {
 public:
  Prefix(std::vector<size_t> lengths, std::function<void(uint32_t, uint64_t)> mark)
      : lengths_(std::move(lengths)), here_(lengths_.size()), mark_(std::move(mark)) {}
  // Any thread.
  void raise(size_t part, size_t bytes) {
    std::lock_guard<std::mutex> lock(mutex_);
    here_[part] = bytes;
    uint64_t sum = 0;
    for (size_t i = 0; i < lengths_.size(); i++) {
      sum += here_[i];
      if (here_[i] < lengths_[i]) break;
    }
    if (sum > marked_) mark_(0, marked_ = sum);
  }

 private:
  std::mutex mutex_;
  const std::vector<size_t> lengths_;
  std::vector<size_t> here_;
  uint64_t marked_ = 0;
  const std::function<void(uint32_t, uint64_t)> mark_;
};

}  // namespace

struct Rails::Parts {
  std::mutex mutex;
  size_t left = 1;  // parts, and the posting
  Status first;
  Events events;

  void more() {
    std::lock_guard<std::mutex> lock(mutex);
    left++;
  }
  void one(const Status& status) {
    bool trouble = false, over = false, good = false;
    {
      std::lock_guard<std::mutex> lock(mutex);
      trouble = first.ok() && !status.ok();
      if (trouble) first = status;
      over = --left == 0;
      good = first.ok();
    }
    if (trouble) events.trouble(status);
    if (over && good) events.arrived();
    if (over) events.ended();
  }
};

Rails::Rails(const Hosts& hosts, Member self, const Agreed& agreed, std::shared_ptr<GroupBase> rail,
             std::shared_ptr<GroupBase> host)
    : hosts_(hosts),
      agreed_(agreed),
      here_(static_cast<Member>(hosts.host_of(self))),
      local_(hosts.members(here_)),
      rail_(std::move(rail)),
      host_(std::move(host)),
      wake_rail_(rail_->waker()),
      wake_host_(host_->waker()) {
  place_ = static_cast<Member>(std::find(local_.begin(), local_.end(), self) - local_.begin());
  agreed_.members = hosts.count();
  agreed_.share = static_cast<uint32_t>(local_.size());
  names_ = names();
}

bool Rails::carries(const wire::Descriptor& d) const {
  if (d.kind == wire::Kind::kBroadcast) return d.bytes >= kLeastBytes;
  return d.kind == wire::Kind::kAllgather && d.bytes * hosts_.members() >= kLeastBytes;
}

void Rails::post(Post whole, Events events) {
  auto parts = std::make_shared<Parts>();
  parts->events = std::move(events);
  if (whole.descriptor.kind == wire::Kind::kAllgather) {
    post_allgather(whole, parts);
  } else {
    post_broadcast(whole, parts);
  }
  // Their memory is the parts' affair now.
  whole = {};
  parts->one({});
}

void Rails::fail(const Status& why) {
  rail_->abort(why.message());
  host_->abort(why.message());
}

std::string Rails::names() const {
  std::string rail, host;
  for (uint32_t h = 0; h < hosts_.count(); h++) {
    rail += (h == 0 ? "" : ", ") + std::to_string(rank_on_rail(static_cast<Member>(h)));
  }
  for (const Member m : local_) host += (host.empty() ? "" : ", ") + std::to_string(m);
  return "ranks of '" + rail_->stats().name + "': " + rail + "; of '" + host_->stats().name +
         "': " + host;
}

void Rails::add_to(GroupStats& stats) const {
  const GroupStats rail = rail_->stats(), host = host_->stats();
  for (const GroupStats* s : {&rail, &host}) {
    for (size_t i = 0; i < stats.counters.size(); i++) {
      const auto c = static_cast<Counter>(i);
      // Parts are no operations.
      if (c == Counter::ops_posted || c == Counter::ops_completed || c == Counter::ops_failed) {
        continue;
      }
      stats.counters[i].second += s->counters[i].second;
    }
  }
  for (size_t h = 0; h < rail.repair_from_to.size(); h++) {
    auto& [received, sent] = stats.repair_from_to[rank_on_rail(static_cast<Member>(h))];
    received += rail.repair_from_to[h].first;
    sent += rail.repair_from_to[h].second;
  }
}

void Rails::part(GroupBase& group, Post post, const std::shared_ptr<Parts>& parts) {
  parts->more();
  post.done = [parts, then = std::move(post.done)](const Status& status) {
    if (then) then(status);
    parts->one(status);
  };
  if (Status status = group.post_part(std::move(post)); !status.ok()) parts->one(status);
}

void Rails::post_allgather(const Post& whole, const std::shared_ptr<Parts>& parts) {
  const wire::Descriptor& d = whole.descriptor;
  const size_t block = d.bytes, piece = piece_of(block);
  const uint32_t hosts = hosts_.count();
  // Our rail's blocks, by host, as the neighbours may read them.
  std::vector<Slice> ours(hosts);
  Post rail;
  rail.descriptor = d;
  rail.posted = whole.posted;
  rail.input = whole.input;
  for (uint32_t h = 0; h < hosts; h++) {
    rail.outputs.push_back(whole.outputs[rank_on_rail(static_cast<Member>(h))]);
    ours[h] = h == here_ ? whole.input : unready(rail.outputs[h]);
  }
  std::vector<Member> ranks(hosts);
  for (uint32_t h = 0; h < hosts; h++) ranks[h] = rank_on_rail(static_cast<Member>(h));
  rail.mark_step = whole.on_mark ? std::min(piece, whole.mark_step) : piece;
  rail.on_mark = [ours, ranks, mark = whole.on_mark, wake = wake_host_](uint32_t h,
                                                                        uint64_t bytes) {
    ours[h].region->set_ready(bytes);
    wake();
    if (mark) mark(ranks[h], bytes);
  };
  part(*rail_, std::move(rail), parts);

  const auto take = [&](uint32_t h, size_t offset) {
    const size_t length = std::min(piece, block - offset);
    Post p;
    p.descriptor = d;
    p.descriptor.bytes = length;
    p.posted = whole.posted;
    p.input = within(ours[h], offset, length);
    for (size_t i = 0; i < local_.size(); i++) {
      p.outputs.push_back(
          i == place_ ? p.input : within(whole.outputs[hosts_.members(h)[i]], offset, length));
    }
    if (whole.on_mark) {
      p.mark_step = whole.mark_step;
      p.on_mark = [mark = whole.on_mark, members = hosts_.members(h), offset](
                      uint32_t i, uint64_t bytes) { mark(members[i], offset + bytes); };
    }
    part(*host_, std::move(p), parts);
  };
  const bool in_turns = make_plan(d, agreed_).chains < hosts;
  if (in_turns) {
    for (uint32_t i = 0; i < hosts; i++) {
      // Ours is there at once, the others come in their order.
      const uint32_t h = i == 0 ? here_ : i <= here_ ? i - 1 : i;
      for (size_t at = 0; at < block; at += piece) take(h, at);
    }
    return;
  }
  for (size_t at = 0; at < block; at += piece) {
    for (uint32_t i = 0; i < hosts; i++) take((here_ + i) % hosts, at);
  }
}

void Rails::post_broadcast(const Post& whole, const std::shared_ptr<Parts>& parts) {
  const wire::Descriptor& d = whole.descriptor;
  const size_t rails = local_.size();
  const size_t share = round_up((d.bytes + rails - 1) / rails), piece = piece_of(share);
  const auto from = static_cast<Member>(hosts_.host_of(d.root));
  const bool with_root = from == here_;
  const auto& theirs = hosts_.members(from);
  const auto root =
      static_cast<Member>(std::find(theirs.begin(), theirs.end(), d.root) - theirs.begin());
  std::vector<size_t> lengths;
  for (size_t i = 0; i < rails; i++) {
    const size_t at = std::min<size_t>(i * share, d.bytes);
    lengths.push_back(std::min<size_t>(share, d.bytes - at));
  }
  const bool is_root = with_root && root == place_;
  // Of our part: the root's memory, else what another brings.
  const Slice& memory = is_root ? whole.input : whole.outputs[0];
  Slice ours = within(memory, place_ * share, lengths[place_]);
  if (!is_root && ours.length > 0) ours = unready(ours);
  std::function<void(size_t, uint64_t)> mark;
  if (whole.on_mark && !is_root) {
    mark = [prefix = std::make_shared<Prefix>(lengths, whole.on_mark)](size_t i, uint64_t bytes) {
      prefix->raise(i, bytes);
    };
  }
  if (lengths[place_] > 0) {
    Post p;
    p.descriptor = d;
    p.descriptor.root = from;
    p.descriptor.bytes = lengths[place_];
    p.posted = whole.posted;
    if (with_root) p.input = ours;
    p.outputs = {with_root ? ours : within(memory, place_ * share, lengths[place_])};
    if (!with_root) {
      p.mark_step = piece;
      p.on_mark = [ours, mark, place = place_, wake = wake_host_](uint32_t, uint64_t bytes) {
        ours.region->set_ready(bytes);
        wake();
        if (mark) mark(place, bytes);
      };
    }
    part(*rail_, std::move(p), parts);
  }
  for (size_t at = 0; at < share; at += piece) {
    for (size_t i = 0; i < rails; i++) {
      if (at >= lengths[i]) continue;
      const size_t length = std::min(piece, lengths[i] - at);
      Post p;
      p.descriptor = d;
      p.descriptor.root = with_root ? root : static_cast<Member>(i);
      p.descriptor.bytes = length;
      p.posted = whole.posted;
      if (p.descriptor.root == place_) {
        p.input =
            with_root ? within(whole.input, i * share + at, length) : within(ours, at, length);
        p.outputs = {p.input};
      } else {
        p.outputs = {within(memory, i * share + at, length)};
        const bool feeds = with_root && i == place_;
        if (feeds || mark) {
          p.mark_step = piece;
          p.on_mark = [feeds, ours, mark, i, at, wake = wake_rail_](uint32_t, uint64_t bytes) {
            if (feeds) {
              ours.region->set_ready(at + bytes);
              wake();
            }
            if (mark) mark(i, at + bytes);
          };
        }
      }
      part(*host_, std::move(p), parts);
    }
  }
}

}  // namespace mcast
