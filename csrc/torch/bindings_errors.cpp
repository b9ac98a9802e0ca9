// Names and fields of errors, for torch_mcast.read_error().
#include <charconv>

#include "base/errors.h"
#include "bindings.h"

namespace py = pybind11;

namespace mcast::pg {
namespace {

py::dict read_error(const std::string& text) {
  const auto found = find_error(text);
  const Code code = found ? row_of(found->id).code : find_code(text);
  py::dict fields;
  if (found) {
    for (const auto& [name, value] : found->fields) {
      uint64_t number = 0;
      const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
      const bool whole = error == std::errc() && end == value.data() + value.size();
      fields[name.c_str()] = whole ? py::object(py::int_(number)) : py::object(py::str(value));
    }
  }
  py::dict out;
  out["code"] = code == Code::kOk ? py::object(py::none()) : py::object(py::str(code_name(code)));
  out["error"] = found ? py::object(py::str(row_of(found->id).name)) : py::object(py::none());
  out["fields"] = fields;
  return out;
}

}  // namespace

void bind_errors(py::module_& module) {
  module.def("read_error", &read_error, py::arg("text"),
             "code, error and fields of an error text.");
}

}  // namespace mcast::pg
