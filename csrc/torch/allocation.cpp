// c10d's hooks for memory that suits a group: CPU tensors in the process's ArenaPool, which an
// engine of the host maps, so operations use them where they lie. As with NCCL, a group that has no
// such memory says so beforehand and refuses to allocate; FSDP2 then takes torch's.
#include <ATen/EmptyTensor.h>
#include <ATen/native/TensorFactories.h>

#include "arena.h"
#include "backend.h"
#include "base/errors.h"
#include "gil.h"

namespace mcast::pg {
namespace {

constexpr const char* kCall = "allocate_tensor";

}  // namespace

Status ProcessGroupMcast::maps_memory() const {
  if (!here()) return make_error<ErrorId::group_of_parent>(name_);
  const WithoutGil nogil;  // the engine is asked
  std::shared_ptr<Group> group;
  {
    std::lock_guard lock(mutex_);
    group = group_;
  }
  return group ? group->maps_pool() : Status(Code::kClosed, "the group was shut down");
}

// CPU is the device that c10d passes without an index. (Python passes the device: bindings.cpp.)
bool ProcessGroupMcast::supportsTensorAlloc(c10::DeviceIndex device) {
  return device < 0 && maps_memory().ok();
}

std::shared_ptr<c10::Allocator> ProcessGroupMcast::getMemAllocator() {
  const Status status = maps_memory();
  if (status.ok()) return ArenaAllocator::instance();
  const std::string what = context(kCall, sequence_);
  const bool refused =
      status.code() == Code::kUnavailable || status.code() == Code::kResourceExhausted;
  if (!refused) throw_status(status, what);
  C10_THROW_ERROR(NotImplementedError, what + ": " + status.message() +
                                           "; supports_tensor_alloc() is False: use torch.empty()");
}

at::Tensor ProcessGroupMcast::allocateTensor(long size, at::TensorOptions options) {
  TORCH_CHECK_VALUE(options.device().is_cpu(), kCall, ": expected device cpu, got ",
                    options.device(), ": engines of the host map CPU tensors only");
  TORCH_CHECK_VALUE(options.layout() == c10::kStrided && !options.pinned_memory(), kCall,
                    ": expected a strided tensor that is not pinned");
  TORCH_CHECK_VALUE(size >= 0, kCall, ": expected a number of elements, got ", size);
  const auto allocator = getMemAllocator();
  at::Tensor tensor =
      at::detail::empty_generic({size}, allocator.get(), c10::DispatchKeySet(c10::DispatchKey::CPU),
                                c10::typeMetaToScalarType(options.dtype()), std::nullopt);
  const auto& global = at::globalContext();
  if (global.deterministicAlgorithms() && global.deterministicFillUninitializedMemory()) {
    at::native::fill_empty_deterministic_(tensor);
  }
  return tensor;
}

}  // namespace mcast::pg
