// Gates: words of pinned host memory for which a device stream waits and to which it writes, so
// that stream and network synchronise without a thread that calls the device. The host opens a gate
// with an ordinary store.
//
// CUDA: stream memory operations of the driver (cuStreamWaitValue32, cuStreamWriteValue32,
// cuThreadExchangeStreamCaptureMode and cuStreamIsCapturing), found with dlsym() in the libcuda
// that torch has loaded; no header, no link. Other devices may bring their own with set_gate().
// Without one, device_copies.h falls back to events.
//
// Threads: all functions from any thread. Errors: c10::Error.
#pragma once

#include <c10/core/Stream.h>

#include <cstdint>
#include <string>

namespace mcast::pg {

class Gate {
 public:
  virtual ~Gate() = default;
  // Enqueued on `stream`: no later command starts before int32(*word - value) >= 0. `word` lies in
  // pinned memory that outlives the command.
  virtual void wait(const c10::Stream& stream, uint32_t* word, uint32_t value) const = 0;
  // Enqueued on `stream`: *word = value, after the effects of everything before it.
  virtual void signal(const c10::Stream& stream, uint32_t* word, uint32_t value) const = 0;
};

// The gate of this device type, or null. For CUDA the first call tries it out.
const Gate* gate_of(c10::Device device);

// The same according to the setting `device_wait`. auto: also null if a stream that waits at a gate
// blocks other streams, because they share a hardware queue: the caller's kernels would wait for
// the network. The first call tries this out, which takes a second if they do.
const Gate* gate_for(c10::Device device, const std::string& device_wait);

// Returns true if commands on this stream are captured into a graph.
bool is_captured(const c10::Stream& stream);

// While it lives, calls of this thread to devices of this type do not disturb graph captures of
// other threads. (Otherwise CUDA ends such a capture with an error, in its default mode, as soon as
// any thread queries an event.) Has no effect if the device has no such mode.
class RelaxedCaptures {
 public:
  explicit RelaxedCaptures(c10::DeviceType type);
  ~RelaxedCaptures();
  RelaxedCaptures(const RelaxedCaptures&) = delete;
  RelaxedCaptures& operator=(const RelaxedCaptures&) = delete;

 private:
  const c10::DeviceType type_;
  int before_;
};

// A device's own functions, C functions that return 0 for success. For devices of torch's
// out-of-tree kind; call it before the first operation on them. Null wait or signal: no gate.
// `mode`, or null: exchanges the capture mode of the calling thread with *mode (0 global, 2
// relaxed: CUDA's numbers). `captured`, or null: sets *captured to whether commands on the stream
// go into a graph.
using GateFunction = int (*)(int64_t stream_id, int device_index, uint32_t* word, uint32_t value);
using CaptureModeFunction = int (*)(int* mode);
using CapturedFunction = int (*)(int64_t stream_id, int device_index, int* captured);
void set_gate(c10::DeviceType type, GateFunction wait, GateFunction signal,
              CaptureModeFunction mode, CapturedFunction captured);

}  // namespace mcast::pg
