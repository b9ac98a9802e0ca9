// Reductions write a target only after every source's bytes have left the device (the result of a
// segment needs all contributions), so all_reduce and reduce work in place.
//
// Outputs that overlap need no temporaries here, unlike on the CPU: they are written from host
// memory in rank order on one stream, so the last rank's bytes stay. An input that shares bytes
// with another rank's output is copied first, since it is read while outputs are being written.
#include "device/device_plan.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>

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

void set_source(DevicePlan& transfer, const at::Tensor& input, int rank) {
  transfer.kind = DevicePlan::Kind::gather;
  transfer.block = input.nbytes();
  transfer.dtype = input.scalar_type();
  if (transfer.block == 0) return;
  at::Tensor plain = readable_on_device(input);
  DeviceBytes& source = transfer.sources.emplace_back(bytes_of(plain));
  DeviceBytes& own = transfer.targets[static_cast<size_t>(rank)];
  if (same_start(source, own)) {
    own = {};  // in place
    const bool shared =
        std::any_of(transfer.targets.begin(), transfer.targets.end(),
                    [&](const DeviceBytes& target) { return overlap(source, target); });
    if (!shared) return;
    own = source;  // its place belongs to other ranks too, so it is written in rank order
  }
  transfer.own_copy = true;
  if (std::any_of(transfer.targets.begin(), transfer.targets.end(),
                  [&](const DeviceBytes& target) { return overlap(source, target); })) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    plain = plain.clone();
    source = bytes_of(plain);
  }
}

// Copies `source` on the device if `target` shares bytes with it.
void set_apart(DeviceBytes& source, const DeviceBytes& target) {
  if (!overlap(source, target)) return;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const at::Tensor copy = source.view(0, source.length).clone();
  source = {copy.storage(), 0, source.length};
}

// A reduction of one contribution: a copy on the device.
DevicePlan alone(const at::Tensor& input, const at::Tensor& output, const Reducing& how,
                 CopyBacks& back) {
  if (how.reduction != Reduction::kPremulSum || input.nbytes() == 0) {
    return plan_transfer(input, output, 0, 1, back);
  }
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  return plan_transfer(input.mul(how.factor), output, 0, 1, back);
}

DevicePlan scatter_blocks(std::vector<DeviceBytes> blocks, const at::Tensor& output,
                          const Reducing& how, int rank, CopyBacks& back) {
  DevicePlan transfer;
  transfer.kind = DevicePlan::Kind::scatter;
  transfer.block = output.nbytes();
  transfer.dtype = output.scalar_type();
  transfer.how = how;
  transfer.targets.resize(1);
  transfer.sources = std::move(blocks);
  if (transfer.block == 0) return transfer;
  const DeviceBytes& target = transfer.targets[0] = bytes_of(writable_on_device(output, back));
  for (size_t i = 0; i < transfer.sources.size(); ++i) {
    // The output may be this rank's block: bytes that become final there have been sent before.
    const bool own = i == static_cast<size_t>(rank) && same_start(transfer.sources[i], target);
    if (!own) set_apart(transfer.sources[i], target);
  }
  return transfer;
}

// Without elements yet; `offset` in elements.
at::Tensor bare_view(const c10::Storage& storage, at::ScalarType type, size_t offset) {
  at::Tensor bare = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(storage),
      c10::DispatchKeySet(c10::computeDispatchKey(type, at::kStrided, storage.device())),
      c10::scalarTypeToTypeMeta(type));
  bare.unsafeGetTensorImpl()->set_storage_offset(static_cast<int64_t>(offset));
  return bare;
}

}  // namespace

at::Tensor DeviceBytes::view(size_t from, size_t count) const {
  at::Tensor bytes = bare_view(storage, at::kByte, offset + from);
  bytes.unsafeGetTensorImpl()->set_sizes_contiguous({static_cast<int64_t>(count)});
  return bytes;
}

std::vector<DeviceBytes> adjoining(const std::vector<DeviceBytes>& ranges) {
  std::vector<DeviceBytes> joined;
  for (const DeviceBytes& range : ranges) {
    if (range.length == 0) continue;
    if (!joined.empty() && joined.back().storage.data() == range.storage.data() &&
        joined.back().offset + joined.back().length == range.offset) {
      joined.back().length += range.length;
    } else {
      joined.push_back(range);
    }
  }
  return joined;
}

at::Tensor spread_elements(const DeviceBytes& range, at::ScalarType type) {
  constexpr size_t kSpread = 512;
  const size_t size = std::min<size_t>(c10::elementSize(type), sizeof(int64_t));
  const at::ScalarType integer = size == 1   ? at::kChar
                                 : size == 2 ? at::kShort
                                 : size == 4 ? at::kInt
                                             : at::kLong;
  at::Tensor elements = bare_view(range.storage, integer, range.offset / size);
  const size_t count = type == at::kBool ? 0 : (range.length + kSpread - 1) / kSpread;
  const std::array sizes{static_cast<int64_t>(count)};
  const std::array strides{static_cast<int64_t>(kSpread / size)};
  elements.unsafeGetTensorImpl()->set_sizes_and_strides(c10::IntArrayRef(sizes),
                                                        c10::IntArrayRef(strides));
  return elements;
}

DevicePlan plan_broadcast(const at::Tensor& tensor, Member root, bool is_root, CopyBacks& back) {
  DevicePlan transfer;
  transfer.root = root;
  transfer.block = tensor.nbytes();
  transfer.dtype = tensor.scalar_type();
  transfer.targets.resize(1);
  if (transfer.block == 0) return transfer;
  if (is_root) {
    transfer.sources.push_back(bytes_of(readable_on_device(tensor)));
  } else {
    transfer.targets[0] = bytes_of(writable_on_device(tensor, back));
  }
  return transfer;
}

DevicePlan plan_transfer(const at::Tensor& input, const at::Tensor& output, int rank, int size,
                         CopyBacks& back) {
  DevicePlan transfer;
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

DevicePlan plan_transfer(const at::Tensor& input, const std::vector<at::Tensor>& outputs, int rank,
                         CopyBacks& back) {
  DevicePlan transfer;
  transfer.targets.resize(outputs.size());
  for (size_t i = 0; i < outputs.size() && input.nbytes() > 0; ++i) {
    transfer.targets[i] = bytes_of(writable_on_device(outputs[i], back));
  }
  set_source(transfer, input, rank);
  return transfer;
}

DevicePlan plan_scatter(const at::Tensor& input, const at::Tensor& output, const Reducing& how,
                        int rank, int size, CopyBacks& back) {
  if (size == 1) return alone(input, output, how, back);
  const DeviceBytes all = bytes_of(readable_on_device(input));
  const size_t block = output.nbytes();
  std::vector<DeviceBytes> blocks;
  for (size_t r = 0; r < static_cast<size_t>(size); ++r) {
    blocks.push_back({all.storage, all.offset + r * block, block});
  }
  return scatter_blocks(std::move(blocks), output, how, rank, back);
}

DevicePlan plan_scatter(const std::vector<at::Tensor>& inputs, const at::Tensor& output,
                        const Reducing& how, int rank, CopyBacks& back) {
  if (inputs.size() == 1) return alone(inputs[0], output, how, back);
  std::vector<DeviceBytes> blocks;
  for (const at::Tensor& input : inputs) blocks.push_back(bytes_of(readable_on_device(input)));
  return scatter_blocks(std::move(blocks), output, how, rank, back);
}

DevicePlan plan_allreduce(const at::Tensor& tensor, const Reducing& how, int size,
                          CopyBacks& back) {
  if (size == 1) return alone(tensor, tensor, how, back);
  DevicePlan transfer;
  transfer.kind = DevicePlan::Kind::all_reduce;
  transfer.block = tensor.nbytes();
  transfer.dtype = tensor.scalar_type();
  transfer.how = how;
  transfer.targets.resize(static_cast<size_t>(size));
  if (transfer.block == 0) return transfer;
  const at::Tensor plain = readable_on_device(tensor);
  if (!plain_on_device(tensor)) back.add(plain, tensor);
  const DeviceBytes all = transfer.sources.emplace_back(bytes_of(plain));
  const size_t element = element_size(how.element), count = all.length / element;
  const size_t members = transfer.targets.size();
  const size_t share = (count + members - 1) / members * element;  // as in docs/protocol.md 11
  for (size_t m = 0; m < members; ++m) {
    const size_t at = std::min(m * share, all.length);
    transfer.targets[m] = {all.storage, all.offset + at, std::min(share, all.length - at)};
  }
  return transfer;
}

DevicePlan plan_reduce(const at::Tensor& tensor, Member root, const Reducing& how, int rank,
                       int size, CopyBacks& back) {
  if (size == 1) return alone(tensor, tensor, how, back);
  DevicePlan transfer;
  transfer.kind = DevicePlan::Kind::reduce;
  transfer.root = root;
  transfer.block = tensor.nbytes();
  transfer.dtype = tensor.scalar_type();
  transfer.how = how;
  transfer.targets.resize(1);
  if (transfer.block == 0) return transfer;
  const at::Tensor plain = readable_on_device(tensor);
  transfer.sources.push_back(bytes_of(plain));
  if (root == rank) {
    if (!plain_on_device(tensor)) back.add(plain, tensor);
    transfer.targets[0] = transfer.sources[0];
  }
  return transfer;
}

DevicePlan plan_send(const at::Tensor& tensor, Member peer) {
  CopyBacks none;
  DevicePlan transfer = plan_broadcast(tensor, peer, true, none);
  transfer.kind = DevicePlan::Kind::send;
  return transfer;
}

DevicePlan plan_receive(const at::Tensor& tensor, Member peer, CopyBacks& back) {
  DevicePlan transfer = plan_broadcast(tensor, peer, false, back);
  transfer.kind = DevicePlan::Kind::receive;
  return transfer;
}

}  // namespace mcast::pg
