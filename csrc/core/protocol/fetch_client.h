// The requesting side of repair: which lost chunks to request from which member, several requests
// in flight, escalation from the ring neighbour to the root. One per operation. Pure; time is an
// argument.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <vector>

#include "base/ewma.h"
#include "base/types.h"
#include "protocol/chunk_set.h"

namespace mcast {

struct FetchParams {
  Member self = 0;
  uint32_t members = 2;
  bool ask_root_only = false;  // small operations: other members may have dropped their copy
  uint32_t max_outstanding = 4;
  Chunk max_chunks = 128;  // per request
  size_t max_ranges = 64;  // per request
  Nanos timeout_min = 20 * kMilli, timeout_max = kSecond;
  Nanos coming_wait = 2 * kMilli;  // for chunks that the root multicasts again
};

// The low bits of a request id count how often its chunks were requested from the root before.
inline constexpr int kFetchAttemptBits = 4;
inline constexpr uint32_t fetch_attempts(uint32_t id) {
  return id & ((1u << kFetchAttemptBits) - 1);
}

class FetchClient {
 public:
  explicit FetchClient(const FetchParams& params) : params_(params) {}

  struct Request {
    uint32_t id = 0;
    Member donor = kNoMember, root = kNoMember;
    std::vector<ChunkRange> ranges;
  };
  // Returns true if chunk `c` of `root`'s stream has arrived.
  using Has = std::function<bool(Member root, Chunk c)>;

  void want(Member root, ChunkRange range);
  // Returns true if a request must be sent now, and fills it in. Chunks that arrived meanwhile are
  // left out.
  bool next(Nanos now, const Has& has, Request& out);

  // `from` answered request `id` with data of `root`'s stream. Only chunks that this request asked
  // of this donor, and that are still open, count. Returns false if there are none (a late reply,
  // or a false one).
  bool on_data(uint32_t id, Member from, Member root, ChunkRange range, Nanos now);
  // `from` lets us read the requested chunks: the request's timer restarts. Returns false as above.
  bool on_grant(uint32_t id, Member from, Member root, Nanos now);
  // `from` will not send these chunks; checked in the same way. `coming`: the root multicasts them
  // again instead.
  bool on_not_have(uint32_t id, Member from, Member root, std::span<const ChunkRange> ranges,
                   bool coming, Nanos now);
  // Requests past their deadline go to the root (again). Returns their number. `heard`: by member,
  // when it last answered any request of the group: a donor that is still sending has not got to
  // ours yet, and asking the root as well would only add load to the links.
  size_t expire(Nanos now, std::span<const Nanos> heard);

  bool idle() const { return wanted_.empty() && outstanding_.empty(); }
  size_t outstanding() const { return outstanding_.size(); }
  Nanos deadline() const;
  // Ring neighbour, the first donor.
  Member neighbour() const { return static_cast<Member>((params_.self + 1u) % params_.members); }

 private:
  struct Want {
    Member root;
    ChunkRange range;
    bool to_root;
    int attempt;
    Nanos not_before;
  };
  struct Outstanding {
    uint32_t id;
    Member donor, root;
    ChunkSet open;  // chunks that are not answered yet
    int attempt;
    Nanos sent, deadline;
  };
  static constexpr size_t kNone = SIZE_MAX;
  Nanos timeout(int attempt) const;
  size_t find(uint32_t id, Member from, Member root) const;
  void settle(size_t index, Nanos now);

  FetchParams params_;
  std::deque<Want> wanted_;
  std::vector<Outstanding> outstanding_;
  uint32_t next_id_ = 1;
  Ewma rtt_;
};

}  // namespace mcast
