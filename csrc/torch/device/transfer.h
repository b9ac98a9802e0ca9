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

// `ranges` without empty ones; those that follow each other in memory are one.
std::vector<DeviceBytes> adjoining(const std::vector<DeviceBytes>& ranges);
// One element in 512 bytes of the range, whose elements have this type: integers of its size (of
// complex128 of half of it). Bools, of which not every bit pattern is one: none.
at::Tensor spread_elements(const DeviceBytes& range, at::ScalarType type);

// One operation of the engine, or one message.
struct Transfer {
  enum class Kind { broadcast, gather, scatter, all_reduce, reduce, send, receive };
  Kind kind = Kind::broadcast;
  Member root = 0;   // of a broadcast or reduce; of a message the other rank, kNoMember: any
  size_t block = 0;  // bytes of one block; all_reduce, reduce: of the whole
  at::ScalarType dtype = at::kByte;
  Reducing how;  // reductions
  // broadcast (empty on receivers), gather: the own block. scatter: a block per rank. all_reduce,
  // reduce, send: the whole. receive: empty.
  std::vector<DeviceBytes> sources;
  // By completed end of the engine: broadcast, reduce (at the root), scatter, receive: one. gather:
  // a block per rank. all_reduce: the block that each rank folds. Empty where nothing is written.
  std::vector<DeviceBytes> targets;
  bool own_copy = false;  // targets[own rank] is written from sources[0] on the device

  bool gather() const { return kind == Kind::gather; }
  bool reduces() const {
    return kind == Kind::scatter || kind == Kind::all_reduce || kind == Kind::reduce;
  }
};

Transfer plan_broadcast(const at::Tensor& tensor, Member root, bool is_root, CopyBacks& back);
// As plan_gather() in tensors.h.
Transfer plan_transfer(const at::Tensor& input, const at::Tensor& output, int rank, int size,
                       CopyBacks& back);
Transfer plan_transfer(const at::Tensor& input, const std::vector<at::Tensor>& outputs, int rank,
                       CopyBacks& back);
// Reductions. `how` is for elements of the tensors' type. A group of one rank only copies.
Transfer plan_scatter(const at::Tensor& input, const at::Tensor& output, const Reducing& how,
                      int rank, int size, CopyBacks& back);
Transfer plan_scatter(const std::vector<at::Tensor>& inputs, const at::Tensor& output,
                      const Reducing& how, int rank, CopyBacks& back);
Transfer plan_allreduce(const at::Tensor& tensor, const Reducing& how, int size, CopyBacks& back);
Transfer plan_reduce(const at::Tensor& tensor, Member root, const Reducing& how, int rank, int size,
                     CopyBacks& back);
// A message to or from `peer`.
Transfer plan_send(const at::Tensor& tensor, Member peer);
Transfer plan_receive(const at::Tensor& tensor, Member peer, CopyBacks& back);

}  // namespace mcast::pg
