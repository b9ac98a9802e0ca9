// The bytes are used directly if possible. Two cases need care. In place: the input is the same
// block of the output to which it would be copied; the engine recognises the equal addresses.
// Overlap: an input that shares bytes with another rank's block would change while it is being
// sent, and outputs that overlap each other would be written by two roots at once. The former is
// copied first; the latter are gathered in a temporary and copied in rank order at the end, as Gloo
// does.
#include "tensors.h"

#include <ATen/EmptyTensor.h>
#include <ATen/MemoryOverlap.h>
#include <pthread.h>

#include <algorithm>
#include <memory>
#include <mutex>

#include "background.h"
#include "base/huge_pages.h"

namespace mcast::pg {
namespace {

struct Range {
  const std::byte* first;
  const std::byte* end;
};

Range range_of(const at::Tensor& plain) {
  const auto* first = static_cast<const std::byte*>(plain.const_data_ptr());
  return {first, first + plain.nbytes()};
}

bool overlap(const Range& a, const Range& b) {
  return a.first < b.end && b.first < a.end;  // empty ranges do not overlap a range that starts
                                              // with them
}

// Returns true if any two of `tensors` share bytes.
bool any_overlap(const std::vector<at::Tensor>& tensors) {
  std::vector<Range> ranges;
  ranges.reserve(tensors.size());
  for (const auto& tensor : tensors) {
    if (tensor.nbytes() > 0) ranges.push_back(range_of(tensor));
  }
  std::sort(ranges.begin(), ranges.end(),
            [](const Range& a, const Range& b) { return a.first < b.first; });
  for (size_t i = 1; i < ranges.size(); ++i) {
    if (ranges[i].first < ranges[i - 1].end) return true;
  }
  return false;
}

// Returns true if Python has, or had, an object for this storage. torch then takes Python's lock
// not only for the last reference but also for the last but one, which hands the storage back to
// Python.
template <typename Impl>
bool known_to_python(Impl* storage) {
  if constexpr (requires { storage->pyobj_slot()->load_pyobj(); }) {
    return storage->pyobj_slot()->load_pyobj() != nullptr;
  } else {
    return true;  // a torch with another interface: assume the worst
  }
}

void release(c10::Storage storage) {
  const size_t users = storage.use_count();
  if (users <= 1 || (users == 2 && known_to_python(storage.unsafeGetStorageImpl()))) {
    dispose_later(std::move(storage));
  }
}

struct Uses {
  struct Entry {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;  // keeps the address from being reused
    const void* data = nullptr;                         // a storage can be given other memory
    uint32_t uses = 0;
    uint64_t last = 0;
  };
  std::mutex mutex;
  std::vector<Entry> entries;
  uint64_t clock = 0;
};

// Not destroyed at exit, when lanes may still release storages. fork() may find the mutex locked:
// the child starts with a new one.
Uses*& uses() {
  static Uses* current = [] {
    pthread_atfork(nullptr, nullptr, [] { uses() = new Uses; });
    return new Uses;
  }();
  return current;
}

// Number of times that the memory of `storage` has been lent since it was allocated, this time
// included; 0 if it is too small for that to matter. Addresses are not sufficient: memory that is
// freed after each operation, as FSDP does, is often allocated again at the same address.
uint32_t uses_of(const c10::Storage& storage) {
  if (storage.nbytes() < kHugeRange) return 0;
  c10::StorageImpl* const impl = storage.unsafeGetStorageImpl();
  constexpr size_t kEntries = 256;
  Uses& all = *uses();
  const std::lock_guard lock(all.mutex);
  std::vector<Uses::Entry>& entries = all.entries;
  std::erase_if(entries, [](const Uses::Entry& e) { return e.storage.expired(); });
  auto it = std::find_if(entries.begin(), entries.end(), [&](const Uses::Entry& e) {
    return e.storage._unsafe_get_target() == impl;
  });
  if (it == entries.end()) {
    if (entries.size() == kEntries) {
      entries.erase(std::min_element(
          entries.begin(), entries.end(),
          [](const Uses::Entry& a, const Uses::Entry& b) { return a.last < b.last; }));
    }
    it = entries.insert(entries.end(), {storage.getWeakStorageImpl()});
  }
  if (it->data != storage.data()) {
    it->data = storage.data();
    it->uses = 0;
  }
  it->last = ++all.clock;
  return ++it->uses;
}

at::Tensor new_plain(const at::Tensor& like) {
  return at::empty(like.sizes(),
                   like.options().memory_format(at::MemoryFormat::Contiguous).requires_grad(false));
}

}  // namespace

bool is_plain(const at::Tensor& tensor) {
  return tensor.device().is_cpu() && tensor.layout() == at::kStrided && tensor.is_contiguous() &&
         !tensor.is_conj() && !tensor.is_neg();
}

void check_dense(const char* op, const std::string& what, const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(tensor.defined(), op, ": ", what, " is an undefined tensor");
  TORCH_CHECK_VALUE(tensor.layout() == at::kStrided, op, ": ", what,
                    " must be a dense tensor, got layout ", tensor.layout());
  TORCH_CHECK_VALUE(!tensor.is_quantized(), op, ": ", what, " must not be quantized, got ",
                    tensor.scalar_type());
  TORCH_CHECK_VALUE(!tensor.is_meta(), op, ": ", what, " is a meta tensor and has no data");
  const size_t needed =
      at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.element_size(),
                                       static_cast<size_t>(tensor.storage_offset()));
  TORCH_CHECK_VALUE(tensor.numel() == 0 || needed <= tensor.storage().nbytes(), op, ": ", what,
                    " needs a storage of ", needed, " bytes, its storage has ",
                    tensor.storage().nbytes());
}

void check_like(const char* op, const std::string& what, const at::Tensor& tensor,
                const at::Tensor& like) {
  check_dense(op, what, tensor);
  TORCH_CHECK_TYPE(tensor.scalar_type() == like.scalar_type(), op, ": ", what, " must have dtype ",
                   like.scalar_type(), ", got ", tensor.scalar_type());
  TORCH_CHECK_VALUE(tensor.device() == like.device(), op, ": ", what, " must be on ", like.device(),
                    ", got ", tensor.device());
}

const at::Tensor& first_of(const char* op, const std::vector<at::Tensor>& tensors) {
  TORCH_CHECK_VALUE(!tensors.empty(), op, ": expected at least 1 tensor, got none");
  TORCH_CHECK_VALUE(tensors[0].defined(), op, ": the first tensor is undefined");
  return tensors[0];
}

bool differ_in_size(const std::vector<at::Tensor>& tensors) {
  return std::any_of(tensors.begin(), tensors.end(), [&](const at::Tensor& tensor) {
    return tensor.defined() && tensors[0].defined() && tensor.sizes() != tensors[0].sizes();
  });
}

const at::Tensor& check_single(const char* op, const char* what,
                               const std::vector<at::Tensor>& tensors) {
  TORCH_CHECK_VALUE(tensors.size() == 1, op, ": expected 1 ", what, " tensor, got ",
                    tensors.size());
  check_dense(op, what, tensors[0]);
  return tensors[0];
}

void CopyBacks::add(at::Tensor from, at::Tensor to) {
  TORCH_CHECK_VALUE(at::has_internal_overlap(to) != at::MemOverlap::Yes,
                    "a tensor that is to be written has elements that share memory (it was "
                    "expanded): pass a clone");
  copies_.emplace_back(std::move(from), std::move(to));
}

namespace {

// torch does not divide unsigned integers of more than 8 bits.
void divide_sum(at::Tensor sum, int64_t by) {
  if (!c10::isBarebonesUnsignedType(sum.scalar_type())) {
    sum.div_(by, "trunc");
  } else if (sum.scalar_type() != at::kUInt64) {
    sum.copy_(sum.to(at::kLong).div_(by, "trunc"));
  } else {
    const at::Tensor here = sum.cpu().contiguous();
    auto* const values = static_cast<uint64_t*>(here.data_ptr());
    for (int64_t i = 0; i < here.numel(); i++) values[i] /= static_cast<uint64_t>(by);
    if (!here.is_same(sum)) sum.copy_(here);
  }
}

}  // namespace

void CopyBacks::run() const {
  // Below autograd: the arrival of data is not part of the user's graph.
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  for (const auto& [from, to] : copies_) to.copy_(from);
  for (const at::Tensor& sum : averages_) {
    divide_sum(sum, divisor_->load());
  }
}

at::Tensor readable(const at::Tensor& tensor) {
  if (is_plain(tensor)) return tensor;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  at::Tensor plain = new_plain(tensor);
  plain.copy_(tensor);
  return plain;
}

at::Tensor writable(const at::Tensor& tensor, CopyBacks& back) {
  if (is_plain(tensor)) return tensor;
  at::Tensor plain = new_plain(tensor);
  back.add(plain, tensor);
  return plain;
}

std::vector<at::Tensor> in_place_apart(const std::vector<at::Tensor>& tensors, CopyBacks& back) {
  std::vector<at::Tensor> places;
  for (const at::Tensor& tensor : tensors) places.push_back(readable(tensor));
  const bool shared = any_overlap(places);
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (shared) places[i] = places[i].clone(at::MemoryFormat::Contiguous);
    if (shared || !is_plain(tensors[i])) back.add(places[i], tensors[i]);
  }
  return places;
}

std::vector<at::Tensor> writable_apart(const std::vector<at::Tensor>& outputs, CopyBacks& back) {
  std::vector<at::Tensor> targets;
  targets.reserve(outputs.size());
  for (const auto& output : outputs) targets.push_back(writable(output, back));
  if (any_overlap(targets)) {
    for (size_t i = 0; i < targets.size(); ++i) {
      if (!is_plain(outputs[i])) continue;  // has a temporary of its own already
      targets[i] = new_plain(outputs[i]);
      back.add(targets[i], outputs[i]);
    }
  }
  return targets;
}

Slice Regions::slice(const at::Tensor& plain) { return slice(plain, 0, plain.nbytes()); }

Slice Regions::slice(const at::Tensor& plain, size_t offset, size_t length) {
  if (length == 0) return {};
  const c10::Storage& storage = plain.storage();
  std::shared_ptr<Region>& region = regions_[storage.unsafeGetStorageImpl()];
  if (!region) {
    // Hold the storage, not the tensor: a tensor may belong to Python, whose lock a lane must not
    // take.
    std::shared_ptr<void> keepalive(new c10::Storage(storage), [](void* held) {
      std::unique_ptr<c10::Storage> last(static_cast<c10::Storage*>(held));
      release(std::move(*last));
    });
    auto* const base = static_cast<std::byte*>(storage.mutable_data());
    region =
        std::make_shared<Region>(base, storage.nbytes(), std::move(keepalive), uses_of(storage));
  }
  const auto start = static_cast<size_t>(plain.storage_offset()) * plain.element_size();
  // check_dense() has checked this, but another thread may have resized the storage since.
  TORCH_CHECK(offset + length <= plain.nbytes() && start + plain.nbytes() <= region->size(),
              "mcast: a tensor's storage was resized during the call");
  return {region, start + offset, length};
}

GatherPlan plan_gather(const at::Tensor& input, const at::Tensor& output, int rank, int size,
                       CopyBacks& back) {
  GatherPlan plan;
  plan.block = input.nbytes();
  // If both are plain and overlap, they share one storage. So the input needs no second check after
  // taking the output's slices has materialised a lazily copied storage.
  const at::Tensor target = writable(output, back);
  Regions regions;
  for (int i = 0; i < size; ++i) {
    plan.outputs.push_back(regions.slice(target, static_cast<size_t>(i) * plan.block, plan.block));
  }
  at::Tensor source = readable(input);
  const Range from = range_of(source);
  const bool in_place =
      from.first == plan.outputs[static_cast<size_t>(rank)].data() && plan.block > 0;
  if (!in_place && overlap(from, range_of(target))) source = source.clone();
  plan.input = regions.slice(source);
  return plan;
}

GatherPlan plan_gather(const at::Tensor& input, const std::vector<at::Tensor>& outputs, int rank,
                       CopyBacks& back) {
  GatherPlan plan;
  plan.block = input.nbytes();
  const std::vector<at::Tensor> targets = writable_apart(outputs, back);
  Regions regions;
  for (const auto& target : targets) plan.outputs.push_back(regions.slice(target));
  at::Tensor source = readable(input);
  const Range from = range_of(source);
  const bool in_place =
      from.first == plan.outputs[static_cast<size_t>(rank)].data() && plan.block > 0;
  if (!in_place && std::any_of(targets.begin(), targets.end(), [&](const at::Tensor& target) {
        return overlap(from, range_of(target));
      })) {
    source = source.clone();
  }
  plan.input = regions.slice(source);
  return plan;
}

}  // namespace mcast::pg
