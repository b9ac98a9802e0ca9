// Sends and receives of a group.
//
// Threads, errors: as in backend.h.
#pragma once

#include "backend.h"

namespace mcast::pg {

struct ProcessGroupMcast::PointToPoint {
  ProcessGroupMcast& pg;
  Op op;

  // Posts to the engine, or to the fallback by calling `pass`. `peer` of a receive from any source:
  // -1.
  WorkPtr run(c10d::OpType type, const Tensors& tensors, int peer, int tag,
              const FallbackCall& pass) const;

 private:
  const char* title() const;
  // The engine's call for it; for a receive from any source `peer` is ignored.
  MessageCall call(const at::Tensor& tensor, int peer, int tag, CopyBacks& back) const;
  WorkPtr post(c10d::OpType type, const Tensors& tensors, int peer, int tag) const;
  // The same on a device (device/message.cpp).
  WorkPtr post_device(c10d::OpType type, const Tensors& tensors, int peer, int tag) const;
};

}  // namespace mcast::pg
