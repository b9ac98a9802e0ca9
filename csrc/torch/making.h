// Which making of a group a rank takes part in. A store may keep the keys of earlier makings: the
// group was destroyed and is made again, or processes were started again. All ranks find the number
// of a making in the store, by one rule: the first one that neither rank 0 nor the rank itself has
// ended yet. So a process that was started again joins the making that the others wait in, and
// replaces the record of the process before it; and a rank that comes late still meets those that
// wait, though another rank has failed already.
//
// Groups of one name whose ranks name different members have makings of their own, below different
// keys: c10d numbers groups per process, so that two halves of a world may give one name to two
// groups. Ranks that wait for each other with different lists are told so.
//
// Threads: one. Errors: exceptions of the Store.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace mcast::pg {

class Making {
 public:
  // `members`: global ranks of the group's ranks; empty: they are not known. `rank`: in the group.
  Making(c10::intrusive_ptr<c10d::Store> store, size_t rank, std::vector<uint64_t> members);

  // What its keys begin with. Takes the number at the first call.
  const std::string& prefix();
  bool joined() const { return !prefix_.empty(); }
  // No more calls of a store that does not work.
  void forget() { prefix_.clear(); }
  // Ends it for this rank, of rank 0 for all that come later; those that are in it go on.
  void end() noexcept;
  // Why it can never be complete: one of `waited_for` (ranks of the group) is making a group of
  // this name with other members. All ranks that wait in either making learn of it. Empty: not so.
  std::string conflict(const std::vector<size_t>& waited_for);

 private:
  std::string own_over() const;

  const c10::intrusive_ptr<c10d::Store> store_;
  const size_t rank_;
  const std::vector<uint64_t> members_;
  const std::string list_;  // the members, for people
  const std::string base_;  // of all makings with these members
  std::string prefix_;      // empty before it is joined
};

}  // namespace mcast::pg
