// The ranges of device memory that an operation on device tensors moves, laid out as the engine
// will see them in host memory.
//
// "Plain" = strided, contiguous, neither conjugated nor negated lazily: its bytes are its content.
// A source that is not plain is copied on the device first; a target that is not plain gets a plain
// temporary and is copied from it at the end.
//
// Threads: on the caller's thread; copies go to the caller's current stream.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "runtime/engine.h"
#include "tensors.h"

namespace mcast::pg {

// A range of a device storage. Length 0: empty.
struct DeviceBytes {
  c10::Storage storage;
  size_t offset = 0;
  size_t length = 0;

  // A flat byte tensor over [from, from + count) of the range; no kernel runs.
  at::Tensor view(size_t from, size_t count) const;
};

// Returns `ranges` without empty ones; adjacent ranges in memory are merged.
std::vector<DeviceBytes> adjoining(const std::vector<DeviceBytes>& ranges);
// Returns one element in 512 bytes of the range, whose elements have this type: integers of its
// size (of half its size for complex128). Bools: none, because not every bit pattern is a bool.
at::Tensor spread_elements(const DeviceBytes& range, at::ScalarType type);

// One operation of the engine, or one message.
struct DevicePlan {
  enum class Kind { broadcast, gather, scatter, all_reduce, reduce, send, receive };
  Kind kind = Kind::broadcast;
  Member root = 0;   // broadcast, reduce: the root; message: the other rank, kNoMember: any
  size_t block = 0;  // bytes of one block; all_reduce, reduce: of the whole tensor
  at::ScalarType dtype = at::kByte;
  Reducing how;  // reductions
  // broadcast (empty on receivers), gather: this rank's block. scatter: a block per rank.
  // all_reduce, reduce, send: the whole tensor. receive: empty.
  std::vector<DeviceBytes> sources;
  // One entry per completed end of the engine: broadcast, reduce (at the root), scatter, receive:
  // one. gather: a block per rank. all_reduce: the block that each rank folds. Empty if nothing is
  // written.
  std::vector<DeviceBytes> targets;
  bool own_copy = false;  // targets[this rank] is written from sources[0] on the device

  bool gather() const { return kind == Kind::gather; }
  // Of the group's operation; not for messages.
  wire::Kind request_kind() const {
    switch (kind) {
      case Kind::gather:
        return wire::Kind::kAllgather;
      case Kind::scatter:
        return wire::Kind::kReduceScatter;
      case Kind::all_reduce:
        return wire::Kind::kAllreduce;
      case Kind::reduce:
        return wire::Kind::kReduce;
      default:
        return wire::Kind::kBroadcast;
    }
  }
  bool reduces() const {
    return kind == Kind::scatter || kind == Kind::all_reduce || kind == Kind::reduce;
  }
};

DevicePlan plan_broadcast(const at::Tensor& tensor, Member root, bool is_root, CopyBacks& back);
// As plan_gather() in tensors.h.
DevicePlan plan_transfer(const at::Tensor& input, const at::Tensor& output, int rank, int size,
                         CopyBacks& back);
DevicePlan plan_transfer(const at::Tensor& input, const std::vector<at::Tensor>& outputs, int rank,
                         CopyBacks& back);
// Reductions. `how` is for elements of the tensors' type. A group of one rank only copies.
DevicePlan plan_scatter(const at::Tensor& input, const at::Tensor& output, const Reducing& how,
                        int rank, int size, CopyBacks& back);
DevicePlan plan_scatter(const std::vector<at::Tensor>& inputs, const at::Tensor& output,
                        const Reducing& how, int rank, CopyBacks& back);
DevicePlan plan_allreduce(const at::Tensor& tensor, const Reducing& how, int size, CopyBacks& back);
DevicePlan plan_reduce(const at::Tensor& tensor, Member root, const Reducing& how, int rank,
                       int size, CopyBacks& back);
// A message to or from `peer`.
DevicePlan plan_send(const at::Tensor& tensor, Member peer);
DevicePlan plan_receive(const at::Tensor& tensor, Member peer, CopyBacks& back);

}  // namespace mcast::pg
