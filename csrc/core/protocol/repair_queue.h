// Requests for repair that wait because the asker's connection is full. Pure.
#pragma once

#include <map>
#include <vector>

#include "base/types.h"
#include "protocol/chunk_set.h"

namespace mcast {

// A donor that hands its transport more than the link carries only makes its memory grow: askers
// ask again, and everything is sent twice. Requests wait here instead, by asker and stream, where
// asking again adds nothing: the sets are united, under the latest id, since answers to an
// earlier one would no longer count.
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

  // Askers with requests, ascending.
  std::vector<Member> askers() const;
  // The oldest request of the asker, of which at most `chunks` chunks; false: none is left.
  bool next(Member asker, Chunk chunks, Request& out);
  // Nothing of the asker is wanted any more; of operations below `end`.
  void drop(Member asker) { askers_.erase(asker); }
  void on_released(Sequence end);

 private:
  std::map<Member, std::vector<Request>> askers_;
};

}  // namespace mcast
