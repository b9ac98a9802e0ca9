// Programs that ranks run in tests of the whole engine.
#pragma once

#include <functional>
#include <future>
#include <vector>

#include "support/ranks/processes.h"

namespace mcast::test {

std::byte pattern(size_t seed, size_t i);
void fill(std::vector<std::byte>& data, size_t from, size_t length, size_t seed);
bool holds(const std::vector<std::byte>& data, size_t from, size_t length, size_t seed);
// Expects that no rank died or reported a failure.
void expect_all_good(const std::vector<Ended>& ends);
// Runs all-gathers and broadcasts of `block` bytes, then a barrier; compares the bytes.
bool work(Group& group, size_t block, int rounds);
// Runs reduce_scatter, all_reduce (also in place) and reduce of int32 sums.
bool reduce_all_ways(Group& group, size_t count, int salt);
// How ranks at one engine move data, as a setting. Not in memory under ThreadSanitizer, which does
// not see that the words that order the accesses are mapped twice.
#ifdef __SANITIZE_THREAD__
inline constexpr const char* kSharedMemory = "off";
#else
inline constexpr const char* kSharedMemory = "auto";
#endif
// Posts; the future is ready when the operation has ended.
std::future<Status> begin(const std::function<Result<Sequence>(PostOptions)>& post);
Status wait_for(const std::function<Result<Sequence>(PostOptions)>& post);
Slice whole(std::vector<int32_t>& data);

}  // namespace mcast::test
