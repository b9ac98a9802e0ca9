// Hands the inputs that the fuzzers have found to their targets, without a fuzzer: a build that has
// none reads each in every run of the tests.
//
//     mcast_read_corpus TARGET FOLDER
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

// CMakeLists.txt gives the entry point of each target a name of its own: MCAST_FUZZ_TARGETS(X).
#include "fuzz_targets.h"

#define MCAST_FUZZ_DECLARE(name) extern "C" int mcast_fuzz_##name(const uint8_t* data, size_t size);
MCAST_FUZZ_TARGETS(MCAST_FUZZ_DECLARE);
#undef MCAST_FUZZ_DECLARE

namespace {

using Target = int (*)(const uint8_t*, size_t);

struct Row {
  const char* name;
  Target target;
};

#define MCAST_FUZZ_ROW(name) {#name, &mcast_fuzz_##name},
constexpr Row kTargets[] = {MCAST_FUZZ_TARGETS(MCAST_FUZZ_ROW)};
#undef MCAST_FUZZ_ROW

Target target_of(const char* wanted) {
  for (const Row& row : kTargets) {
    if (std::strcmp(wanted, row.name) == 0) return row.target;
  }
  return nullptr;
}

}  // namespace

int main(int count, char** arguments) {
  const Target target = count == 3 ? target_of(arguments[1]) : nullptr;
  if (target == nullptr) {
    std::fprintf(stderr, "usage: %s TARGET FOLDER\n", arguments[0]);
    return 2;
  }
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(arguments[2])) {
    files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  for (const auto& file : files) {
    std::ifstream in(file, std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(in), {}};
    // Told first: a target ends the program where it finds something.
    std::printf("%s, %zu bytes\n", file.filename().c_str(), bytes.size());
    std::fflush(stdout);
    target(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
  }
  std::printf("%s: %zu inputs\n", arguments[1], files.size());
  return files.empty() ? 1 : 0;
}
