// Lost ranges queue up and are sent as requests of bounded size, a few in flight. The first donor
// is the ring neighbour (paper, fetch ring), which replies at once with the chunks that it has and
// NotHave for the rest; chunks with NotHave or no reply are requested from the root, which always
// has them. No donor ever holds a request until it has the chunk, so there is no cycle of waiting:
// every request ends by data, NotHave or its timer (four measured round trips, doubled per
// attempt).
#include "protocol/fetch_client.h"
#include "base/coverage.h"

#include <algorithm>

namespace mcast {

void FetchClient::want(Member root, ChunkRange range) {
  wanted_.push_back({root, range, params_.ask_root_only, 0, 0});
}

Nanos FetchClient::timeout(int attempt) const {
  const Nanos base = std::clamp(4 * rtt_.mean(), params_.timeout_min, params_.timeout_max);
  return std::min(params_.timeout_max, base << std::min(attempt, 10));
}

bool FetchClient::next(Nanos now, const Has& has, Request& out) {
  if (outstanding_.size() >= params_.max_outstanding) return false;
  out.ranges.clear();
  Chunk total = 0;
  int attempt = 0;
  for (size_t scanned = wanted_.size();
       scanned > 0 && total < params_.max_chunks && out.ranges.size() < params_.max_ranges;
       scanned--) {
    Want w = wanted_.front();
    wanted_.pop_front();
    Member donor = w.to_root ? w.root : neighbour();
    if (donor == params_.self) donor = w.root;
    const bool fits = out.ranges.empty() || (w.root == out.root && donor == out.donor);
    if (w.not_before > now || !fits) {
      wanted_.push_back(w);
      continue;
    }
    Chunk at = w.range.first;
    while (at < w.range.end && total < params_.max_chunks &&
           out.ranges.size() < params_.max_ranges) {
      while (at < w.range.end && has(w.root, at)) at++;
      Chunk end = at;
      while (end < w.range.end && total < params_.max_chunks && !has(w.root, end)) {
        end++;
        total++;
      }
      if (end > at) {
        out.ranges.push_back({at, end});
        out.root = w.root;
        out.donor = donor;
        attempt = std::max(attempt, w.attempt);
      }
      at = end;
    }
    if (at < w.range.end) {
      w.range.first = at;
      wanted_.push_front(w);
      if (total >= params_.max_chunks || out.ranges.size() >= params_.max_ranges) break;
    }
  }
  if (out.ranges.empty()) return false;
  out.id = next_id_++ << kFetchAttemptBits |
           static_cast<uint32_t>(std::min(attempt, (1 << kFetchAttemptBits) - 1));
  outstanding_.push_back(
      {out.id, out.donor, out.root, ChunkSet(out.ranges), attempt, now, now + timeout(attempt)});
  return true;
}

// A request is identified by its id, its donor and its stream: a reply from any other member must
// not settle it, else its chunks would never be requested again.
size_t FetchClient::find(uint32_t id, Member from, Member root) const {
  for (size_t i = 0; i < outstanding_.size(); i++) {
    const Outstanding& o = outstanding_[i];
    if (o.id == id && o.donor == from && o.root == root) return i;
  }
  return kNone;
}

void FetchClient::settle(size_t index, Nanos now) {
  Outstanding& o = outstanding_[index];
  rtt_.add(now - o.sent);
  o.deadline = now + timeout(o.attempt);
  if (o.open.empty()) {
    outstanding_[index] = std::move(outstanding_.back());
    outstanding_.pop_back();
  }
}

bool FetchClient::on_data(uint32_t id, Member from, Member root, ChunkRange range, Nanos now) {
  const size_t i = find(id, from, root);
  if (i == kNone) return false;
  if (outstanding_[i].open.take(range).empty()) return false;
  settle(i, now);
  return true;
}

bool FetchClient::on_grant(uint32_t id, Member from, Member root, Nanos now) {
  const size_t i = find(id, from, root);
  if (i == kNone) return false;
  settle(i, now);
  return true;
}

bool FetchClient::on_not_have(uint32_t id, Member from, Member root,
                              std::span<const ChunkRange> ranges, bool coming, Nanos now) {
  const size_t i = find(id, from, root);
  if (i == kNone) return false;
  const int attempt = outstanding_[i].attempt;
  // A root without the chunk has not sent it yet: request it again later. The repetition may be
  // lost or late too: the wait doubles, so that a slow network is not filled with repetitions.
  const bool later = coming || from == root;
  const Nanos wait = later ? now + (params_.coming_wait << std::min(attempt, 8)) : 0;
  ChunkSet refused;
  for (const ChunkRange& r : ranges) refused.add(outstanding_[i].open.take(r));
  if (refused.empty()) return false;
  for (const ChunkRange& r : refused) {
    wanted_.push_back({root, r, true, later ? attempt + 1 : attempt, wait});
  }
  settle(i, now);
  return true;
}

size_t FetchClient::expire(Nanos now, std::span<const Nanos> heard) {
  size_t expired = 0;
  for (size_t i = 0; i < outstanding_.size();) {
    Outstanding& open = outstanding_[i];
    if (now >= open.deadline) {
      const Nanos last = heard[open.donor];
      if (last > open.sent && now < last + timeout(open.attempt)) MCAST_COVER(request_kept_open);
      if (last > open.sent) open.deadline = std::max(open.deadline, last + timeout(open.attempt));
    }
    if (now < open.deadline) {
      i++;
      continue;
    }
    expired++;
    const Outstanding o = std::move(outstanding_[i]);
    outstanding_[i] = std::move(outstanding_.back());
    outstanding_.pop_back();
    for (const ChunkRange& r : o.open) {
      wanted_.push_back({o.root, r, true, o.attempt + 1, 0});
    }
  }
  return expired;
}

Nanos FetchClient::deadline() const {
  Nanos next = kNever;
  for (const Outstanding& o : outstanding_) next = std::min(next, o.deadline);
  if (outstanding_.size() < params_.max_outstanding) {
    for (const Want& w : wanted_) next = std::min(next, w.not_before);
  }
  return next;
}

}  // namespace mcast
