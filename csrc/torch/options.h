// torch_mcast.Options: settings of one group, as c10d options. Holds only what was given
// explicitly; environment and defaults are added when a group is made (Config::resolve).
//
// Threads: like any Python object, one at a time; a group copies it. Errors: c10::ValueError with
// the text of Config::resolve.
#pragma once

#include <torch/version.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <map>
#include <memory>
#include <string>

#include "base/config.h"

namespace mcast::pg {

inline constexpr const char* kBackendName = "mcast";

struct McastOptions final : c10d::Backend::Options {
  explicit McastOptions(std::chrono::milliseconds limit = kBackendDefaultTimeout)
      : c10d::Backend::Options(kBackendName, limit) {}

  // Checks the value immediately, so that a typing error is reported at its origin.
  void set(const std::string& name, const std::string& text);
  void unset(const std::string& name) { settings.erase(name); }
  // Explicit settings take precedence over the environment, which takes precedence over defaults.
  Config resolve() const;
  bool operator==(const McastOptions& other) const;
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 14
  c10::intrusive_ptr<c10d::Backend::Options> clone() const override {
    return c10::make_intrusive<McastOptions>(*this);
  }
#endif
  // Options(eager='65536', fallback='gloo', timeout=...), as a user would type it.
  std::string repr() const;

  std::map<std::string, std::string> settings;  // name -> text
  // Backend for calls that the engine does not serve: "auto" (gloo; nccl for CUDA tensors if
  // built), "gloo", "none".
  std::string fallback = "auto";
  // Options of the fallback for CUDA tensors: a Python object, ProcessGroupNCCL.Options. Null:
  // torch's defaults. Copies share it.
  std::shared_ptr<void> nccl;
};

// Returns the table's row, or nullptr.
const SettingInfo* find_setting(const std::string& name);

}  // namespace mcast::pg
