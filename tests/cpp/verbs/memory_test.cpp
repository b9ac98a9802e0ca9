// The cache of registrations: which ones it may share, and which ones it must forget; and forked
// processes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "transport/transport_contract.h"
#include "verbs/verbs_world.h"

namespace mcast::testing {
namespace {

constexpr size_t kSize = 1 << 20;

class VerbsMemory : public ::testing::Test {
 protected:
  // Pages that are unmapped when the last region over them goes.
  static std::shared_ptr<void> map(void* at = nullptr) {
    void* const pages =
        ::mmap(at, kSize, PROT_READ | PROT_WRITE,
               MAP_PRIVATE | MAP_ANONYMOUS | (at != nullptr ? MAP_FIXED_NOREPLACE : 0), -1, 0);
    EXPECT_NE(pages, MAP_FAILED);
    return {pages, [](void* p) { ::munmap(p, kSize); }};
  }
  static std::shared_ptr<Region> over(const std::shared_ptr<void>& pages) {
    return std::make_shared<Region>(static_cast<std::byte*>(pages.get()), kSize, pages);
  }
  FakeVerbs fake;
  ibv_context context{};
  ibv_pd* pd = fake.alloc_pd(&context);
  verbs::RegionCache cache{fake, pd};
};

TEST_F(VerbsMemory, RegionsOverOneLivingAllocationShareARegistration) {
  auto pages = map();
  auto first = over(pages), second = over(pages);
  const auto one = cache.get(first), same = cache.get(first), other = cache.get(second);
  ASSERT_TRUE(one.ok() && other.ok() && same.ok());
  EXPECT_EQ((*one)->rkey(), (*same)->rkey());
  EXPECT_EQ((*one)->rkey(), (*other)->rkey());
  EXPECT_EQ(fake.registrations(), 1u);
  EXPECT_EQ(cache.hits(), 2u);
  // The second region remains valid alone.
  first.reset();
  EXPECT_EQ((*cache.get(second))->rkey(), (*one)->rkey());
}

TEST_F(VerbsMemory, TheSameAddressesAfterAFreeAreOtherMemory) {
  auto pages = map();
  void* const at = pages.get();
  auto region = over(pages);
  const uint32_t before = (*cache.get(region))->rkey();
  region.reset();
  pages.reset();
  pages = map(at);
  ASSERT_EQ(pages.get(), at);
  region = over(pages);
  EXPECT_NE((*cache.get(region))->rkey(), before);
  EXPECT_EQ(fake.registrations(), 1u) << "the old one is gone";
  EXPECT_EQ(cache.hits(), 0u);
}

TEST_F(VerbsMemory, AnotherRangeIsAnotherRegistration) {
  auto pages = map();
  auto whole = over(pages);
  auto half = std::make_shared<Region>(whole->data(), kSize / 2, pages);
  EXPECT_NE((*cache.get(whole))->rkey(), (*cache.get(half))->rkey());
  EXPECT_EQ(cache.size(), 2u);
}

TEST_F(VerbsMemory, DeadEntriesGoAtTheNextLookUp) {
  std::vector<std::shared_ptr<void>> pages;
  for (int i = 0; i < 20; ++i) {
    auto region = over(pages.emplace_back(map()));
    ASSERT_TRUE(cache.get(region).ok());
  }
  EXPECT_EQ(cache.size(), 1u);
  EXPECT_EQ(fake.registrations(), 1u);
}

TEST_F(VerbsMemory, ARefusalIsNotCached) {
  auto region = over(map());
  fake.registration_error = ENOMEM;
  EXPECT_EQ(cache.get(region).status().code(), Code::kResourceExhausted);
  fake.registration_error = 0;
  EXPECT_TRUE(cache.get(region).ok());
}

int in_child(const std::function<bool()>& body) {
  const pid_t pid = ::fork();
  if (pid == 0) ::_exit(body() ? 0 : 1);
  int status = -1;
  EXPECT_EQ(::waitpid(pid, &status, 0), pid);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(VerbsFork, TheChildGivesBackNothingAndTheParentGoesOn) {
  FakeVerbsWorld world;
  Node a, b;
  a.transport = world.make();
  b.transport = world.make();
  const PeerId peer = a.st().add_peer(b.st().address(false));
  const auto exchange = [&](size_t frames) {
    a.send(peer, Channel::kControl, pattern(100, frames));
    for (int i = 0; i < 20; ++i) {
      a.st().poll(a, world.now());
      b.st().poll(b, world.now());
    }
    return b.frames.size() == frames;
  };
  ASSERT_TRUE(exchange(1));
  // A datagram in flight from memory that the parent registered.
  ASSERT_TRUE(a.dg().join({7, 7, false}).ok());
  auto memory = std::make_shared<Buffer>(pattern(2000, 1));
  const std::weak_ptr<Buffer> sending = memory;
  world.fake->hold_sends = true;
  {
    const Slice block{std::make_shared<Region>(memory->data(), 2000, std::move(memory)), 0, 2000};
    ASSERT_EQ(a.dg().lend({7, 7, false}, 2032).size(), 2032u);
    ASSERT_TRUE(a.dg().commit_gather(32, block, 0, 2000));
    ASSERT_TRUE(a.dg().flush());
  }
  const size_t registered = world.fake->registrations(), pairs = world.fake->queue_pairs();
  EXPECT_EQ(in_child([&] {
              a.transport->abandon_after_fork();
              b.transport->abandon_after_fork();
              a.transport.reset();
              b.transport.reset();
              const auto fresh = verbs::make_transport(*world.fake, world.options);
              return world.fake->registrations() == registered && sending.expired() &&
                     world.fake->queue_pairs() == pairs && !fresh.ok() &&
                     fresh.status().message().find("fork") != std::string::npos;
            }),
            0);
  EXPECT_TRUE(exchange(2));
  EXPECT_FALSE(sending.expired());
  world.fake->let_sends_go();
  a.dg().receive(a, 1 << 20);
  EXPECT_TRUE(sending.expired());
}

}  // namespace
}  // namespace mcast::testing
