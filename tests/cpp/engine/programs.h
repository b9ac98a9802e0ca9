// What ranks do in tests of the whole engine.
#pragma once

#include <functional>
#include <future>
#include <vector>

#include "processes.h"

namespace mcast::test {

std::byte pattern(size_t seed, size_t i);
void fill(std::vector<std::byte>& data, size_t from, size_t length, size_t seed);
bool holds(const std::vector<std::byte>& data, size_t from, size_t length, size_t seed);
// Nobody died or reported a failure.
void expect_all_good(const std::vector<Ended>& ends);
// All-gathers and broadcasts of `block` bytes, then a barrier; bytes compared.
bool work(Group& group, size_t block, int rounds);
// reduce_scatter, all_reduce (also in place), reduce of int32 sums.
bool reduce_all_ways(Group& group, size_t count, int salt);
// How ranks at one engine move data, as a setting: not in memory under ThreadSanitizer, which does
// not see that what orders the accesses is mapped twice.
#ifdef __SANITIZE_THREAD__
inline constexpr const char* kSharedMemory = "off";
#else
inline constexpr const char* kSharedMemory = "auto";
#endif
// Posts; the future is ready when that has ended.
std::future<Status> begin(const std::function<Result<Sequence>(PostOptions)>& post);
Status wait_for(const std::function<Result<Sequence>(PostOptions)>& post);
Slice whole(std::vector<int32_t>& data);

}  // namespace mcast::test
