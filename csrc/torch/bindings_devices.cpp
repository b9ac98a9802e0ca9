// Python functions for devices: register gates of other accelerators, and clear failures.
#include <pybind11/stl.h>

#include "bindings.h"
#include "device/failure_policy.h"
#include "device/gate.h"
#include "device/pinned.h"

namespace py = pybind11;

namespace mcast::pg {

py::dict device_dict() {
  const PinnedUse use = pinned_use();
  py::dict result;
  result["pinned_bytes"] = use.bytes;
  result["pinned_peak"] = use.peak;
  result["pinned_waits"] = use.waits;
  return result;
}

void bind_devices(py::module_& module) {
  module.def(
      "set_gate",
      [](const std::string& device, uintptr_t wait, uintptr_t signal, uintptr_t capture_mode,
         uintptr_t is_captured) {
        set_gate(c10::Device(device).type(), reinterpret_cast<GateFunction>(wait),
                 reinterpret_cast<GateFunction>(signal),
                 reinterpret_cast<CaptureModeFunction>(capture_mode),
                 reinterpret_cast<CapturedFunction>(is_captured));
      },
      py::arg("device"), py::arg("wait"), py::arg("signal"), py::arg("capture_mode") = 0,
      py::arg("is_captured") = 0,
      "Addresses of C functions of a device type. Streams wait for, and write, a word of pinned\n"
      "memory: int (*)(int64_t stream_id, int device_index, uint32_t* word, uint32_t value);\n"
      "0 and 0: none, so wait() blocks its caller. The capture mode of the calling thread is\n"
      "exchanged (0 global, 2 relaxed): int (*)(int* mode); 0: the device captures no graphs.\n"
      "Whether a stream is being captured: int (*)(int64_t stream_id, int device_index,\n"
      "int* captured); 0: torch's guard is asked.");
  module.def("device_stats", &device_dict,
             "Resources that device tensors of this process have used.");
  module.def(
      "clear_failure",
      [](const std::optional<std::string>& device) {
        clear_failures(device ? std::optional(c10::Device(*device)) : std::nullopt);
      },
      py::arg("device") = py::none(),
      "Forgets failures that make calls on this device raise; None: on any.");
}

}  // namespace mcast::pg
