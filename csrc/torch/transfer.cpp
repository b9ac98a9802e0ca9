// Outputs that overlap need no temporaries here, unlike on the CPU: they are written from host
// memory in rank order on one stream, so the last rank's bytes stay. An input that shares bytes
// with another rank's output is copied first, since it is read while outputs are being written.
#include "transfer.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace mcast::pg {
namespace {

bool plain_on_device(const at::Tensor& tensor) {
  return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

at::Tensor readable_on_device(const at::Tensor& tensor) {
  if (plain_on_device(tensor)) return tensor;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  return tensor.resolve_conj().resolve_neg().contiguous();
}

at::Tensor writable_on_device(const at::Tensor& tensor, CopyBacks& back) {
  if (plain_on_device(tensor)) return tensor;
  at::Tensor plain =
      at::empty(tensor.sizes(),
                tensor.options().memory_format(at::MemoryFormat::Contiguous).requires_grad(false));
  back.add(plain, tensor);
  return plain;
}

DeviceBytes bytes_of(const at::Tensor& plain) {
  return {plain.storage(), static_cast<size_t>(plain.storage_offset()) * plain.element_size(),
          plain.nbytes()};
}

bool same_start(const DeviceBytes& a, const DeviceBytes& b) {
  return a.storage.data() == b.storage.data() && a.offset == b.offset;
}

bool overlap(const DeviceBytes& a, const DeviceBytes& b) {
  if (a.length == 0 || b.length == 0) return false;
  const auto* const first = static_cast<const std::byte*>(a.storage.data()) + a.offset;
  const auto* const other = static_cast<const std::byte*>(b.storage.data()) + b.offset;
  return first < other + b.length && other < first + a.length;
}

void set_source(Transfer& transfer, const at::Tensor& input, int rank) {
  transfer.gather = true;
  transfer.block = input.nbytes();
  transfer.dtype = input.scalar_type();
  if (transfer.block == 0) return;
  at::Tensor plain = readable_on_device(input);
  transfer.source = bytes_of(plain);
  DeviceBytes& own = transfer.targets[static_cast<size_t>(rank)];
  if (same_start(transfer.source, own)) {
    own = {};  // in place
    const bool shared =
        std::any_of(transfer.targets.begin(), transfer.targets.end(),
                    [&](const DeviceBytes& target) { return overlap(transfer.source, target); });
    if (!shared) return;
    own = transfer.source;  // its place belongs to other ranks too: written in their order
  }
  transfer.own_copy = true;
  if (std::any_of(transfer.targets.begin(), transfer.targets.end(),
                  [&](const DeviceBytes& target) { return overlap(transfer.source, target); })) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    plain = plain.clone();
    transfer.source = bytes_of(plain);
  }
}

}  // namespace

at::Tensor DeviceBytes::view(size_t from, size_t count) const {
  at::Tensor bytes = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(storage),
      c10::DispatchKeySet(c10::computeDispatchKey(at::kByte, at::kStrided, storage.device())),
      caffe2::TypeMeta::Make<uint8_t>());
  bytes.unsafeGetTensorImpl()->set_storage_offset(static_cast<int64_t>(offset + from));
  bytes.unsafeGetTensorImpl()->set_sizes_contiguous({static_cast<int64_t>(count)});
  return bytes;
}

Transfer plan_broadcast(const at::Tensor& tensor, Member root, bool is_root, CopyBacks& back) {
  Transfer transfer;
  transfer.root = root;
  transfer.block = tensor.nbytes();
  transfer.dtype = tensor.scalar_type();
  transfer.targets.resize(1);
  if (transfer.block == 0) return transfer;
  if (is_root) {
    transfer.source = bytes_of(readable_on_device(tensor));
  } else {
    transfer.targets[0] = bytes_of(writable_on_device(tensor, back));
  }
  return transfer;
}

Transfer plan_transfer(const at::Tensor& input, const at::Tensor& output, int rank, int size,
                       CopyBacks& back) {
  Transfer transfer;
  transfer.targets.resize(static_cast<size_t>(size));
  if (input.nbytes() > 0) {
    const DeviceBytes all = bytes_of(writable_on_device(output, back));
    for (size_t i = 0; i < transfer.targets.size(); ++i) {
      transfer.targets[i] = {all.storage, all.offset + i * input.nbytes(), input.nbytes()};
    }
  }
  set_source(transfer, input, rank);
  return transfer;
}

Transfer plan_transfer(const at::Tensor& input, const std::vector<at::Tensor>& outputs, int rank,
                       CopyBacks& back) {
  Transfer transfer;
  transfer.targets.resize(outputs.size());
  for (size_t i = 0; i < outputs.size() && input.nbytes() > 0; ++i) {
    transfer.targets[i] = bytes_of(writable_on_device(outputs[i], back));
  }
  set_source(transfer, input, rank);
  return transfer;
}

}  // namespace mcast::pg
