// Requests for repair that wait because the requester's connection is full. Pure.
#pragma once

#include <map>
#include <vector>

#include "base/types.h"
#include "protocol/chunk_set.h"

namespace mcast {

// If a donor gives its transport more than the link carries, only its memory grows: requesters
// repeat their requests, and everything is sent twice. Requests wait here instead, by requester and
// stream, where a repetition adds nothing: the sets are merged, under the latest id, since replies
// to an earlier one would no longer count.
class RepairQueue {
 public:
  struct Request {
    Sequence sequence = 0;
    Member root = 0;
    uint32_t id = 0;
    ChunkSet chunks;
  };

  void park(Member asker, Request request);
  bool empty() const { return askers_.empty(); }
  size_t size() const;

  // Members with waiting requests, ascending.
  std::vector<Member> askers() const;
  // Takes at most `chunks` chunks of the member's oldest request. Returns false if none is left.
  bool next(Member asker, Chunk chunks, Request& out);
  // Drops all requests of the member; the requests for operations below `end`.
  void drop(Member asker) { askers_.erase(asker); }
  void on_released(Sequence end);

 private:
  std::map<Member, std::vector<Request>> askers_;
};

}  // namespace mcast
