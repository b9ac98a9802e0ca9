#include "support/ranks/programs.h"

#include <gtest/gtest.h>

#include <future>

namespace mcast::test {

std::byte pattern(size_t seed, size_t i) {
  const size_t x = seed * 1000003 + i * 31 + (i >> 9) * 7;
  return static_cast<std::byte>(x ^ (x >> 13));
}

void fill(std::vector<std::byte>& data, size_t from, size_t length, size_t seed) {
  for (size_t i = 0; i < length; i++) data[from + i] = pattern(seed, i);
}

bool holds(const std::vector<std::byte>& data, size_t from, size_t length, size_t seed) {
  for (size_t i = 0; i < length; i++) {
    if (data[from + i] != pattern(seed, i)) return false;
  }
  return true;
}

void expect_all_good(const std::vector<Ended>& ends) {
  for (size_t r = 0; r < ends.size(); r++) {
    EXPECT_EQ(ends[r].signal, 0) << "rank " << r;
    EXPECT_EQ(ends[r].exit_code, 0) << "rank " << r;
  }
}

bool work(Group& group, size_t block, int rounds) {
  const uint32_t ranks = group.size();
  for (int round = 0; round < rounds; round++) {
    std::vector<std::byte> all(block * ranks);
    fill(all, group.rank() * block, block, round * 100 + group.rank());
    if (Status s = allgather(group, all); !s.ok()) {
      ADD_FAILURE() << s.to_string();
      return false;
    }
    for (uint32_t r = 0; r < ranks; r++) {
      EXPECT_TRUE(holds(all, r * block, block, round * 100 + r)) << "block " << r;
    }
    const auto root = static_cast<Member>(round % ranks);
    std::vector<std::byte> one(block);
    if (group.rank() == root) fill(one, 0, block, 7 * round + 5);
    if (Status s = broadcast(group, one, root); !s.ok()) {
      ADD_FAILURE() << s.to_string();
      return false;
    }
    EXPECT_TRUE(holds(one, 0, block, 7 * round + 5));
  }
  Status s = barrier(group);
  EXPECT_TRUE(s.ok()) << s.to_string();
  return s.ok();
}

namespace {

// Element i of rank r's tensor. Sums over a few ranks stay small.
int32_t element(uint32_t rank, size_t i, int salt) {
  return static_cast<int32_t>((i * 2654435761u + rank * 40503u + static_cast<uint32_t>(salt)) %
                              1000003u);
}

}  // namespace

std::future<Status> begin(const std::function<Result<Sequence>(PostOptions)>& post) {
  auto ended = std::make_shared<std::promise<Status>>();
  PostOptions options;
  options.timeout = 60 * kSecond;
  options.done = [ended](const Status& status) { ended->set_value(status); };
  if (auto posted = post(std::move(options)); !posted.ok()) ended->set_value(posted.status());
  return ended->get_future();
}

Status wait_for(const std::function<Result<Sequence>(PostOptions)>& post) {
  return begin(post).get();
}

Slice whole(std::vector<int32_t>& data) {
  const size_t bytes = data.size() * sizeof(int32_t);
  return {std::make_shared<Region>(reinterpret_cast<std::byte*>(data.data()), bytes, nullptr), 0,
          bytes};
}

bool reduce_all_ways(Group& group, size_t count, int salt) {
  const uint32_t ranks = group.size();
  const Reducing sum{Element::kInt32, Reduction::kSum, 1};
  const auto total = [&](size_t i) {
    int32_t t = 0;
    for (uint32_t r = 0; r < ranks; r++) t += element(r, i, salt);
    return t;
  };
  std::vector<int32_t> mine(count * ranks), block(count), all(count * ranks), rooted(count * ranks);
  for (size_t i = 0; i < mine.size(); i++) mine[i] = element(group.rank(), i, salt);
  const Slice input = whole(mine);
  std::vector<Slice> inputs;
  for (uint32_t r = 0; r < ranks; r++) inputs.push_back({input.region, r * count * 4, count * 4});
  const auto root = static_cast<Member>(static_cast<uint32_t>(salt) % ranks);
  Status s = wait_for([&](PostOptions o) {
    return group.post_reduce_scatter(inputs, whole(block), sum, std::move(o));
  });
  if (s.ok()) {
    s = wait_for(
        [&](PostOptions o) { return group.post_allreduce(input, whole(all), sum, std::move(o)); });
  }
  if (s.ok()) {
    s = wait_for([&](PostOptions o) {
      return group.post_reduce(input, whole(rooted), root, sum, std::move(o));
    });
  }
  if (s.ok()) {  // in place
    s = wait_for(
        [&](PostOptions o) { return group.post_allreduce(input, input, sum, std::move(o)); });
  }
  EXPECT_TRUE(s.ok()) << s.to_string();
  if (!s.ok()) return false;
  for (size_t i = 0; i < count; i++) EXPECT_EQ(block[i], total(group.rank() * count + i));
  for (size_t i = 0; i < all.size(); i++) {
    EXPECT_EQ(all[i], total(i));
    EXPECT_EQ(mine[i], total(i));
    if (group.rank() == root) {
      EXPECT_EQ(rooted[i], total(i));
    }
    if (testing::Test::HasFailure()) return false;
  }
  return true;
}

}  // namespace mcast::test
