// How ranks of one engine find each other's memory: by token, once, and only published ranges.
#include "shm/directory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/region.h"
#include "shm/attachment.h"
#include "shm/host_world.h"

namespace mcast::test {
namespace {

using testing::HasSubstr;

HostDirectory::Entry entry(const std::string& group, Member rank, uint32_t size) {
  HostDirectory::Entry e{group, rank, size, {}, std::make_shared<Published>()};
  e.address.pid = 100 + rank;
  return e;
}

TEST(HostDirectory, AnEntryIsFoundByItsTokenAsWhatItSays) {
  const auto directory = std::make_shared<HostDirectory>();
  auto ticket = HostDirectory::enter(directory, entry("g", 1, 3));
  const auto found = directory->find(ticket->token(), entry("g", 1, 3), 0);
  ASSERT_TRUE(found.ok()) << found.status().to_string();
  EXPECT_EQ(found->address.pid, 101);
  EXPECT_EQ(directory->find(ticket->token() + 1, entry("g", 1, 3), 2).status().code(),
            Code::kUnavailable);
  for (const auto& other : {entry("h", 1, 3), entry("g", 0, 3), entry("g", 1, 4)}) {
    const auto wrong = directory->find(ticket->token(), other, 2);
    EXPECT_THAT(wrong.status().message(), HasSubstr("rank 1 of 3 of another group"));
  }
  EXPECT_TRUE(directory->find(ticket->token(), entry("g", 1, 3), 2).ok());
  const auto twice = directory->find(ticket->token(), entry("g", 1, 3), 0);
  EXPECT_THAT(twice.status().message(), HasSubstr("two clients of the engine claim to be rank"));
  const uint64_t token = ticket->token();
  ticket.reset();
  EXPECT_FALSE(directory->find(token, entry("g", 1, 3), 1).ok());
}

TEST(HostDirectory, ATicketMayOutliveIt) {
  auto directory = std::make_shared<HostDirectory>();
  const auto ticket = HostDirectory::enter(directory, entry("g", 0, 2));
  directory.reset();
}

TEST(HostDirectory, AnAddressOfAnEngineSRankIsNothingButAToken) {
  HostAddress told, read;
  told.token_here = 0xfedcba9876543210u;
  ASSERT_TRUE(HostAddress::decode(told.encode(), read));
  EXPECT_EQ(read.token_here, told.token_here);
  EXPECT_EQ(read.pid, 0);
  for (const char* text : {"@", "@0", "@x", "@1 2", "@18446744073709551616", "@-1"}) {
    EXPECT_FALSE(HostAddress::decode(text, read)) << text;
  }
}

TEST(Published, OnlyLiveMemoryIsFoundAndItIsHeld) {
  auto memory = std::make_shared<std::vector<std::byte>>(1000, std::byte{7});
  const auto* const data = memory->data();
  const auto at = reinterpret_cast<uint64_t>(data);
  auto region = std::make_shared<Region>(memory->data() + 100, 800, memory);
  Published published;
  published.add(region);
  published.add(region);
  std::byte out[800];
  EXPECT_TRUE(published.copy(at + 100, out, 800));
  EXPECT_EQ(out[799], std::byte{7});
  EXPECT_TRUE(published.copy(at + 899, out, 1));
  EXPECT_FALSE(published.copy(at + 99, out, 1)) << "before it";
  EXPECT_FALSE(published.copy(at + 100, out, 801)) << "beyond it";
  EXPECT_FALSE(published.copy(at + 901, out, 1));
  EXPECT_EQ(published.find(at + 500, SIZE_MAX), nullptr) << "sums do not wrap";
  EXPECT_EQ(published.find(UINT64_MAX - 3, 8), nullptr);
  // A rank that has found the memory keeps it; it is not found any more once its owner has released
  // it.
  auto held = published.find(at + 100, 8);
  ASSERT_NE(held, nullptr);
  const std::weak_ptr<std::vector<std::byte>> there = memory;
  region.reset();
  memory.reset();
  EXPECT_FALSE(there.expired());
  held.reset();
  EXPECT_TRUE(there.expired());
  EXPECT_EQ(published.find(at + 100, 8), nullptr);
}

TEST(Published, AWordIsReadWhole) {
  const auto word = std::make_shared<std::atomic<uint64_t>>(0x1122334455667788u);
  Published published;
  published.add(word.get(), sizeof *word, word);
  uint64_t read = 0;
  EXPECT_TRUE(published.copy(reinterpret_cast<uint64_t>(word.get()),
                             reinterpret_cast<std::byte*>(&read), sizeof read));
  EXPECT_EQ(read, 0x1122334455667788u);
}

class EngineAttachment : public testing::Test {
 protected:
  void SetUp() override {
    for (auto& registry : registries_) {
      auto made = PeerRegistry::make(monotonic);
      ASSERT_TRUE(made.ok()) << made.status().to_string();
      registry = std::move(made).value();
    }
  }
  void TearDown() override {
    for (auto& registry : registries_) {
      if (registry) registry->stop();
    }
  }
  Attachment prepare(Member self, bool in_engine = true) {
    auto made = Attachment::prepare(self, 2, *registries_[self], true,
                                    in_engine ? directory_ : nullptr, "g");
    EXPECT_TRUE(made.ok()) << made.status().to_string();
    return std::move(made).value();
  }

  const std::shared_ptr<HostDirectory> directory_ = std::make_shared<HostDirectory>();
  std::unique_ptr<PeerRegistry> registries_[2];
};

TEST_F(EngineAttachment, RanksReadWhatIsPublishedAndNothingElse) {
  Attachment first = prepare(0), second = prepare(1);
  EXPECT_EQ(first.address().pid, 0) << "no process, descriptor or address travels";
  const std::vector<HostAddress> addresses{first.address(), second.address()};
  first.attach(addresses, PeerMemory::kMapped, *registries_[0]);
  second.attach(addresses, PeerMemory::kMapped, *registries_[1]);
  EXPECT_EQ(first.verdict(), "mapped");
  EXPECT_EQ(second.verdict(), "mapped");
  EXPECT_TRUE(first.look_after(monotonic(), kSecond).ok());
  const HostReader reads = second.reader(), publishes = first.reader();
  const auto secret = std::make_shared<uint64_t>(1), shown = std::make_shared<uint64_t>(2);
  publishes.publish(shown.get(), sizeof *shown, shown);
  uint64_t got = 0;
  const auto read = [&](const uint64_t* from) {
    return reads.read(0, reinterpret_cast<uint64_t>(from), reinterpret_cast<std::byte*>(&got), 8);
  };
  EXPECT_TRUE(read(shown.get()));
  EXPECT_EQ(got, 2u);
  EXPECT_FALSE(read(secret.get())) << "of this very process";
  const auto a = first.take(), b = second.take();
  a->block.state(1, 1).published = 77;
  EXPECT_EQ(b->block.state(1, 1).published, 77u);
  // After the group is made, its ranks are not found any more.
  const auto late = directory_->find(addresses[0].token_here, entry("g", 0, 2), 0);
  EXPECT_FALSE(late.ok());
}

TEST_F(EngineAttachment, AForgedAddressIsNotFollowed) {
  Attachment engine = prepare(0), process = prepare(1, false);
  // A client may write such an address into the job's store: descriptors and addresses of the
  // engine itself.
  HostAddress forged = process.address();
  ASSERT_GT(forged.pid, 0);
  engine.attach({engine.address(), forged}, PeerMemory::kMapped, *registries_[0]);
  EXPECT_THAT(engine.verdict(), HasSubstr("an engine of the host runs only one of them"));
  process.attach({engine.address(), forged}, PeerMemory::kMapped, *registries_[1]);
  EXPECT_THAT(process.verdict(), HasSubstr("an engine of the host runs only one of them"));
  HostAddress guessed;
  guessed.token_here = 12345;
  Attachment again = prepare(0);
  again.attach({again.address(), guessed}, PeerMemory::kMapped, *registries_[0]);
  EXPECT_THAT(again.verdict(), HasSubstr("another engine of this host runs it"));
}

}  // namespace
}  // namespace mcast::test
