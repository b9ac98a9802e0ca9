// The scenarios that were counted on RV64 (benchmarks/dpa-counts.json) left the same memory as the
// same calls leave here: rings, staging, destinations, bitmaps and counters, byte for byte.
#include "dpa/scenario.h"
#include "support/place.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>

namespace mcast::dpa {
namespace {

// The hash after the first `"name": {` of the file; "" if there is none.
std::string recorded(const std::string& text, const std::string& name) {
  const std::string key = "\"memory\": \"";
  const size_t row = text.find("\"" + name + "\": {");
  const size_t at = row == std::string::npos ? row : text.find(key, row);
  return at == std::string::npos ? "" : text.substr(at + key.size(), 16);
}

TEST(DpaScenarios, LeaveTheMemoryThatTheyLeaveOnRv64) {
  std::ifstream file(std::string(test::kSourceDir) + "/benchmarks/dpa-counts.json");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const scenario_call call = {[](rig_kernel kernel, dpa_worker* worker, int* result) {
                                *result = kernel(worker);
                                return uint64_t{0};
                              },
                              [](send_kernel kernel, dpa_sender* sender, int* result) {
                                *result = kernel(sender);
                                return uint64_t{0};
                              }};
  const auto memory = std::make_unique<scenario_memory>();
  for (uint32_t i = 0; i < SCENARIOS; i++) {
    const scenario_result r = scenario_run(i, memory.get(), &call);
    EXPECT_STREQ(nullptr, r.broken) << r.name;
    char hash[17];
    std::snprintf(hash, sizeof hash, "%016llx", static_cast<unsigned long long>(r.memory));
    EXPECT_EQ(recorded(text, r.name), hash) << r.name << ": make dpa-count";
  }
}

}  // namespace
}  // namespace mcast::dpa
