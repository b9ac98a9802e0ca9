// A file is split into #include lines (from the original text, since their names may be string
// literals) and code without comments and literals. Includes are checked against the order of the
// folders and the lists of headers that a folder must not include; code is searched for whole
// identifiers that a folder must not use. The checker sees no types and follows no includes: a rule
// is broken where the name is written, and since every file is checked, nothing is missed.
#include "layers/layer_rules.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <optional>

namespace mcast::layers {
namespace {

constexpr std::string_view kCode = "csrc/", kCore = "csrc/core/";
constexpr std::string_view kDpa = "csrc/dpa/", kDpaCounting = "csrc/dpa/rv64/";
constexpr size_t kMaxLines = 800;

// Files that print dates for people and base no wait on them.
constexpr std::string_view kTellsTheDate[] = {"torch_mcast/_trace.py"};

// The modules of the core, lowest first. A file includes its own module and lower ones, by paths
// relative to csrc/core.
constexpr std::array<std::string_view, 8> kOrder = {"base",     "wire",       "crypto", "transport",
                                                    "protocol", "collective", "shm",    "runtime"};

// The modules beside the core: optional products, and what is made of them. A file includes its own
// module and those named here, by paths relative to csrc; "core" is all of the core, "aggregation"
// all modules of that folder.
struct Module {
  std::string_view path;
  std::array<std::string_view, 8> may;
};
constexpr Module kModules[] = {
    {"daemon", {"base"}},
    {"aggregation/plan", {"base", "wire", "protocol", "collective"}},
    {"aggregation/fold",
     {"aggregation/plan", "base", "wire", "transport", "protocol", "collective"}},
    {"aggregation/member", {"aggregation/plan", "core"}},
    {"aggregation/server",
     {"aggregation/plan", "aggregation/fold", "daemon", "base", "wire", "crypto", "transport",
      "collective"}},
    {"host_engine/ipc", {"core"}},
    {"host_engine/client", {"host_engine/ipc", "core"}},
    {"host_engine/server", {"host_engine/ipc", "host_engine/client", "daemon", "core"}},
    {"assembly", {"aggregation/member", "host_engine/client", "core"}},
    {"programs", {"assembly", "aggregation/server", "host_engine/server", "daemon", "core"}},
    {"sim/network", {"core"}},
    {"sim/world", {"sim/network", "aggregation", "core"}},
    {"sim/swarm", {"sim/world", "sim/network", "aggregation", "core"}},
    {"sim", {"sim/swarm", "sim/world", "sim/network", "core"}},
    {"torch", {"assembly", "host_engine/client", "core"}},
};

// Modules of state machines: no sockets, threads or clocks; their callers provide what they need of
// these. `drivers`: files, without their endings, that drive the machines in the same module; the
// machines do not include them.
struct Machines {
  std::string_view module;
  std::array<std::string_view, 16> drivers;
};
constexpr Machines kMachines[] = {
    {"core/wire", {}},
    {"core/protocol", {}},
    {"core/collective", {}},
    {"core/crypto", {"arena", "library", "secret"}},
    {"core/shm",
     {"arena_pool", "attachment", "directory", "futex", "inbox", "lane", "mailbox", "peer_registry",
      "peer_watch", "process", "published", "segment", "shared", "thread"}},
    {"aggregation/plan", {}},
    {"aggregation/fold", {}},
    {"aggregation/member",
     {"admission_link", "member_aggregation", "name_lookup", "registrar_thread",
      "station_requests"}},
    {"host_engine/ipc", {}},
};

// Virtual time must be the only source of time here.
constexpr std::string_view kVirtualTime[] = {"csrc/sim/network/", "csrc/sim/world/",
                                             "csrc/sim/swarm/"};

bool starts_with(std::string_view text, std::string_view prefix) {
  return text.substr(0, prefix.size()) == prefix;
}
bool ends_with(std::string_view text, std::string_view suffix) {
  return text.size() >= suffix.size() && text.substr(text.size() - suffix.size()) == suffix;
}
template <typename List>
bool contains(const List& list, std::string_view word) {
  return std::find(std::begin(list), std::end(list), word) != std::end(list);
}
bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

std::optional<size_t> layer_of(std::string_view name) {
  const auto* at = std::find(kOrder.begin(), kOrder.end(), name);
  if (at == kOrder.end()) return std::nullopt;
  return static_cast<size_t>(at - kOrder.begin());
}

bool is_in(std::string_view path, std::string_view folder) {
  return starts_with(path, folder) && path.size() > folder.size() && path[folder.size()] == '/';
}

// The module beside the core that `path`, relative to csrc, is in; null if there is none. ("sim" is
// listed after its parts.)
const Module* module_of(std::string_view path) {
  const auto* const at =
      std::find_if(std::begin(kModules), std::end(kModules),
                   [&](const Module& module) { return is_in(path, module.path); });
  return at == std::end(kModules) ? nullptr : at;
}

// Whether the file `path`, relative to csrc, is listed as a driver in a module of state machines.
bool is_driver(const Machines& machines, std::string_view path) {
  if (!is_in(path, machines.module)) return false;
  const std::string_view file = path.substr(machines.module.size() + 1);
  return !file.empty() && contains(machines.drivers, file.substr(0, file.find('.')));
}

struct Line {
  size_t number;
  std::string_view text;
};

std::vector<Line> split_lines(std::string_view text) {
  std::vector<Line> lines;
  for (size_t at = 0, number = 1; at < text.size(); ++number) {
    const size_t end = std::min(text.find('\n', at), text.size());
    lines.push_back({number, text.substr(at, end - at)});
    at = end + 1;
  }
  return lines;
}

struct Include {
  size_t line;
  std::string_view name;
  bool quoted;
};

// Targets of "#include <x>" and `#include "x"`, with blanks anywhere a compiler allows them.
std::vector<Include> find_includes(std::string_view text) {
  std::vector<Include> found;
  for (const auto& [number, line] : split_lines(text)) {
    size_t at = line.find_first_not_of(" \t");
    if (at == std::string_view::npos || line[at] != '#') continue;
    at = line.find_first_not_of(" \t", at + 1);
    if (at == std::string_view::npos || !starts_with(line.substr(at), "include")) continue;
    at = line.find_first_of("<\"", at);
    if (at == std::string_view::npos) continue;
    const bool quoted = line[at] == '"';
    const size_t end = line.find(quoted ? '"' : '>', at + 1);
    if (end == std::string_view::npos) continue;
    found.push_back({number, line.substr(at + 1, end - at - 1), quoted});
  }
  return found;
}

bool is_torch_or_python(std::string_view header) {
  for (const std::string_view prefix : {"torch/", "ATen/", "c10/", "caffe2/", "pybind11/"}) {
    if (starts_with(header, prefix)) return true;
  }
  return header == "Python.h" || ends_with(header, "/Python.h");
}

// Sockets, threads, clocks, RDMA: headers that a state machine must not include.
bool is_environment(std::string_view header) {
  for (const std::string_view prefix :
       {"netinet/", "arpa/", "net/", "linux/", "infiniband/", "rdma/"}) {
    if (starts_with(header, prefix)) return true;
  }
  static constexpr std::string_view kHeaders[] = {"sys/socket.h",
                                                  "sys/un.h",
                                                  "sys/epoll.h",
                                                  "sys/eventfd.h",
                                                  "sys/timerfd.h",
                                                  "poll.h",
                                                  "netdb.h",
                                                  "unistd.h",
                                                  "pthread.h",
                                                  "thread",
                                                  "mutex",
                                                  "shared_mutex",
                                                  "future",
                                                  "semaphore",
                                                  "latch",
                                                  "barrier",
                                                  "condition_variable",
                                                  "stop_token",
                                                  "chrono",
                                                  "ctime",
                                                  "time.h",
                                                  "sys/time.h",
                                                  "random"};
  return contains(kHeaders, header);
}

class Checker {
 public:
  Checker(std::string_view path, std::string_view text)
      : path_(path), text_(text), code_(code_only(text)) {
    if (!starts_with(path_, kCode)) return;
    inner_ = path_.substr(kCode.size());
    if (starts_with(path_, kCore)) {
      const std::string_view file = path_.substr(kCore.size());
      folder_ = file.substr(0, file.find('/'));
    } else {
      module_ = module_of(inner_);
    }
    for (const Machines& one : kMachines) {
      if (is_in(inner_, one.module) && !is_driver(one, inner_)) machines_ = &one;
    }
    for (const std::string_view folder : kVirtualTime) {
      if (starts_with(path_, folder)) virtual_time_ = true;
    }
  }

  std::vector<std::string> run() {
    if (const size_t lines = count_lines(text_); lines > kMaxLines) {
      report(lines, std::to_string(lines) + " lines, at most " + std::to_string(kMaxLines));
    }
    if (starts_with(path_, "csrc/")) check_style();
    check_clocks();
    if (starts_with(path_, kCore) || module_ != nullptr) check_module();
    if (starts_with(path_, kDpa)) check_dpa();
    return std::move(broken_);
  }

 private:
  void report(size_t line, std::string why) {
    broken_.push_back(std::string(path_) + ":" + std::to_string(line) + ": " + std::move(why));
  }

  void check_style() {
    if (ends_with(path_, ".cpp") || ends_with(path_, ".c")) {
      // The first paragraph: comment lines from the first line on, which must say more than a name.
      size_t letters = 0;
      for (const auto& [number, line] : split_lines(text_)) {
        if (!starts_with(line, "//")) break;
        for (const char c : line) letters += std::isalpha(static_cast<unsigned char>(c)) != 0;
      }
      if (letters < 30) report(1, "a source starts with a comment that tells what the file does");
    }
    if (ends_with(path_, ".h") && code_.find("#pragma once") == std::string::npos) {
      report(1, "a header has #pragma once");
    }
    for (const auto& [number, line] : split_lines(text_)) {
      for (const std::string_view mark : {"TODO", "FIXME", "XXX"}) {
        if (find_word(line, mark) != std::string_view::npos) {
          report(number, "unfinished: " + std::string(mark));
        }
      }
    }
  }

  // A clock that can be set may jump backwards, or ahead by years: a deadline on it passes
  // immediately or never.
  void check_clocks() {
    const std::string why = "a clock that can be set; deadlines and durations are monotonic";
    if (starts_with(path_, "csrc/")) {
      forbid(why, {"system_clock", "high_resolution_clock", "utc_clock", "gettimeofday",
                   "CLOCK_REALTIME", "CLOCK_REALTIME_COARSE", "CLOCK_TAI", "timespec_get", "time",
                   "pthread_cond_timedwait", "sem_timedwait", "pthread_mutex_timedlock"});
    } else if (starts_with(path_, "torch_mcast/") && !contains(kTellsTheDate, path_)) {
      for (const auto& [number, line] : split_lines(text_)) {
        for (const std::string_view call : {"time.time(", "time.time_ns(", "datetime.now("}) {
          if (line.find(call) != std::string_view::npos)
            report(number, std::string(call) + ": " + why);
        }
      }
    }
  }

  void check_module() {
    if (module_ == nullptr && !layer_of(folder_)) {
      report(1, "a file of csrc/core is in one of the modules' folders");
      return;
    }
    for (const Include& include : find_includes(text_)) check_include(include);
    if (machines_ != nullptr || virtual_time_) {
      forbid("reads a clock; time is an argument here",
             {"steady_clock", "system_clock", "high_resolution_clock", "clock_gettime",
              "gettimeofday", "__rdtsc", "time", "clock", "sleep", "usleep", "nanosleep"});
    }
    const bool program =
        module_ != nullptr && (module_->path == "programs" || module_->path == "sim");
    if (!is_in(inner_, "torch") && !program) {
      forbid("core has no exceptions; return a Status", {"throw"});
    }
  }

  // Freestanding code may include the compiler's own headers and those of its folder. The driver
  // that counts instructions uses the tests' NIC model.
  void check_dpa() {
    static constexpr std::string_view kAllowed[] = {"stdint.h", "dpa.h", "mlx5_format.h",
                                                    "order.h"};
    if (starts_with(path_, kDpaCounting)) return;
    for (const Include& include : find_includes(text_)) {
      if (!contains(kAllowed, include.name)) {
        report(include.line, "csrc/dpa is freestanding, it includes " + std::string(include.name));
      }
    }
  }

  void check_include(const Include& include) {
    const std::string name(include.name);
    const bool torch = is_in(inner_, "torch");
    if (!torch && is_torch_or_python(name)) {
      report(include.line, "core includes " + name);
      return;
    }
    if ((machines_ != nullptr || virtual_time_) && is_environment(name)) {
      report(include.line, here() + " includes " + name);
    }
    const std::string target = name.substr(0, name.find('/'));
    const std::optional<size_t> layer =
        name.find('/') == std::string::npos ? std::nullopt : layer_of(target);
    const Module* const module = layer ? nullptr : module_of(name);
    if (!layer && module == nullptr) {
      if (include.quoted && !torch) report(include.line, name + " is not relative to csrc/core");
      return;
    }
    // (In crypto/ machines hold secrets, too.)
    if (machines_ != nullptr && machines_->module != "core/crypto" &&
        is_driver(*machines_, layer ? "core/" + name : name)) {
      report(include.line,
             "the state machine of " + here() + " includes " + name + ", which drives it");
    }
    if (module_ != nullptr) {
      if (module != module_ && !may_include(layer ? target : module->path, layer.has_value())) {
        report(include.line, here() + " includes " + name + ", of a module that it must not know");
      }
    } else if (module != nullptr) {
      report(include.line, here() + " includes " + name + ": the core knows no product");
    } else {
      check_layer(include.line, name, target, *layer);
    }
  }

  bool may_include(std::string_view target, bool core) const {
    for (const std::string_view one : module_->may) {
      if (one.empty()) continue;
      if (one == target || is_in(target, one) || (core && one == "core")) return true;
    }
    return false;
  }

  // An include within the core.
  void check_layer(size_t line, const std::string& name, const std::string& target, size_t theirs) {
    if (theirs > *layer_of(folder_)) {
      report(line, here() + " includes the higher layer " + target);
    }
    if (folder_ == "collective" && target == "transport" && name != "transport/transport.h") {
      report(line, here() + " includes " + name + "; of transport only the contract is allowed");
    }
    if (folder_ == "protocol" && target != "protocol" && target != "base" && target != "wire") {
      report(line, "protocol includes " + target + "; only base and wire are allowed");
    }
  }

  // The module's name, for messages.
  std::string here() const { return std::string(module_ != nullptr ? module_->path : folder_); }

  static size_t find_word(std::string_view text, std::string_view word, size_t from = 0) {
    for (size_t at = text.find(word, from); at != std::string_view::npos;
         at = text.find(word, at + 1)) {
      const size_t end = at + word.size();
      const bool begins = at == 0 || !is_word(text[at - 1]);
      const bool ends = end == text.size() || !is_word(text[end]);
      if (begins && ends) return at;
    }
    return std::string_view::npos;
  }

  // Short names are common as variables and members; only a call of the free function counts.
  static bool needs_call(std::string_view word) {
    static constexpr std::string_view kCalls[] = {"time", "clock", "sleep", "usleep", "nanosleep"};
    return contains(kCalls, word);
  }
  static bool is_free_call(std::string_view line, size_t at, size_t size) {
    const size_t open = line.find_first_not_of(" \t", at + size);
    if (open == std::string_view::npos || line[open] != '(') return false;
    size_t before = at;
    while (before > 0 && line[before - 1] == ' ') --before;
    if (before == 0) return true;
    const std::string_view head = line.substr(0, before);
    // "Nanos time(" is a declaration; "x.time(" and "x->time(" call one of our members.
    if (is_word(head.back())) return ends_with(head, "return");
    if (head.back() == '>' || head.back() == '&' || head.back() == '*') return false;
    return head.back() != '.';
  }

  void forbid(const std::string& why, std::initializer_list<std::string_view> words) {
    for (const auto& [number, line] : split_lines(code_)) {
      for (const std::string_view word : words) {
        for (size_t at = find_word(line, word); at != std::string_view::npos;
             at = find_word(line, word, at + 1)) {
          if (needs_call(word) && !is_free_call(line, at, word.size())) continue;
          report(number, std::string(word) + ": " + why);
        }
      }
    }
  }

  std::string_view path_;
  std::string_view text_;
  std::string code_;
  std::string_view inner_;              // the path, relative to csrc
  std::string_view folder_;             // of csrc/core; empty for others
  const Module* module_ = nullptr;      // beside the core; null for others
  const Machines* machines_ = nullptr;  // null: not one of these
  bool virtual_time_ = false;
  std::vector<std::string> broken_;
};

}  // namespace

std::string code_only(std::string_view text) {
  std::string out(text);
  const auto blank = [&](size_t from, size_t to) {
    for (size_t i = from; i < to && i < out.size(); ++i) {
      if (out[i] != '\n') out[i] = ' ';
    }
  };
  const auto end_of = [&](std::string_view what, size_t from) {
    const size_t at = text.find(what, from);
    return at == std::string_view::npos ? text.size() : at + what.size();
  };
  size_t i = 0;
  while (i < text.size()) {
    const char c = text[i];
    if (starts_with(text.substr(i), "//")) {
      const size_t end = std::min(text.find('\n', i), text.size());
      blank(i, end);
      i = end;
    } else if (starts_with(text.substr(i), "/*")) {
      const size_t end = end_of("*/", i + 2);
      blank(i, end);
      i = end;
    } else if (starts_with(text.substr(i), "R\"") && (i == 0 || !is_word(text[i - 1]))) {
      const size_t open = std::min(text.find('(', i), text.size());
      const std::string close = ")" + std::string(text.substr(i + 2, open - i - 2)) + "\"";
      const size_t end = end_of(close, open);
      blank(i + 2, end - 1);
      i = end;
    } else if (c == '"' || (c == '\'' && (i == 0 || !is_word(text[i - 1])))) {
      // A ' after a digit or letter separates digits (1'000).
      size_t end = i + 1;
      while (end < text.size() && text[end] != c && text[end] != '\n') {
        end += text[end] == '\\' ? 2 : 1;
      }
      blank(i + 1, end);
      i = end + 1;
    } else {
      ++i;
    }
  }
  return out;
}

std::vector<std::string> files_with_a_place() {
  std::vector<std::string> files;
  for (const Machines& machines : kMachines) {
    for (const std::string_view driver : machines.drivers) {
      if (driver.empty()) continue;
      files.push_back("csrc/" + std::string(machines.module) + "/" + std::string(driver));
    }
  }
  for (const std::string_view path : kTellsTheDate) {
    files.emplace_back(path.substr(0, path.rfind('.')));
  }
  return files;
}

std::span<const std::string_view> folders() { return kOrder; }

std::vector<std::string_view> modules() {
  std::vector<std::string_view> all;
  for (const Module& module : kModules) all.push_back(module.path);
  return all;
}

size_t count_lines(std::string_view text) {
  const auto ends = static_cast<size_t>(std::count(text.begin(), text.end(), '\n'));
  return ends + (text.empty() || text.back() == '\n' ? 0 : 1);
}

std::vector<std::string> check_file(std::string_view path, std::string_view text) {
  return Checker(path, text).run();
}

}  // namespace mcast::layers
