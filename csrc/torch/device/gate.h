// Gates: words of pinned host memory that a device stream waits for and writes, so that stream and
// network go hand in hand without a thread that calls the device. The host opens a gate with an
// ordinary store.
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
  // Enqueued on `stream`: nothing after it starts before int32(*word - value) >= 0. `word` lies in
  // pinned memory and outlives that.
  virtual void wait(const c10::Stream& stream, uint32_t* word, uint32_t value) const = 0;
  // Enqueued on `stream`: *word = value, after the effects of everything before it.
  virtual void signal(const c10::Stream& stream, uint32_t* word, uint32_t value) const = 0;
};

// The gate of this device type, or null. Tried out on the first call for CUDA.
const Gate* gate_of(c10::Device device);

// The same as the setting `device_wait` wants it. auto: null also where a stream that waits at a
// gate holds up other streams, since they share a hardware queue: kernels of the caller would wait
// for the network. That is tried out on the first call, which takes a second where it is so.
const Gate* gate_for(c10::Device device, const std::string& device_wait);

// Whether commands on this stream go into a graph that is being captured.
bool is_captured(const c10::Stream& stream);

// While it lives, calls of this thread to devices of this type leave graph captures of other
// threads alone. (Otherwise CUDA ends such a capture with an error, in its default mode, as soon as
// any thread asks whether an event has been reached.) Without effect where the device has no such
// thing.
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
// out-of-tree kind; before the first operation on them. Null wait or signal: no gate. `mode`, or
// null: exchanges the capture mode of the calling thread with *mode (0 global, 2 relaxed: CUDA's
// numbers). `captured`, or null: sets *captured to whether commands on the stream go into a graph.
using GateFunction = int (*)(int64_t stream_id, int device_index, uint32_t* word, uint32_t value);
using CaptureModeFunction = int (*)(int* mode);
using CapturedFunction = int (*)(int64_t stream_id, int device_index, int* captured);
void set_gate(c10::DeviceType type, GateFunction wait, GateFunction signal,
              CaptureModeFunction mode, CapturedFunction captured);

}  // namespace mcast::pg
