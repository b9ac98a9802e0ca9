// Command lines of services: a table of options, from which parsing, errors and --help are
// generated. "--name value" and "--name=value" are the same.
#pragma once

#include <algorithm>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/units.h"

namespace mcast::service {

// One row of the table of options, as text for users.
struct OptionInfo {
  const char* name;      // "--quota"
  const char* argument;  // "BYTES"
  const char* fallback;  // "512M"
  const char* help;
};

enum class Action : uint8_t { kServe, kHelp, kVersion };

template <typename Options>
struct OptionRow {
  OptionInfo info;
  std::string allowed;
  // Returns false if the value is not allowed.
  std::function<bool(const std::string&, Options&)> read;
};

// A whole number from `least` to `most`.
template <typename T>
bool read_whole(std::string_view text, T& out, uint64_t least, uint64_t most) {
  uint64_t value = 0;
  if (!read_number(text, value, most) || value < least) return false;
  out = static_cast<T>(value);
  return true;
}

// A size in bytes, from `least` to `most`.
inline bool read_bytes(const std::string& text, uint64_t& out, uint64_t least, uint64_t most) {
  uint64_t bytes = 0;
  if (!parse_size(text, bytes) || bytes < least || bytes > most) return false;
  out = bytes;
  return true;
}

inline Status usage_error(const std::string& message) {
  return Status(Code::kInvalidArgument, message + "; --help lists the options");
}

// `arguments`: without the program's name. kInvalidArgument names the option, the value and the
// allowed values. If an option is given twice, both values are read, in their order.
template <typename Options>
Result<Action> parse_options(const std::vector<OptionRow<Options>>& rows,
                             const std::vector<std::string>& arguments, Options& options) {
  for (size_t i = 0; i < arguments.size(); i++) {
    const std::string& word = arguments[i];
    if (word == "-h" || word == "--help") return Action::kHelp;
    if (word == "--version") return Action::kVersion;
    const size_t equals = word.find('=');
    const std::string name = word.substr(0, equals);
    const auto row = std::find_if(rows.begin(), rows.end(),
                                  [&name](const auto& r) { return name == r.info.name; });
    if (row == rows.end()) return usage_error("no option \"" + word + "\"");
    if (equals == std::string::npos && i + 1 == arguments.size()) {
      return usage_error("option " + name + " needs a value: " + row->info.argument);
    }
    const std::string value =
        equals == std::string::npos ? arguments[++i] : word.substr(equals + 1);
    if (!row->read(value, options)) {
      return usage_error("option " + name + ": \"" + value +
                         "\" is not valid; allowed: " + row->allowed);
    }
  }
  return Action::kServe;
}

// The options' part of --help.
template <typename Options>
std::string options_help(const std::vector<OptionRow<Options>>& rows) {
  std::string text = "options:\n";
  for (const auto& row : rows) {
    text += "  " + std::string(row.info.name) + " " + row.info.argument + "\n      " +
            row.info.help + "\n      default: " + row.info.fallback + "\n";
  }
  return text + "  --version\n  -h, --help\n";
}

}  // namespace mcast::service
