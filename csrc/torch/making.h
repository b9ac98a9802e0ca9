// Finds the number of a group's creation in which a rank takes part. A store may keep the keys of
// earlier creations: the group was destroyed and is created again, or processes were restarted. All
// ranks find the number in the store by the same rule: the first one that neither rank 0 nor the
// rank itself has ended yet. So a restarted process joins the creation in which the others wait,
// and replaces the record of the process before it; and a late rank still meets those that wait,
// though another rank has failed already.
//
// Groups of one name whose ranks list different members have separate creations, below different
// keys: c10d numbers groups per process, so that two halves of a world may give one name to two
// groups. Ranks that wait for each other with different lists get an error that says so.
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
  // `members`: global ranks of the group's ranks; empty if they are not known. `rank`: in the
  // group.
  Making(c10::intrusive_ptr<c10d::Store> store, size_t rank, std::vector<uint64_t> members);

  // Prefix of its keys. Takes the number at the first call.
  const std::string& prefix();
  bool joined() const { return !prefix_.empty(); }
  // Makes no more calls of a store that does not work.
  void forget() { prefix_.clear(); }
  // Ends it for this rank; on rank 0 for all ranks that come later. Ranks that take part already
  // continue.
  void end() noexcept;
  // Returns why it can never be complete: one of `waited_for` (ranks of the group) is creating a
  // group of this name with other members. All ranks that wait in either creation learn of it.
  // Empty if there is no conflict.
  std::string conflict(const std::vector<size_t>& waited_for);

 private:
  std::string own_over() const;

  const c10::intrusive_ptr<c10d::Store> store_;
  const size_t rank_;
  const std::vector<uint64_t> members_;
  const std::string list_;  // the members, as text for messages
  const std::string base_;  // prefix of all creations with these members
  std::string prefix_;      // empty before it is joined
};

}  // namespace mcast::pg
