// Passes the inputs that the fuzzers have found to their targets, without a fuzzer, so that a build
// without one runs each of them in every test run.
//
// mcast_read_corpus TARGET FILE
//
// A line of the file is an input in hexadecimal ("-": no bytes), optionally with a name after a
// blank. tools/fuzz.py writes it.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "base/hex.h"

// CMakeLists.txt gives the entry point of each target its own name: MCAST_FUZZ_TARGETS(X).
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
    std::fprintf(stderr, "usage: %s TARGET FILE\n", arguments[0]);
    return 2;
  }
  std::ifstream in(arguments[2]);
  std::string line;
  int number = 0;
  while (std::getline(in, line)) {
    number++;
    const std::string digits = line.substr(0, line.find(' '));
    std::vector<std::byte> bytes(digits == "-" ? 0 : digits.size() / 2);
    if (digits != "-" && (digits.empty() || !mcast::from_hex(digits, bytes))) {
      std::fprintf(stderr, "%s:%d: not hexadecimal\n", arguments[2], number);
      return 1;
    }
    // Printed first, since a target ends the program if it finds an error.
    std::printf("%s:%d, %zu bytes\n", arguments[2], number, bytes.size());
    std::fflush(stdout);
    target(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
  }
  std::printf("%s: %d inputs\n", arguments[1], number);
  return number == 0 ? 1 : 0;
}
