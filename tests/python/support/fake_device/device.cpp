// The fake device as torch sees it: PrivateUse1 with an allocator, pinned memory, a guard, copies
// that run on streams, and everything else on the CPU. Freed memory is overwritten in the order of
// the stream that it was allocated on, as the next owner of a caching allocator would do, unless
// recordDataPtrOnStream() has named other streams to wait for. Pinned memory is overwritten at
// once.
#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/view_as_real_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <cstring>
#include <set>

#include "runtime.h"

namespace fake {
namespace {

constexpr auto kType = c10::DeviceType::PrivateUse1;

struct Block {
  void* data;
  size_t size;
  int64_t stream;
  std::set<int64_t> users;
};

void free_block(void* context) {
  auto* const block = static_cast<Block*>(context);
  try {
    std::vector<MarkPtr> marks;
    for (const int64_t user : block->users) marks.push_back(record(user));
    enqueue(block->stream, [block, marks] {
      for (const auto& mark : marks) wait(mark);
      std::memset(block->data, 0xdd, block->size);
      std::free(block->data);
      delete block;
    });
  } catch (const Fault&) {  // leaked
  }
}

struct Allocator final : c10::Allocator {
  c10::DataPtr allocate(size_t size) override {
    void* const data = std::malloc(std::max<size_t>(size, 1));
    std::memset(data, 0xa5, size);
    return {data, new Block{data, size, current_stream(), {}}, free_block, {kType, 0}};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, size_t size) const override {
    std::memcpy(to, from, size);
  }
};

struct PinnedAllocator final : c10::Allocator {
  struct Range {
    char* data;
    size_t size;
  };
  static std::mutex& mutex() {
    static auto* const one = new std::mutex;
    return *one;
  }
  static std::vector<Range*>& ranges() {
    static auto* const all = new std::vector<Range*>;
    return *all;
  }
  static void free_range(void* context) {
    auto* const range = static_cast<Range*>(context);
    const std::lock_guard lock(mutex());
    std::erase(ranges(), range);
    std::memset(range->data, 0xee, range->size);
    std::free(range->data);
    delete range;
  }
  static bool contains(const void* data) {
    const std::lock_guard lock(mutex());
    for (const Range* range : ranges()) {
      if (data >= range->data && data < range->data + range->size) return true;
    }
    return false;
  }
  c10::DataPtr allocate(size_t size) override {
    auto* const range = new Range{static_cast<char*>(std::malloc(std::max<size_t>(size, 1))), size};
    const std::lock_guard lock(mutex());
    ranges().push_back(range);
    return {range->data, range, free_range, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, size_t size) const override {
    std::memcpy(to, from, size);
  }
};

c10::Stream stream_of(int64_t id) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(kType, 0), id);
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device) const override { return {kType, 0}; }
  c10::Device getDevice() const override { return {kType, 0}; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  c10::Stream getStream(c10::Device) const override { return stream_of(current_stream()); }
  c10::Stream getDefaultStream(c10::Device) const override { return stream_of(0); }
  c10::Stream getStreamFromGlobalPool(c10::Device, bool high) const override {
    static std::atomic<int64_t> next{0};
    device().change([] { device().pooled++; });
    return stream_of(1 + next++ % kPool + (high ? kPool : 0));
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    return stream_of(exchange_stream(stream.id()));
  }
  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex,
              const c10::EventFlag) const override {
    if (*event == nullptr) *event = new MarkPtr;
    *static_cast<MarkPtr*>(*event) = fake::record(stream.id());
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event != nullptr) fake::block(*static_cast<MarkPtr*>(event), stream.id());
  }
  bool queryEvent(void* event) const override {
    return event == nullptr || reached(*static_cast<MarkPtr*>(event));
  }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) sync(*static_cast<MarkPtr*>(event));
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete static_cast<MarkPtr*>(event);
  }
  bool queryStream(const c10::Stream& stream) const override { return idle(stream.id()); }
  void synchronizeStream(const c10::Stream& stream) const override {
    sync(fake::record(stream.id()));
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    if (data.get_context() != nullptr) {
      static_cast<Block*>(data.get_context())->users.insert(stream.id());
    }
  }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  void setCurrentDevice(c10::DeviceIndex) const override {}
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex) const override { return 0; }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex) const override { return 0; }
  bool isPinnedPtr(const void* data) const override { return PinnedAllocator::contains(data); }
  c10::Allocator* getPinnedMemoryAllocator() const override {
    static auto* const allocator = new PinnedAllocator;
    return allocator;
  }
};

at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>,
                 std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(size, at::GetAllocator(kType),
                                   c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                         std::optional<at::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(size, stride, at::GetAllocator(kType),
                                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           c10::dtype_or_default(dtype));
}

// Holds no reference to the tensors, like real hardware.
std::function<at::Tensor()> raw(const at::Tensor& tensor) {
  return [data = tensor.data_ptr(), sizes = tensor.sizes().vec(), strides = tensor.strides().vec(),
          dtype = tensor.scalar_type(), conjugate = tensor.is_conj()] {
    const at::Tensor bare = at::from_blob(data, sizes, strides, at::TensorOptions().dtype(dtype));
    return conjugate ? bare.conj() : bare;
  };
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  const bool out = to.is_cpu();
  const bool in = from.is_cpu();
  const at::Tensor same = from.sizes() == to.sizes() ? from : from.expand(to.sizes());
  const bool staged = (out || in) && non_blocking &&
                      PinnedAllocator::contains(out ? to.data_ptr() : from.data_ptr());
  const int way = out ? 0 : 1;
  enqueue(current_stream(), [source = raw(same), target = raw(to), staged, way] {
    Device& d = device();
    if (staged) d.wait_until([&] { return d.copies[way] < d.allowed[way]; });
    target().copy_(source());
    if (staged) d.change([&] { d.copies[way]++; });
  });
  if ((out || in) && !staged) sync(record(current_stream()));
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  at::native::resize_(to, from.sizes(), std::nullopt);
  return copy_from(from, to, false);
}

at::Tensor& masked_fill(at::Tensor& self, const at::Tensor& mask, const at::Scalar& value) {
  enqueue(current_stream(), [target = raw(self), where = raw(mask), value] {
    target().masked_fill_(where(), value);
  });
  return self;
}

at::Tensor as_strided(const at::Tensor& self, at::IntArrayRef size, at::IntArrayRef stride,
                      std::optional<int64_t> offset) {
  return at::native::as_strided_tensorimpl(self, size, stride, offset);
}

at::Tensor view(const at::Tensor& self, at::IntArrayRef size) {
  return at::native::view(self, size);
}

at::Tensor reshape_alias(const at::Tensor& self, at::IntArrayRef size, at::IntArrayRef stride) {
  return at::native::as_strided_tensorimpl(self, size, stride, self.storage_offset());
}

const at::Tensor& resize(const at::Tensor& self, at::IntArrayRef size,
                         std::optional<at::MemoryFormat> format) {
  return at::native::resize_(self, size, format);
}

void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  at::native::cpu_fallback(op, stack);
}

// An asynchronous kernel: every byte ^= value.
void flip(const at::Tensor& tensor, int64_t value) {
  enqueue(current_stream(),
          [data = static_cast<uint8_t*>(tensor.data_ptr()), n = tensor.nbytes(), value] {
            for (size_t i = 0; i < n; i++) data[i] ^= static_cast<uint8_t>(value);
          });
}

// Commands after it on the current stream do not run before one more call of release().
void hold() {
  enqueue(current_stream(), [] {
    Device& d = device();
    d.wait_until([&] { return d.open_holds > 0; });
    d.change([&] { d.open_holds--; });
  });
}

void def_counter(torch::Library& m, const char* name, int64_t Device::*counter) {
  m.def(name, [counter] {
    const std::lock_guard lock(device().mutex);
    return device().*counter;
  });
}

TORCH_LIBRARY(fake_device, m) {
  m.def("init", [] {
    at::RegisterPrivateUse1HooksInterface(new Hooks);
    c10::SetAllocator(kType, new Allocator);
  });
  m.def("flip(Tensor(a!) tensor, int value) -> ()");
  m.def("hold", hold);
  m.def("release", [] { device().change([] { device().open_holds++; }); });
  m.def("synchronize", [] { sync(record(current_stream())); });
  m.def("fault", [](bool on) { device().change([&] { device().faulted = on; }); });
  def_counter(m, "gates", &Device::gates);
  def_counter(m, "pooled", &Device::pooled);
  def_counter(m, "asked", &Device::asked);
  def_counter(m, "blocked", &Device::blocked);
  m.def("block_asking", [](bool on) { device().change([&] { device().block_asking = on; }); });
  // true begins a capture; false ends it and returns how many calls would have broken it.
  m.def("capture", [](bool begin) {
    const std::lock_guard lock(device().mutex);
    device().capturing = begin;
    return device().broken_captures;
  });
  // The same for the current stream; false returns the number of commands that it was given.
  m.def("capture_here", [](bool begin) {
    const std::lock_guard lock(device().mutex);
    device().captured = begin ? current_stream() : -1;
    return std::exchange(device().captured_commands, 0);
  });
  m.def("use_stream", [](int64_t id) { return exchange_stream(id); });
  m.def("copies", [](int64_t way) {
    const std::lock_guard lock(device().mutex);
    return device().copies[way];
  });
  // Lets `more` copies run from now on; a negative number lets all run.
  m.def("allow", [](int64_t way, int64_t more) {
    Device& d = device();
    d.change([&] { d.allowed[way] = more < 0 ? INT64_MAX : d.copies[way] + more; });
  });
  // Returns the first n bytes as they are now, without waiting.
  m.def("peek(Tensor tensor, int n) -> Tensor");
}

at::Tensor peek(const at::Tensor& tensor, int64_t n) {
  return at::from_blob(tensor.data_ptr(), {n}, at::TensorOptions().dtype(at::kByte)).clone();
}

TORCH_LIBRARY_IMPL(fake_device, PrivateUse1, m) {
  m.impl("flip", flip);
  m.impl("peek", peek);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("masked_fill_.Scalar", masked_fill);
  m.impl("as_strided", as_strided);
  m.impl("view", view);
  m.impl("view_as_real", at::native::view_as_real);
  m.impl("_reshape_alias", reshape_alias);
  m.impl("resize_", resize);
}

// copy_from() handles lazily conjugated tensors itself, because resolving them uses copies.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

}  // namespace
}  // namespace fake
