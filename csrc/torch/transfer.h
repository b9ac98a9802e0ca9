// What an operation on device tensors moves: ranges of device memory, laid out as the engine will
// see them in host memory.
//
// "Plain" = strided, contiguous, neither conjugated nor negated lazily: its bytes are its content.
// A source that is not is copied on the device first; a target that is not gets a plain temporary
// and is copied from it at the end.
//
// Threads: on the caller's thread; copies go to the caller's current stream.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "engine/engine.h"
#include "tensors.h"

namespace mcast::pg {

// A range of a device storage. Length 0: nothing.
struct DeviceBytes {
  c10::Storage storage;
  size_t offset = 0;
  size_t length = 0;

  // A flat byte tensor over [from, from + count) of the range; no kernel runs.
  at::Tensor view(size_t from, size_t count) const;
};

// One operation of the engine.
struct Transfer {
  bool gather = false;
  Member root = 0;  // of a broadcast
  size_t block = 0;
  at::ScalarType dtype = at::kByte;
  DeviceBytes source;                // the own block; empty on receivers of a broadcast
  std::vector<DeviceBytes> targets;  // by output of the engine; empty where nothing is written
  bool own_copy = false;             // targets[own rank] is written from `source` on the device
};

Transfer plan_broadcast(const at::Tensor& tensor, Member root, bool is_root, CopyBacks& back);
// As plan_gather() in tensors.h.
Transfer plan_transfer(const at::Tensor& input, const at::Tensor& output, int rank, int size,
                       CopyBacks& back);
Transfer plan_transfer(const at::Tensor& input, const std::vector<at::Tensor>& outputs, int rank,
                       CopyBacks& back);

}  // namespace mcast::pg
