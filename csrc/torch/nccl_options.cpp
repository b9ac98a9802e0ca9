// Recognised by its attributes, not by its class, which a torch without NCCL lacks. The object is
// released with Python's lock, wherever the last options that share it end.
#include "nccl_options.h"

namespace py = pybind11;

namespace mcast::pg {

void set_nccl_options(McastOptions& options, const py::object& value) {
  if (value.is_none()) {
    options.nccl = nullptr;
    return;
  }
  if (!py::hasattr(value, "is_high_priority_stream") || !py::hasattr(value, "_timeout")) {
    throw py::type_error("nccl: expected torch.distributed.ProcessGroupNCCL.Options, got " +
                         py::cast<std::string>(py::str(py::type::of(value))));
  }
  options.nccl = std::shared_ptr<void>(py::object(value).release().ptr(), [](void* held) {
    if (Py_IsInitialized() == 0) return;
    const py::gil_scoped_acquire gil;
    Py_DECREF(static_cast<PyObject*>(held));
  });
}

py::object nccl_options(const McastOptions& options) {
  if (!options.nccl) return py::none();
  return py::reinterpret_borrow<py::object>(static_cast<PyObject*>(options.nccl.get()));
}

}  // namespace mcast::pg
