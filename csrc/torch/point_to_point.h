// Sends and receives of a group.
//
// Threads, errors: as in backend.h.
#pragma once

#include "backend.h"

namespace mcast::pg {

struct ProcessGroupMcast::PointToPoint {
  ProcessGroupMcast& pg;
  Op op;

  // By the engine, or by what `pass` makes of the fallback. `peer` of a receive from any source:
  // -1.
  WorkPtr run(c10d::OpType type, const Tensors& tensors, int peer, int tag,
              const FallbackCall& pass) const;

 private:
  const char* title() const;
  // The call for it; of a receive from any source `peer` does not count.
  MessageCall call(const at::Tensor& tensor, int peer, int tag, CopyBacks& back) const;
  WorkPtr post(c10d::OpType type, const Tensors& tensors, int peer, int tag) const;
  // The same on a device (device/message.cpp).
  WorkPtr post_device(c10d::OpType type, const Tensors& tensors, int peer, int tag) const;
};

}  // namespace mcast::pg
