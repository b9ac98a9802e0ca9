// The CUDA gate is used only after a trial: on a stream of the pool, wait for a word that is set
// already and write another, then check it. The trial fails, and there is no gate, with drivers
// that lack the functions, devices that refuse them, and builds of torch that do not expose their
// stream handles (or whose "cuda" is ROCm).
#include "device/gate.h"

#include <ATen/Context.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "base/log.h"
#include "device/said.h"
#include "device/words.h"

namespace mcast::pg {
namespace {

template <typename Guard>
void* native_handle(const Guard& guard, const c10::Stream& stream) {
  if constexpr (requires { guard.getStreamNativeHandle(stream); }) {
    return guard.getStreamNativeHandle(stream);
  } else {
    return nullptr;  // an older torch
  }
}

template <typename Guard>
bool capturing(const Guard& guard, const c10::Stream& stream) {
  if constexpr (requires { guard.isStreamCapturing(stream); }) {
    return guard.isStreamCapturing(stream);
  } else {
    return false;  // an older torch
  }
}

// Returns null unless torch has loaded the driver and the driver has the function.
template <typename Function>
Function cuda_function(const char* name) {
  void* const library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  return library == nullptr ? nullptr : reinterpret_cast<Function>(dlsym(library, name));
}

// The driver's answer, whatever torch knows; empty if the driver cannot be queried.
std::optional<bool> captured_by_driver(const c10::Stream& stream) {
  using Function = int (*)(void* stream, int* status);
  static const auto ask = cuda_function<Function>("cuStreamIsCapturing");
  void* const handle = native_handle(c10::impl::VirtualGuardImpl(stream.device_type()), stream);
  // The default stream (also as the constant 1) cannot be captured, and querying it is an error
  // while other streams are. Its handle is null; it is also null if torch exposes none.
  constexpr uintptr_t kLegacyStream = 1;
  if (ask == nullptr || handle == nullptr) return std::nullopt;
  if (reinterpret_cast<uintptr_t>(handle) == kLegacyStream) return false;
  const c10::DeviceGuard device(stream.device());
  int status = 0;  // 0 none, 1 active, 2 invalidated
  const int error = ask(handle, &status);
  TORCH_CHECK(error == 0, "mcast: cuStreamIsCapturing failed with CUDA driver error ", error);
  return status != 0;
}

class CudaGate final : public Gate {
 public:
  CudaGate()
      : address_(cuda_function<Address>("cuMemHostGetDevicePointer_v2")),
        wait_(cuda_function<Operation>("cuStreamWaitValue32_v2")),
        write_(cuda_function<Operation>("cuStreamWriteValue32_v2")) {}

  // Throws or returns false if it does not work.
  bool try_out(c10::Device device) const {
    if (address_ == nullptr || wait_ == nullptr || write_ == nullptr) return false;
    const c10::impl::VirtualGuardImpl guard(device.type());
    const c10::Stream stream = guard.getStreamFromGlobalPool(device, true);
    if (native_handle(guard, stream) == nullptr) return false;
    const RelaxedCaptures relaxed(device.type());
    const at::Tensor words =
        at::empty({2}, at::TensorOptions().dtype(at::kInt).pinned_memory(true));
    auto* const word = static_cast<uint32_t*>(words.mutable_data_ptr());
    word[0] = 5;
    word[1] = 0;
    wait(stream, word, 4);
    signal(stream, word + 1, 7);
    guard.synchronizeStream(stream);
    return static_cast<volatile uint32_t*>(word)[1] == 7;
  }

  void wait(const c10::Stream& stream, uint32_t* word, uint32_t value) const override {
    enqueue(wait_, "cuStreamWaitValue32", stream, word, value);
  }
  void signal(const c10::Stream& stream, uint32_t* word, uint32_t value) const override {
    enqueue(write_, "cuStreamWriteValue32", stream, word, value);
  }

 private:
  using Pointer = unsigned long long;  // CUdeviceptr
  using Address = int (*)(Pointer*, void*, unsigned);
  using Operation = int (*)(void* stream, Pointer, uint32_t value, unsigned flags);

  // Flags 0: wait for >= in cyclic order; write after a memory barrier.
  void enqueue(Operation operation, const char* name, const c10::Stream& stream, uint32_t* word,
               uint32_t value) const {
    const c10::StreamGuard current(stream);  // selects the stream's device too, so that the context
                                             // is correct
    const c10::impl::VirtualGuardImpl guard(stream.device_type());
    Pointer pointer = 0;
    int error = address_(&pointer, word, 0);
    if (error == 0) error = operation(native_handle(guard, stream), pointer, value, 0);
    TORCH_CHECK(error == 0, "mcast: ", name, " failed with CUDA driver error ", error);
  }

  const Address address_;
  const Operation wait_;
  const Operation write_;
};

class ForeignGate final : public Gate {
 public:
  ForeignGate(GateFunction for_wait, GateFunction for_signal)
      : wait_(for_wait), signal_(for_signal) {}
  void wait(const c10::Stream& stream, uint32_t* word, uint32_t value) const override {
    const int error = wait_(stream.id(), stream.device_index(), word, value);
    TORCH_CHECK(error == 0, "mcast: the gate of ", stream.device(), " failed to wait: ", error);
  }
  void signal(const c10::Stream& stream, uint32_t* word, uint32_t value) const override {
    const int error = signal_(stream.id(), stream.device_index(), word, value);
    TORCH_CHECK(error == 0, "mcast: the gate of ", stream.device(), " failed to signal: ", error);
  }

 private:
  const GateFunction wait_;
  const GateFunction signal_;
};

// Leaked, like every object that streams may still use at exit.
struct Gates {
  std::mutex mutex;
  std::map<c10::DeviceType, const Gate*> foreign;
  std::map<c10::DeviceIndex, const Gate*> cuda;
  std::map<std::pair<c10::DeviceType, c10::DeviceIndex>, bool> passed;  // streams pass others that
                                                                        // wait
  std::map<c10::DeviceType, CaptureModeFunction> modes;
  std::map<c10::DeviceType, CapturedFunction> captured;
};
Gates& gates() {
  static auto* const all = new Gates;
  return *all;
}

constexpr int kRelaxed = 2;

// Returns the calling thread's previous mode.
int exchange_capture_mode(c10::DeviceType type, int mode) {
  CaptureModeFunction exchange = nullptr;
  if (type == c10::DeviceType::CUDA) {
    static const auto of_cuda =
        cuda_function<CaptureModeFunction>("cuThreadExchangeStreamCaptureMode");
    exchange = of_cuda;
  } else {
    Gates& all = gates();
    std::lock_guard lock(all.mutex);
    const auto found = all.modes.find(type);
    if (found != all.modes.end()) exchange = found->second;
  }
  if (exchange != nullptr) exchange(&mode);
  return mode;
}

CapturedFunction captured_function(c10::DeviceType type) {
  Gates& all = gates();
  const std::lock_guard lock(all.mutex);
  const auto found = all.captured.find(type);
  return found == all.captured.end() ? nullptr : found->second;
}

const Gate* make_cuda_gate(c10::Device device) {
  auto gate = std::make_unique<CudaGate>();
  std::string why = "the driver or torch lacks what it needs";
  try {
    if (gate->try_out(device)) return gate.release();
  } catch (const std::exception& error) {
    why = said(error);
  }
  log(LogLevel::kInfo, "%s: no stream gate (%s); wait() blocks the calling thread",
      device.str().c_str(), why.c_str());
  return nullptr;
}

// Megatron sets it to 1, so that kernels start in the order of their launches.
bool one_connection() {
  const char* const text = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
  return text != nullptr && std::strtol(text, nullptr, 10) == 1;
}

// Returns true if kernels and copies run on streams while another stream waits at a gate. Some
// streams may share the queue of the one that waits, so it is enough if one of several passes.
bool others_pass(const Gate& gate, c10::Device device) {
  constexpr int kOthers = 3;
  constexpr std::chrono::seconds kLimit(1);
  const c10::impl::VirtualGuardImpl guard(device.type());
  const RelaxedCaptures relaxed(device.type());
  const at::Tensor words =
      at::empty({2 + kOthers}, at::TensorOptions().dtype(at::kInt).pinned_memory(true));
  const at::Tensor there = at::empty({1}, at::TensorOptions().dtype(at::kInt).device(device));
  auto* const word = static_cast<uint32_t*>(words.mutable_data_ptr());
  for (int i = 0; i < 1 + kOthers; ++i) store(word + i, 0);
  std::vector<c10::Stream> streams;
  for (int i = 0; i < 1 + kOthers; ++i) {
    streams.push_back(guard.getStreamFromGlobalPool(device, true));
  }
  gate.wait(streams[0], word, 1);
  for (int i = 1; i <= kOthers; ++i) {
    const c10::StreamGuard current(streams[static_cast<size_t>(i)]);
    words.slice(0, 1 + kOthers).copy_(there, true);
    gate.signal(streams[static_cast<size_t>(i)], word + i, 1);
  }
  bool passed = false;
  const auto end = std::chrono::steady_clock::now() + kLimit;
  while (!passed && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::microseconds(100));
    for (int i = 1; i <= kOthers; ++i) passed = passed || load(word + i) != 0;
  }
  store(word, 1);
  for (const c10::Stream& stream : streams) guard.synchronizeStream(stream);
  return passed;
}

// The result of others_pass(), which runs once.
bool streams_pass(const Gate& gate, c10::Device device) {
  static std::mutex asking;
  const std::lock_guard once(asking);
  Gates& all = gates();
  const std::pair key(device.type(), device.index());
  {
    const std::lock_guard lock(all.mutex);
    const auto found = all.passed.find(key);
    if (found != all.passed.end()) return found->second;
  }
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const bool connected = !device.is_cuda() || !one_connection();
  const bool passed = connected && others_pass(gate, device);
  if (!passed) {
    log(LogLevel::kInfo, "%s: wait() blocks the calling thread, since %s (device_wait=auto)",
        device.str().c_str(),
        connected ? "a stream that waits holds up the others" : "CUDA_DEVICE_MAX_CONNECTIONS is 1");
  }
  const std::lock_guard lock(all.mutex);
  return all.passed[key] = passed;
}

}  // namespace

const Gate* gate_for(c10::Device device, const std::string& device_wait) {
  if (device_wait == "host") return nullptr;
  const Gate* const gate = gate_of(device);
  if (gate == nullptr || device_wait == "stream") return gate;
  return streams_pass(*gate, device) ? gate : nullptr;
}

const Gate* gate_of(c10::Device device) {
  Gates& all = gates();
  std::lock_guard lock(all.mutex);
  if (device.is_cuda()) {
    const auto [found, added] = all.cuda.try_emplace(device.index(), nullptr);
    if (added) found->second = make_cuda_gate(device);
    return found->second;
  }
  const auto found = all.foreign.find(device.type());
  return found == all.foreign.end() ? nullptr : found->second;
}

void set_gate(c10::DeviceType type, GateFunction wait, GateFunction signal,
              CaptureModeFunction mode, CapturedFunction captured) {
  Gates& all = gates();
  std::lock_guard lock(all.mutex);
  all.foreign[type] =
      wait == nullptr || signal == nullptr ? nullptr : new ForeignGate(wait, signal);
  all.modes[type] = mode;
  all.captured[type] = captured;
}

bool is_captured(const c10::Stream& stream) {
  if (stream.device().is_cuda()) {
    if (const std::optional<bool> known = captured_by_driver(stream)) return *known;
  } else if (const CapturedFunction ask = captured_function(stream.device_type())) {
    int captured = 0;
    const int error = ask(stream.id(), stream.device_index(), &captured);
    TORCH_CHECK(error == 0, "mcast: ", stream.device(), " failed to say whether a stream is being ",
                "captured: ", error);
    return captured != 0;
  }
  return capturing(c10::impl::VirtualGuardImpl(stream.device_type()), stream);
}

RelaxedCaptures::RelaxedCaptures(c10::DeviceType type)
    : type_(type), before_(exchange_capture_mode(type, kRelaxed)) {}

RelaxedCaptures::~RelaxedCaptures() { exchange_capture_mode(type_, before_); }

}  // namespace mcast::pg
