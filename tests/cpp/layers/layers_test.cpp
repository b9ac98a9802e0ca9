// Checks the source tree against the project's rules, and the checker against texts that break each
// rule: a checker that reports nothing must be known to be able to report something.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>

#include "layers/layer_rules.h"
#include "support/place.h"

namespace mcast::layers {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

struct Source {
  std::string path;
  std::string text;
};

// All our sources in the folders that hold code.
std::vector<Source> read_tree() {
  const fs::path root(test::kSourceDir);
  std::vector<Source> sources;
  for (const char* folder : {"csrc", "tests", "benchmarks", "examples", "torch_mcast"}) {
    if (!fs::exists(root / folder)) continue;
    for (const auto& entry : fs::recursive_directory_iterator(root / folder)) {
      const std::string extension = entry.path().extension();
      if (!entry.is_regular_file()) continue;
      if (extension != ".h" && extension != ".cpp" && extension != ".c" && extension != ".py" &&
          extension != ".sh") {
        continue;
      }
      std::ifstream file(entry.path(), std::ios::binary);
      sources.push_back({fs::relative(entry.path(), root).generic_string(),
                         std::string(std::istreambuf_iterator<char>(file), {})});
    }
  }
  return sources;
}

TEST(Layers, TheTreeKeepsTheRules) {
  const auto sources = read_tree();
  size_t core = 0;
  for (const Source& source : sources) {
    core += source.path.rfind("csrc/core/", 0) == 0;
    for (const std::string& broken : check_file(source.path, source.text)) {
      ADD_FAILURE() << broken;
    }
  }
  EXPECT_GT(core, 10u) << "the tree was not found at " << test::kSourceDir;
}

TEST(Layers, TheRulesNameWhatIsThere) {
  std::set<std::string> there;
  for (const Source& source : read_tree()) {
    there.insert(source.path.substr(0, source.path.rfind('.')));
  }
  for (const std::string& file : files_with_a_place()) {
    EXPECT_TRUE(there.count(file) > 0) << file << " is gone: so is its rule";
  }
  for (const std::string_view folder : folders()) {
    EXPECT_TRUE(fs::is_directory(fs::path(test::kSourceDir) / "csrc/core" / folder)) << folder;
  }
  for (const std::string_view module : modules()) {
    EXPECT_TRUE(fs::is_directory(fs::path(test::kSourceDir) / "csrc" / module)) << module;
  }
}

// Each state machine of protocol/ has a test of its own, in a file with its name.
TEST(Layers, EveryMachineHasATestUnderItsName) {
  const std::string machines = "csrc/core/protocol/", tests = "tests/cpp/protocol/";
  std::set<std::string> there;
  for (const Source& source : read_tree()) there.insert(source.path);
  for (const std::string& path : there) {
    if (path.rfind(machines, 0) != 0 || fs::path(path).extension() != ".h") continue;
    if (path == machines + "announce.h") continue;  // names of choices, not a state machine
    const std::string test = tests + fs::path(path).stem().string() + "_test.cpp";
    EXPECT_TRUE(there.count(test) > 0) << test;
  }
}

TEST(Layers, TheMedianFileOfTheCoreIsShort) {
  std::vector<size_t> lines;
  for (const Source& source : read_tree()) {
    if (source.path.rfind("csrc/", 0) == 0) lines.push_back(count_lines(source.text));
  }
  ASSERT_FALSE(lines.empty());
  std::sort(lines.begin(), lines.end());
  EXPECT_LT(lines[lines.size() / 2], 250u);
}

// A header of a folder with one line of content.
std::vector<std::string> header(const std::string& folder, const std::string& line) {
  return check_file("csrc/core/" + folder + "/x.h", "#pragma once\n" + line + "\n");
}

TEST(Checker, TorchAndPythonAreRefusedInCore) {
  for (const char* name : {"torch/torch.h", "ATen/ATen.h", "c10/util/Exception.h", "Python.h",
                           "python3.11/Python.h", "pybind11/pybind11.h"}) {
    EXPECT_THAT(header("runtime", "#include <" + std::string(name) + ">"),
                ElementsAre(HasSubstr("csrc/core/runtime/x.h:2: core includes")))
        << name;
  }
  EXPECT_THAT(check_file("csrc/torch/x.h", "#pragma once\n#include <torch/torch.h>\n"), IsEmpty());
}

TEST(Checker, SocketThreadAndClockHeadersInStateMachines) {
  for (const char* name :
       {"sys/socket.h", "netinet/in.h", "arpa/inet.h", "thread", "mutex", "chrono", "time.h",
        "infiniband/verbs.h", "rdma/rdma_cma.h", "condition_variable", "sys/epoll.h", "ctime"}) {
    const std::string line = "#include <" + std::string(name) + ">";
    for (const char* folder : {"protocol", "collective", "wire"}) {
      EXPECT_THAT(header(folder, line), ElementsAre(HasSubstr(name))) << folder;
    }
    EXPECT_THAT(header("transport", line), IsEmpty()) << name;
  }
  EXPECT_THAT(header("protocol", "#include <vector>"), IsEmpty());
}

// In shm/, a file that is not listed as a driver belongs to the state machine.
TEST(Checker, ShmStateMachineMayNotUseThreadsClocksOrDrivers) {
  const auto shm = [](const std::string& file, const std::string& line) {
    return check_file("csrc/core/shm/" + file, "#pragma once\n" + line + "\n");
  };
  for (const char* line :
       {"#include <thread>", "#include <mutex>", "#include <unistd.h>", "#include <linux/futex.h>",
        "clock_gettime(CLOCK_MONOTONIC, &ts);", "#include \"shm/lane.h\"",
        "#include \"shm/futex.h\"", "#include \"shm/peer_registry.h\""}) {
    for (const char* file : {"core.h", "control_block.h", "needs.h", "new.h",
                             "algorithms/algorithms.h", "algorithms/lane.h"}) {
      EXPECT_THAT(shm(file, line), ElementsAre(HasSubstr("csrc/core/shm/"))) << file << line;
    }
    EXPECT_THAT(shm("lane.h", line), IsEmpty()) << line;
    EXPECT_THAT(shm("peer_registry.h", line), IsEmpty()) << line;
  }
  EXPECT_THAT(shm("core.h", "#include \"shm/needs.h\""), IsEmpty());
  EXPECT_THAT(shm("lane.h", "#include \"shm/core.h\""), IsEmpty());
  EXPECT_THAT(shm("lane.h", "#include \"runtime/group.h\""), ElementsAre(HasSubstr("higher")));
}

TEST(Checker, TheSimulatedNetworkHasNoClockButItsOwn) {
  for (const char* line : {"#include <thread>", "#include <random>", "#include <chrono>",
                           "#include <sys/socket.h>", "clock_gettime(CLOCK_MONOTONIC, &ts);"}) {
    const std::string text = "#pragma once\n" + std::string(line) + "\n";
    EXPECT_THAT(check_file("csrc/sim/network/x.h", text), Not(IsEmpty())) << line;
    EXPECT_THAT(check_file("csrc/core/transport/udp/x.h", text), IsEmpty()) << line;
  }
}

TEST(Checker, EveryPairOfLayersIsAllowedOrRefused) {
  const std::vector<std::string> order(folders().begin(), folders().end());
  for (size_t from = 0; from < order.size(); ++from) {
    for (size_t to = 0; to < order.size(); ++to) {
      const auto broken = header(order[from], "#include \"" + order[to] + "/y.h\"");
      // State machines may use less of transport/ and crypto/ than the order of the folders allows.
      const bool narrowed = (order[to] == "transport" &&
                             (order[from] == "protocol" || order[from] == "collective")) ||
                            (order[to] == "crypto" && order[from] == "protocol");
      EXPECT_EQ(broken.empty(), to <= from && !narrowed) << order[from] << " -> " << order[to];
      if (to > from) {
        EXPECT_THAT(broken.at(0), HasSubstr("higher layer " + order[to]));
      }
    }
  }
  EXPECT_THAT(header("base", "#include <runtime/engine.h>"), ElementsAre(HasSubstr("higher")));
  EXPECT_THAT(header("collective", "#include \"transport/transport.h\""), IsEmpty());
  EXPECT_THAT(header("protocol", "#include \"transport/transport.h\""),
              ElementsAre(HasSubstr("only base and wire")));
}

std::vector<std::string> product(const std::string& module, const std::string& line) {
  return check_file("csrc/" + module + "/x.h", "#pragma once\n" + line + "\n");
}

TEST(Checker, RoomsBesideTheCore) {
  for (const std::string_view module : modules()) {
    EXPECT_THAT(header("runtime", "#include \"" + std::string(module) + "/y.h\""),
                ElementsAre(HasSubstr(module == "torch" ? "core includes torch/y.h"
                                                        : "the core knows no product")));
    EXPECT_THAT(product(std::string(module), "#include \"" + std::string(module) + "/y.h\""),
                IsEmpty());
  }
  EXPECT_THAT(product("aggregation/member", "#include \"runtime/group.h\""), IsEmpty());
  EXPECT_THAT(product("aggregation/member", "#include \"aggregation/plan/y.h\""), IsEmpty());
  EXPECT_THAT(product("aggregation/server", "#include \"runtime/group.h\""),
              ElementsAre(HasSubstr("aggregation/server includes runtime/group.h, of a module")));
  EXPECT_THAT(product("aggregation/plan", "#include \"aggregation/member/y.h\""),
              ElementsAre(HasSubstr("must not know")));
  EXPECT_THAT(product("host_engine/client", "#include \"host_engine/server/y.h\""),
              ElementsAre(HasSubstr("must not know")));
  EXPECT_THAT(product("sim/world", "#include \"aggregation/server/y.h\""), IsEmpty());
  EXPECT_THAT(product("sim/world", "#include <thread>"), ElementsAre(HasSubstr("thread")));
  EXPECT_THAT(product("torch", "#include \"backend.h\"\nthrow 1;\n#include <Python.h>"), IsEmpty());
  EXPECT_THAT(product("torch", "#include \"aggregation/server/y.h\""),
              ElementsAre(HasSubstr("must not know")));
}

TEST(Checker, DriversOfAProductsMachines) {
  const auto member = [](const std::string& file, const std::string& line) {
    return check_file("csrc/aggregation/member/" + file, "#pragma once\n" + line + "\n");
  };
  EXPECT_THAT(member("stations.h", "#include <thread>"), ElementsAre(HasSubstr("thread")));
  EXPECT_THAT(member("registrar_thread.h", "#include <thread>"), IsEmpty());
  EXPECT_THAT(member("stations.h", "#include \"aggregation/member/registrar_thread.h\""),
              ElementsAre(HasSubstr("which drives it")));
}

TEST(Checker, SubfoldersBelongToTheirLayer) {
  EXPECT_THAT(
      check_file("csrc/core/transport/udp/x.h",
                 "#pragma once\n#include \"transport/verbs/y.h\"\n#include \"runtime/z.h\"\n"),
      ElementsAre(HasSubstr("transport/udp/x.h:3:")));
}

TEST(Checker, UnknownFoldersAndRelativeIncludes) {
  EXPECT_THAT(header("misc", ""), ElementsAre(HasSubstr("modules' folders")));
  EXPECT_THAT(header("base", "#include \"types.h\""), ElementsAre(HasSubstr("not relative")));
  EXPECT_THAT(header("runtime", "#include \"../base/types.h\""),
              ElementsAre(HasSubstr("not relative")));
}

TEST(Checker, IncludesAreFoundHoweverTheyAreWritten) {
  for (const char* line :
       {"  #include <thread>", "#  include <thread>", "#include<thread>", "#include <thread> // x",
        "#\tinclude\t<thread>", "#include <thread>\r"}) {
    EXPECT_THAT(header("protocol", line), ElementsAre(HasSubstr("thread"))) << line;
  }
  EXPECT_THAT(header("protocol", "// #include <thread>"), IsEmpty());
}

TEST(Checker, ClockCallsInStateMachinesAreRefused) {
  for (const char* line :
       {"auto t = std::chrono::steady_clock::now();", "clock_gettime(CLOCK_MONOTONIC, &ts);",
        "gettimeofday(&tv, nullptr);", "x = time(nullptr);", "return time(0);", "::time(&t);",
        "std::time(nullptr);", "usleep(5);"}) {
    for (const char* folder : {"protocol", "collective", "wire"}) {
      EXPECT_THAT(header(folder, line), Contains(HasSubstr("time is an argument"))) << line;
    }
  }
  for (const char* line :
       {"Nanos time = now;", "x.time();", "op->time();", "Nanos time() const;", "int uptime(int);",
        "// steady_clock", "const char* s = \"clock_gettime(\";", "/* time(0) */ int a;",
        "auto s = R\"(time(0))\";", "int steady_clock_like;"}) {
    EXPECT_THAT(header("protocol", line), IsEmpty()) << line;
  }
}

// Clocks that can be set are not allowed anywhere; the monotonic clock is, where threads are.
TEST(Checker, ClocksThatCanBeSet) {
  for (const char* line :
       {"auto t = std::chrono::system_clock::now();", "clock_gettime(CLOCK_REALTIME, &ts);",
        "gettimeofday(&tv, nullptr);", "x = time(nullptr);", "std::time(nullptr);",
        "using Clock = std::chrono::high_resolution_clock;", "timespec_get(&ts, TIME_UTC);",
        "pthread_cond_timedwait(&c, &m, &until);"}) {
    for (const char* path : {"csrc/core/runtime/x.h", "csrc/core/transport/udp/x.h",
                             "csrc/torch/x.h", "csrc/core/base/x.h"}) {
      EXPECT_THAT(check_file(path, "#pragma once\n" + std::string(line) + "\n"),
                  ElementsAre(AllOf(HasSubstr(":2: "), HasSubstr("a clock that can be set"))))
          << line;
    }
  }
  EXPECT_THAT(header("runtime", "clock_gettime(CLOCK_MONOTONIC, &ts);"), IsEmpty());
  EXPECT_THAT(header("runtime", "std::chrono::steady_clock::now();"), IsEmpty());
  const std::string python = "deadline = time.time() + 5\n";
  EXPECT_THAT(check_file("torch_mcast/lab/launch.py", python),
              ElementsAre(HasSubstr("launch.py:1: time.time(")));
  EXPECT_THAT(check_file("torch_mcast/_trace.py", python), IsEmpty());
  EXPECT_THAT(check_file("torch_mcast/lab/launch.py", "x = time.monotonic()\n"), IsEmpty());
}

TEST(Checker, ExceptionsAreRefusedInCoreOnly) {
  EXPECT_THAT(header("runtime", "throw std::bad_alloc();"), ElementsAre(HasSubstr("exceptions")));
  EXPECT_THAT(header("runtime", "rethrow(x);  // throw"), IsEmpty());
  EXPECT_THAT(check_file("csrc/torch/x.h", "#pragma once\nthrow 1;\n"), IsEmpty());
}

TEST(Checker, TheKernelOfADpaIsFreestanding) {
  const auto dpa = [](const std::string& file, const std::string& line) {
    return check_file("csrc/dpa/" + file, "#pragma once\n" + line + "\n");
  };
  for (const char* line : {"#include <string.h>", "#include \"wire/datagram.h\"",
                           "#include <infiniband/mlx5dv.h>", "#include \"rig.h\""}) {
    EXPECT_THAT(dpa("order.h", line), ElementsAre(HasSubstr("freestanding"))) << line;
  }
  EXPECT_THAT(dpa("order.h", "#include <stdint.h>\n#include \"dpa.h\""), IsEmpty());
  EXPECT_THAT(dpa("rv64/x.h", "#include \"rig.h\""), IsEmpty());
}

TEST(Checker, FilesOfMoreThan800LinesAreRefused) {
  std::string text;
  for (int i = 0; i < 800; ++i) text += "\n";
  EXPECT_THAT(check_file("tests/python/test_x.py", text), IsEmpty());
  EXPECT_THAT(check_file("tests/python/test_x.py", text + "x"),
              ElementsAre(HasSubstr("801 lines")));
}

TEST(Checker, FilesNeedAFirstParagraphAndHeadersAGuard) {
  const std::string path = "csrc/torch/x.cpp";
  EXPECT_THAT(check_file(path, "#include <vector>\n"), ElementsAre(HasSubstr("starts with")));
  EXPECT_THAT(check_file(path, "// Short.\n#include <vector>\n"), ElementsAre(HasSubstr("starts")));
  EXPECT_THAT(check_file("csrc/dpa/x.c", "int x;\n"), ElementsAre(HasSubstr("starts")));
  EXPECT_THAT(check_file(path, "\n// A blank line first, then a paragraph that is long enough.\n"),
              ElementsAre(HasSubstr("starts")));
  EXPECT_THAT(check_file(path, ""), ElementsAre(HasSubstr("starts")));
  EXPECT_THAT(check_file(path, "// What this file does is told here, in a sentence.\n"), IsEmpty());
  EXPECT_THAT(check_file("csrc/torch/x.h", "// no guard\n"), ElementsAre(HasSubstr("pragma once")));
}

TEST(Checker, UnfinishedWorkIsRefused) {
  EXPECT_THAT(header("base", "// TODO: later"), ElementsAre(HasSubstr("unfinished: TODO")));
  EXPECT_THAT(header("base", "// FIXME"), ElementsAre(HasSubstr("FIXME")));
  EXPECT_THAT(header("base", "int kTODOs;"), IsEmpty());
}

TEST(CodeOnly, KeepsCodeAndLines) {
  EXPECT_EQ(code_only("a // b\nc"), "a     \nc");
  EXPECT_EQ(code_only("a /* b\nc */ d"), "a     \n     d");
  EXPECT_EQ(code_only("f(\"x\\\"y\") z"), "f(\"    \") z");
  EXPECT_EQ(code_only("'\"' a"), "' ' a");
  EXPECT_EQ(code_only("1'000'000 a \"b\""), "1'000'000 a \" \"");
  EXPECT_EQ(code_only("R\"(a\")\" b"), "R\"    \" b");
  EXPECT_EQ(code_only("R\"x(a)\")x\" b"), "R\"       \" b");
  EXPECT_EQ(code_only("\"// no\" a // yes"), "\"     \" a       ");
  EXPECT_EQ(code_only("\"open"), "\"    ");
  EXPECT_EQ(code_only("/* open"), "       ");
}

}  // namespace
}  // namespace mcast::layers
