// Movement: one way in which the data of operations moves: by multicast, around the ring, as
// contributions to owners, from each rank to each other, or not at all. A group has one object of
// each; an operation's state is in Operation. GroupCore selects the movements of an operation when
// it starts (GroupCore::movements_of), and drives them through this interface only.
//
// Order of calls for an operation: start; on_frame for frames that arrived before it; begin; then
// on_frame and pump until all its movements are complete; on_complete; drop_memory when it ends;
// and give_back when it leaves the queue. While a movement handles an event, it calls no other one:
// it leaves a note in GroupContext.
//
// Threads: the lane's.
#pragma once

#include "base/status.h"
#include "collective/operation.h"
#include "wire/frame.h"

namespace mcast {

class Movement {
 public:
  using Frame = wire::FrameHeader;

  Movement() = default;
  virtual ~Movement() = default;
  Movement(const Movement&) = delete;
  Movement& operator=(const Movement&) = delete;

  // Makes the operation's state machines.
  virtual void start(Operation& op, Nanos now) = 0;
  // May send. Not called if the group has failed meanwhile.
  virtual void begin(Operation&, Nanos) {}

  // A frame about the operation, of a type that group_dispatch.cpp assigns to this movement. The
  // operation may have other movements only: then the sender has broken the protocol.
  virtual void on_frame(Operation&, const Frame&, ConstBytes, Nanos) {}
  // Whether a correct member may send this before our post. Fails the group if not.
  virtual bool allowed_early(const Frame&) { return true; }

  // Sends and requests as much as the limits allow, also after the operation is complete here.
  // `drained`: the transport's receive side was seen empty. Returns true if more can be done at
  // once.
  virtual bool pump(Operation& op, Nanos now, bool drained) = 0;
  // Whether the operation may have work for every pump().
  virtual bool busy(const Operation& op) const = 0;
  // When to call pump() at the latest.
  virtual Nanos deadline(const Operation&) const { return kNever; }

  // All data is here, and sending needs the caller's memory no longer.
  virtual bool complete(const Operation& op) const = 0;
  virtual void on_complete(Operation&, Nanos) {}
  // Whether the operation ends only when it is complete at all members. Called after start().
  virtual bool until_released(const Operation&) const { return false; }
  // Whether the other members should learn at once that the operation is complete here.
  virtual bool urgent(const Operation&) const { return false; }

  // The operation has ended: releases the caller's memory, and machines that point into it.
  virtual void drop_memory(Operation&) {}
  // Whether the state of an ended operation is no longer needed.
  virtual bool settled(const Operation&) const { return true; }
  // The operation leaves the queue: stops charging for what it has used of the group's limits.
  virtual void give_back(const Operation&) {}
};

}  // namespace mcast
