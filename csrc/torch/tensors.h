// CPU tensors as the engine sees them: ranges of bytes of some storage. Checks (of all tensors),
// the choice between direct use and a copy, and the copies back. Device tensors:
// device/device_plan.h.
//
// "Plain" = on the CPU, strided, contiguous, neither conjugated nor negated lazily: its bytes are
// its content and the engine works on them in place. Any other tensor goes through a plain copy.
//
// Errors: c10::ValueError / c10::TypeError with the op's name, the expected value, and the actual
// one.
#pragma once

#include <ATen/ATen.h>

#include <atomic>
#include <memory>
#include <unordered_map>
#include <vector>

#include "runtime/engine.h"

namespace mcast::pg {

bool is_plain(const at::Tensor& tensor);

// Throws unless `tensor` is defined, dense, not a meta tensor, and its storage has its bytes.
// `what` names it: "output 3".
void check_dense(const char* op, const std::string& what, const at::Tensor& tensor);
// TypeError/ValueError unless dtype and device type are those of `like`.
void check_like(const char* op, const std::string& what, const at::Tensor& tensor,
                const at::Tensor& like);
// Returns the first tensor of a list that is passed to a fallback.
const at::Tensor& first_of(const char* op, const std::vector<at::Tensor>& tensors);
// Returns true if not all of them have the shape of the first.
bool differ_in_size(const std::vector<at::Tensor>& tensors);
// Returns the only tensor of a list; c10d allows longer lists (several devices per process, a mode
// long gone).
const at::Tensor& check_single(const char* op, const char* what,
                               const std::vector<at::Tensor>& tensors);

// Final steps that give the caller's tensors their content when the operation is complete: copies,
// then divisions (averages of integers, which the engine sums).
class CopyBacks {
 public:
  using Divisor = std::shared_ptr<std::atomic<uint32_t>>;

  // ValueError if elements of `to` share memory.
  void add(at::Tensor from, at::Tensor to);
  // Divides by divide_by(), rounding towards zero.
  void divide(at::Tensor tensor) { averages_.push_back(std::move(tensor)); }
  // Number of contributions in the sums, once the operation is complete.
  void divide_by(Divisor divisor) { divisor_ = std::move(divisor); }
  bool empty() const { return copies_.empty() && averages_.empty(); }
  // Runs on the background thread; for device tensors on the current stream. Throws the exceptions
  // of copy_.
  void run() const;

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> copies_;
  std::vector<at::Tensor> averages_;
  Divisor divisor_;
};

// Returns a plain tensor with the content of `tensor`: itself, or a copy made now.
at::Tensor readable(const at::Tensor& tensor);
// Returns a plain tensor to be written: `tensor` itself, or a new one that `back` copies to it at
// the end.
at::Tensor writable(const at::Tensor& tensor, CopyBacks& back);

// Returns plain tensors that are read and written in place at the same time: like writable(), with
// their content, and without overlap.
std::vector<at::Tensor> in_place_apart(const std::vector<at::Tensor>& tensors, CopyBacks& back);

// Slices of plain tensors; one Region per storage (not per address: several storages may lie over
// one buffer), so that all chunks of a flat buffer share one. The regions keep the storage alive
// until the engine is done.
class Regions {
 public:
  Slice slice(const at::Tensor& plain);
  Slice slice(const at::Tensor& plain, size_t offset, size_t length);

 private:
  // A region holds its storage, so no other can get its address while this lives.
  std::unordered_map<const c10::StorageImpl*, std::shared_ptr<Region>> regions_;
};

// Slices of an allgather.
struct GatherPlan {
  Slice input;
  std::vector<Slice> outputs;  // by rank
  size_t block = 0;            // bytes of one block
};

// For all_gather_into_tensor: `output` holds size() blocks. In place if `input` is block `rank`.
GatherPlan plan_gather(const at::Tensor& input, const at::Tensor& output, int rank, int size,
                       CopyBacks& back);
// Returns plain tensors that are written at the same time: like writable(), and without overlap.
std::vector<at::Tensor> writable_apart(const std::vector<at::Tensor>& outputs, CopyBacks& back);
// For all_gather: one output per rank, often views of one flat tensor.
GatherPlan plan_gather(const at::Tensor& input, const std::vector<at::Tensor>& outputs, int rank,
                       CopyBacks& back);

}  // namespace mcast::pg
