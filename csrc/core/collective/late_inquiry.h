// LateInquiry: when an operation has passed its time limit somewhere, member 0 asks all members
// which operations they have posted, so that the error names those that have not made the call.
//
// Threads: the lane's.
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "collective/group_context.h"
#include "collective/source_auth.h"

namespace mcast {

class LateInquiry {
 public:
  LateInquiry(GroupContext& context, SourceAuth& sources) : g_(context), sources_(sources) {}

  // The operation has passed its limit here, whether it was admitted or not.
  void start(const Post& post, Nanos now);
  // This member closes, and its operations are not confirmed at the latest of their time limits.
  void start_unconfirmed(Nanos now);
  // Time at which start_unconfirmed() is due. kNever: nothing waits for confirmation, or the
  // operations' own limits apply.
  Nanos closing_deadline() const {
    const bool waits = g_.leaving.closing && !asked_ && !g_.ops.empty() && g_.unfinished == 0;
    return waits ? g_.leaving.limit : kNever;
  }
  bool under_way() const { return asked_; }
  // An operation is deferred (GroupContext::deferred): its time limit applies before it is
  // admitted.
  void on_deferred(const Post& post) {
    deferred_until_ = std::min(deferred_until_, post.deadline());
  }
  // kNever during an inquiry: no other time limit applies then.
  Nanos deferred_deadline() const {
    return asked_ || g_.deferred.empty() ? kNever : deferred_until_;
  }
  void check_deferred(Nanos now);
  // Ends the inquiry if the operation is complete after all or the late ranks are known.
  void check(Nanos now);
  Nanos deadline() const { return until_; }

  using Frame = wire::FrameHeader;
  void on_late(const Frame& header, ConstBytes body, Nanos now);
  void on_query(const Frame& header, Nanos now);
  void on_where(const Frame& header, Nanos now);

 private:
  void start(Sequence sequence, const wire::Descriptor& descriptor, Nanos limit, Nanos now);
  void ask_all(Sequence sequence, std::string what, Nanos now);
  void ask_next(Nanos now);
  void name_late(Nanos now);

  GroupContext& g_;
  SourceAuth& sources_;
  Sequence sequence_ = 0;
  Nanos until_ = kNever;
  bool asked_ = false;
  Nanos deferred_until_ = kNever;  // no later than the earliest limit of a deferred operation
  std::string what_;               // the operation and its limit, as its rank described them
  std::vector<int> where_;         // at the top, by member: -1 unknown, 0 not posted, 1 posted
  // At the top: operations that passed their limits elsewhere during the inquiry, with their texts.
  std::map<Sequence, std::string> waiting_;
};

}  // namespace mcast
