// The mover and its parts, with this process or a child of it as the client: memory that is copied,
// memory that cannot be copied, memory that hangs, and the offers of memory that a client may send.
#include "host_engine/server/mover.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <fstream>
#include <future>

#include "base/clock.h"
#include "hung_page.h"
#include "support/core_threads.h"
#include "support/temporary_folder.h"
#include "support/until.h"

namespace mcast::test {
namespace {

using service::BounceAccount;
using service::BouncePool;
using service::ClientMemory;
using service::CopyList;
using service::Mover;
using service::OwnSlice;
using service::Transfer;
using testing::HasSubstr;

constexpr uid_t kUser = 4242;  // the user of the accounts
constexpr uint64_t kMebibyte = uint64_t{1} << 20;

const std::array<uint64_t, 2> kCookie{0x1234567890abcdef, 0xfedcba0987654321};

ipc::MemoryOffer offer() { return {reinterpret_cast<uint64_t>(kCookie.data()), kCookie}; }
ClientMemory::Client client_of_this_user(pid_t pid = getpid()) { return {pid, geteuid()}; }
ClientMemory::Client client_of_another_user() { return {getpid(), geteuid() + 1}; }
Fd own_memory(int how = O_RDWR) { return Fd(open("/proc/self/mem", how | O_CLOEXEC)); }
uint64_t address(const void* at) { return reinterpret_cast<uint64_t>(at); }

std::shared_ptr<BouncePool> pool_of(uint64_t limit = 64 * kMebibyte) {
  return std::make_shared<BouncePool>(BounceAccount::of(kUser), limit);
}

TEST(ClientMemory, IsCopiedBothWays) {
  for (const bool vm : {true, false}) {
    auto memory = ClientMemory::open(offer(), vm ? client_of_this_user() : client_of_another_user(),
                                     own_memory());
    ASSERT_TRUE(memory.ok()) << memory.status().to_string();
    EXPECT_EQ((*memory)->method(), vm ? ipc::AccessMethod::kVm : ipc::AccessMethod::kDescriptor);
    std::vector<std::byte> client(100'000, std::byte{7}), engine(100'000);
    std::vector<ClientMemory::Span> spans;
    for (size_t i = 0; i < ClientMemory::kMostSpans; i++) {
      spans.push_back({address(&client[i * 1000]), &engine[i * 1000], 1000});
    }
    EXPECT_EQ((*memory)->pull(spans), ClientMemory::Moved::kAll);
    EXPECT_EQ(engine[63'999], std::byte{7});
    EXPECT_EQ(engine[64'000], std::byte{0});
    engine[10] = std::byte{9};
    EXPECT_EQ((*memory)->push(spans), ClientMemory::Moved::kAll);
    EXPECT_EQ(client[10], std::byte{9});
    const ClientMemory::Span nowhere[] = {spans[0], {4096, engine.data(), 10}};
    EXPECT_EQ((*memory)->pull(nowhere), ClientMemory::Moved::kFault);
    EXPECT_EQ((*memory)->push(nowhere), ClientMemory::Moved::kFault);
    const ClientMemory::Span beyond[] = {{UINT64_MAX - 100, engine.data(), 10}};
    EXPECT_EQ((*memory)->pull(beyond), ClientMemory::Moved::kFault);
  }
}

TEST(ClientMemory, TheDescriptorMustBeTheSendersMemory) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/mem";
  std::ofstream(path) << "not memory";
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const Fd other_end(ends[0]);
  const pid_t child = fork();
  if (child == 0) {
    pause();
    _exit(0);
  }
  struct Sent {
    Fd file;
    const char* why;
  };
  std::array<uint64_t, 2> changed = kCookie;
  changed[1]++;
  Sent cases[] = {
      {Fd(), "it has sent no descriptor"},
      {Fd(open(path.c_str(), O_RDWR | O_CLOEXEC)), "not a file of procfs"},
      {Fd(ends[1]), "not a file of procfs"},
      {Fd(open("/proc/self/maps", O_RDONLY | O_CLOEXEC)), "not /proc/self/mem"},
      {Fd(open("/proc/self", O_RDONLY | O_CLOEXEC)), "not a file of procfs"},
      {own_memory(O_RDONLY), "not open for reading and writing"},
  };
  for (Sent& one : cases) {
    const auto memory = ClientMemory::open(offer(), client_of_another_user(), std::move(one.file));
    ASSERT_FALSE(memory.ok()) << one.why;
    EXPECT_THAT(memory.status().message(), HasSubstr(one.why));
    EXPECT_THAT(memory.status().message(), HasSubstr("runs as another user"));
  }
  // The memory of another process, which has other bytes there.
  ipc::MemoryOffer lie = offer();
  lie.cookie = changed;
  const auto strange = ClientMemory::open(lie, client_of_another_user(), own_memory());
  EXPECT_THAT(strange.status().message(), HasSubstr("of another process"));
  const auto wrong = ClientMemory::open(lie, client_of_this_user(), Fd());
  EXPECT_THAT(wrong.status().message(), HasSubstr("another process has its pid"));
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
}

// A child that waits for a byte and then runs another program, or ends.
TEST(ClientMemory, LeadsNowhereAfterAnExecOrTheEnd) {
  for (const bool vm : {true, false}) {
    for (const bool execs : {true, false}) {
      int go[2];
      ASSERT_EQ(pipe(go), 0);
      const pid_t child = fork();
      if (child == 0) {
        close(go[1]);
        char byte = 0;
        (void)!read(go[0], &byte, 1);
        if (execs) execl("/bin/sleep", "sleep", "60", nullptr);
        _exit(0);
      }
      close(go[0]);
      Fd file(open(("/proc/" + std::to_string(child) + "/mem").c_str(), O_RDWR | O_CLOEXEC));
      auto memory =
          ClientMemory::open(offer(), {child, vm ? geteuid() : geteuid() + 1}, std::move(file));
      ASSERT_TRUE(memory.ok()) << memory.status().to_string();
      static uint64_t word = 42;
      uint64_t here = 0;
      const ClientMemory::Span span[] = {
          {address(&word), reinterpret_cast<std::byte*>(&here), sizeof(here)}};
      EXPECT_EQ((*memory)->pull(span), ClientMemory::Moved::kAll);
      EXPECT_EQ(here, 42u);
      close(go[1]);
      if (execs) {
        std::string name;
        while (name != "sleep") {
          std::ifstream in("/proc/" + std::to_string(child) + "/comm");
          std::getline(in, name);
        }
      } else {
        siginfo_t end;
        ASSERT_EQ(waitid(P_PID, static_cast<id_t>(child), &end, WEXITED | WNOWAIT), 0);
      }
      EXPECT_EQ((*memory)->pull(span), ClientMemory::Moved::kGone) << vm << execs;
      EXPECT_EQ((*memory)->push(span), ClientMemory::Moved::kGone) << vm << execs;
      kill(child, SIGKILL);
      waitpid(child, nullptr, 0);
    }
  }
}

// A process of the same user with memory at the same addresses: as after an exec, or with a reused
// pid.
TEST(ClientMemory, NothingIsCopiedOfAProcessThatIsAnother) {
  static std::array<uint64_t, 2> cookie = kCookie;
  auto memory =
      ClientMemory::open({address(cookie.data()), cookie}, client_of_this_user(), own_memory());
  ASSERT_TRUE(memory.ok());
  uint64_t there = 1, here = 2;
  const ClientMemory::Span span[] = {
      {address(&there), reinterpret_cast<std::byte*>(&here), sizeof(here)}};
  cookie[0]++;
  EXPECT_EQ((*memory)->pull(span), ClientMemory::Moved::kGone);
  here = 2;
  EXPECT_EQ((*memory)->push(span), ClientMemory::Moved::kGone);
  EXPECT_EQ(there, 1u);
}

TEST(CopyList, CopiesWhatIsDueInOrderAndOnce) {
  std::byte here[100];
  CopyList list;
  for (uint64_t i = 0; i < 3; i++) list.add(1000 * i, here + 20 * i, 20);
  std::vector<ClientMemory::Span> spans;
  EXPECT_FALSE(list.due());
  list.raise(2, 5);
  list.raise(0, 20);
  list.raise(2, 3);  // less: no effect
  auto batch = list.next(12, spans);
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_EQ(spans[0].there, 2000u);
  EXPECT_EQ(spans[0].length, 5u);
  EXPECT_EQ(spans[1].length, 7u);
  list.raise(2, 999);  // while they are copied; clamped to the end
  list.advance(batch);
  batch = list.next(100, spans);
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_EQ(spans[0].there, 2005u);
  EXPECT_EQ(spans[0].length, 15u);
  EXPECT_EQ(spans[1].there, 7u);
  EXPECT_EQ(spans[1].here, here + 7);
  EXPECT_EQ(spans[1].length, 13u);
  list.advance(batch);
  EXPECT_FALSE(list.due());
  list.raise_all();
  batch = list.next(100, spans);
  ASSERT_EQ(spans.size(), 1u);
  list.drop();
  list.advance(batch);
  list.raise_all();
  EXPECT_FALSE(list.due());
}

TEST(CopyList, ACallHasAMostOfSpans) {
  std::byte here[1];
  CopyList list;
  for (uint64_t i = 0; i < 200; i++) list.add(i, here, 1);
  list.raise_all();
  std::vector<ClientMemory::Span> spans;
  size_t batches = 0;
  for (; list.due(); batches++) {
    const auto batch = list.next(1000, spans);
    EXPECT_LE(spans.size(), ClientMemory::kMostSpans);
    list.advance(batch);
  }
  EXPECT_EQ(batches, 4u);
}

TEST(Bounce, WhatIsKeptServesAgainAndGoesBeforeAnybodyIsRefused) {
  auto pool = pool_of(8 * kMebibyte), other = pool_of(8 * kMebibyte);
  const auto account = BounceAccount::of(kUser);
  EXPECT_EQ(account.get(), &pool->account());
  std::byte* first = nullptr;
  {
    const auto block = pool->take(5 * kMebibyte);
    ASSERT_TRUE(block.ok());
    first = block->get();
    EXPECT_EQ(account->used(), 6 * kMebibyte);
  }
  EXPECT_EQ(pool->bytes(), 6 * kMebibyte);  // kept
  EXPECT_EQ(pool->take(5 * kMebibyte)->get(), first);
  EXPECT_NE(pool->take(kMebibyte)->get(), first) << "too small for it";
  const auto theirs = other->take(7 * kMebibyte);
  ASSERT_TRUE(theirs.ok());
  EXPECT_EQ(pool->bytes(), 0u);
  const Status refused = pool->take(kMebibyte).status();
  EXPECT_EQ(refused.code(), Code::kResourceExhausted);
  EXPECT_THAT(refused.message(), HasSubstr("engine's limit of 8M for copies of user 4242's"));
  EXPECT_FALSE(pool->take(UINT64_MAX - 100).ok());
  EXPECT_EQ(account->used(), 8 * kMebibyte);
}

// A mover of this process's own memory, and the ends of operations.
class MoverTest : public testing::Test {
 protected:
  void SetUp() override {
    std::promise<Result<ipc::Memory>> opened;
    auto started = Mover::start(offer(), client_of_this_user(), own_memory(), pool_of(),
                                [&](const Result<ipc::Memory>& how) { opened.set_value(how); });
    ASSERT_TRUE(started.ok());
    mover_ = *started;
    ASSERT_TRUE(opened.get_future().get().ok());
    ASSERT_TRUE(mover_->usable().ok());
  }
  void TearDown() override { mover_->retire(); }

  struct End {
    std::promise<Status> over;
    std::atomic<int> ends{0}, faults{0}, wakes{0};
    bool held = false;
    Status fault;
    Status wait() { return over.get_future().get(); }
  };
  std::shared_ptr<Transfer> transfer(const std::vector<OwnSlice>& own, wire::Kind kind, End& end,
                                     std::vector<Slice>& inputs, std::vector<Slice>& outputs,
                                     Nanos timeout = 100 * kSecond, bool staged = false) {
    auto made = Transfer::make({1, kind, "all_gather", 1, timeout, staged}, own, inputs, outputs,
                               mover_->pool());
    if (!made.ok()) {
      ADD_FAILURE() << made.status().to_string();
      return nullptr;
    }
    (*made)->hooks.finish = [&end](const Status& status, bool held) {
      end.held = held;
      if (end.ends++ == 0) end.over.set_value(status);
    };
    (*made)->hooks.fault = [&end, mover = mover_, t = std::weak_ptr(*made)](const Status& why) {
      end.fault = why;
      end.faults++;
      if (const auto transfer = t.lock()) mover->end(transfer, why);  // as its group does
    };
    (*made)->hooks.wake = [&end] { end.wakes++; };
    return *made;
  }
  // Submits a broadcast whose output is the page.
  std::shared_ptr<Transfer> broadcast_to(const HungPage& page, End& end) {
    std::vector<Slice> inputs, outputs(1);
    auto made = transfer({{ipc::Role::kOutput, 0, address(page.data()), HungPage::kPage}},
                         wire::Kind::kBroadcast, end, inputs, outputs);
    mover_->submit(made);
    return made;
  }

  std::shared_ptr<Mover> mover_;
};

TEST_F(MoverTest, AllGatherIsCopiedOutOfPlaceAndInPlace) {
  constexpr size_t kBlock = 700'001;
  for (const bool in_place : {false, true}) {
    std::vector<std::byte> mine(kBlock, std::byte{3}), all(3 * kBlock);
    std::byte* const own = in_place ? &all[kBlock] : mine.data();
    std::fill(own, own + kBlock, std::byte{3});
    std::vector<Slice> inputs(1), outputs(3);
    std::vector<OwnSlice> slices{{ipc::Role::kInput, 0, address(own), kBlock}};
    for (uint32_t r = 0; r < 3; r++) {
      slices.push_back({ipc::Role::kOutput, r, address(&all[r * kBlock]), kBlock});
    }
    End end;
    const auto t = transfer(slices, wire::Kind::kAllgather, end, inputs, outputs);
    ASSERT_TRUE(t);
    EXPECT_EQ(inputs[0].data(), outputs[1].data());
    EXPECT_EQ(outputs[2].data(), outputs[0].data() + 2 * kBlock) << "one block";
    EXPECT_EQ(inputs[0].region->readable(), 0u);
    mover_->submit(t);
    until([&] { return inputs[0].region->readable() == kBlock; }, "the input to be readable");
    EXPECT_GE(end.wakes, 3);
    std::fill_n(outputs[0].data(), kBlock, std::byte{1});
    std::fill_n(outputs[2].data(), kBlock, std::byte{2});
    // Bytes that are final go to the client before the end.
    mover_->mark(t, 0, 300'000);
    until([&] { return all[299'999] == std::byte{1}; }, "the output to be written");
    EXPECT_EQ(all[300'000], std::byte{0});
    EXPECT_EQ(end.ends, 0);
    mover_->end(t, {});
    EXPECT_TRUE(end.wait().ok());
    EXPECT_FALSE(end.held);
    EXPECT_EQ(all[kBlock - 1], std::byte{1});
    EXPECT_EQ(all[kBlock], std::byte{3});
    EXPECT_EQ(all[2 * kBlock - 1], std::byte{3});
    EXPECT_EQ(all[3 * kBlock - 1], std::byte{2});
    mover_->settle(1, kNever);
  }
}

TEST_F(MoverTest, StagedInputIsReadAsFarAsAllowed) {
  std::vector<std::byte> mine(1000, std::byte{5});
  std::vector<Slice> inputs(1), outputs;
  End end;
  const auto t = transfer({{ipc::Role::kInput, 0, address(mine.data()), 1000}},
                          wire::Kind::kBroadcast, end, inputs, outputs, kSecond, true);
  mover_->submit(t);
  mover_->allow(t, 0, 400);
  mover_->allow(t, 7, 400);  // no such input
  until([&] { return inputs[0].region->readable() == 400; }, "the input to be readable");
  EXPECT_EQ(inputs[0].data()[399], std::byte{5});
  mover_->end(t, Status(Code::kAborted, "enough"));
  EXPECT_EQ(end.wait().message(), "enough");
  mover_->allow(t, 0, 1000);
  EXPECT_EQ(inputs[0].region->readable(), 400u);
}

TEST_F(MoverTest, MemoryThatWentAwayIsNamed) {
  for (const auto role : {ipc::Role::kInput, ipc::Role::kOutput}) {
    // (Not unmapped: the next allocation could get its address, and the copy would succeed.)
    std::byte* const gone =
        static_cast<std::byte*>(mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    std::vector<Slice> inputs(1), outputs(1);
    End end;
    const auto t =
        transfer({{role, 0, address(gone), 4096}}, wire::Kind::kBroadcast, end, inputs, outputs);
    mover_->submit(t);
    if (role == ipc::Role::kOutput) mover_->end(t, {});
    EXPECT_THAT(end.wait().message(), HasSubstr("rank 1: memory of all_gather went away"));
    EXPECT_EQ(end.faults, 1);
    EXPECT_EQ(end.ends, 1);
    EXPECT_TRUE(mover_->usable().ok());
    munmap(gone, 4096);
  }
}

TEST_F(MoverTest, APageThatDoesNotComeHangsTheMoverAlone) {
  for (const auto role : {ipc::Role::kInput, ipc::Role::kOutput}) {
    HungPage page;
    if (!page.hangs()) GTEST_SKIP() << "no userfaultfd here";
    std::vector<Slice> inputs(1), outputs(1), other_inputs(1), none;
    End end, other_end;
    const auto t = transfer({{role, 0, address(page.data()), HungPage::kPage}},
                            wire::Kind::kBroadcast, end, inputs, outputs, 20 * kSecond);
    std::vector<std::byte> fine(100);
    const auto other = transfer({{ipc::Role::kInput, 0, address(fine.data()), 100}},
                                wire::Kind::kBroadcast, other_end, other_inputs, none);
    mover_->submit(t);
    if (role == ipc::Role::kOutput) mover_->end(t, {});
    until(
        [&] {
          mover_->check(monotonic_now() + 9 * kSecond);  // not yet
          mover_->check(monotonic_now() + 11 * kSecond);
          return end.faults == 1;
        },
        "the hung transfer to fail");
    EXPECT_THAT(end.wait().message(),
                HasSubstr("rank 1: memory of all_gather does not answer for 11.0 s (swap, FUSE, "
                          "userfaultfd)"));
    EXPECT_EQ(end.held, role == ipc::Role::kOutput) << "it may be written when the page comes";
    EXPECT_THAT(mover_->usable().message(), HasSubstr("does not answer"));
    EXPECT_TRUE(mover_->report().hangs);
    mover_->submit(other);  // in flight meanwhile
    mover_->end(other, Status(Code::kAborted, "enough"));
    EXPECT_EQ(other_end.wait().message(), "enough");
    page.come();
    until([&] { return mover_->usable().ok(); }, "the mover to be usable");
    EXPECT_EQ(end.ends, 1);
  }
}

// Memory is given back when no system call touches it any more.
TEST_F(MoverTest, AnEndWaitsForTheCallThatIsUnderWay) {
  HungPage page;
  if (!page.hangs()) GTEST_SKIP() << "no userfaultfd here";
  End end;
  const auto t = broadcast_to(page, end);
  mover_->mark(t, 0, 100);
  until([&] { return page.touched(); }, "the page to be touched");
  mover_->end(t, Status(Code::kAborted, "enough"));
  EXPECT_EQ(end.ends, 0);
  page.come();
  EXPECT_EQ(end.wait().message(), "enough");
  EXPECT_FALSE(end.held);
}

// As for a barrier: an earlier operation that has ended for the group is still being copied.
TEST_F(MoverTest, LaterWorkWaitsForEndedOperations) {
  HungPage page;
  if (!page.hangs()) GTEST_SKIP() << "no userfaultfd here";
  End end;
  const auto t = broadcast_to(page, end);
  mover_->end(t, {});
  until([&] { return page.touched(); }, "the page to be touched");
  std::promise<int> after;
  bool of_another = false;
  mover_->after(1, [&] { after.set_value(end.ends); });
  mover_->after(2, [&] { of_another = true; });
  EXPECT_TRUE(of_another);
  std::future<int> ends = after.get_future();
  EXPECT_EQ(ends.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  page.come();
  EXPECT_EQ(ends.get(), 1);
  EXPECT_TRUE(end.wait().ok());
  bool at_once = false;
  mover_->after(1, [&] { at_once = true; });
  EXPECT_TRUE(at_once);
}

TEST_F(MoverTest, TransfersBesideAHungPageFail) {
  HungPage page;
  if (!page.hangs()) GTEST_SKIP() << "no userfaultfd here";
  std::vector<Slice> inputs(1), other_inputs, outputs(1), none;
  End end, other_end;
  const auto t = transfer({{ipc::Role::kInput, 0, address(page.data()), HungPage::kPage}},
                          wire::Kind::kBroadcast, end, inputs, none, kSecond);
  std::vector<std::byte> fine(100);
  const auto other = transfer({{ipc::Role::kOutput, 0, address(fine.data()), 100}},
                              wire::Kind::kBroadcast, other_end, other_inputs, outputs);
  mover_->submit(other);
  mover_->submit(t);
  until(
      [&] {
        mover_->check(monotonic_now() + kSecond);
        return other_end.faults == 1;
      },
      "the other transfer to fail");
  EXPECT_FALSE(other_end.wait().ok());
  EXPECT_FALSE(other_end.held) << "nothing touches it";
  page.come();
}

// The owner of a mover that hangs does not wait for it.
TEST(Mover, OneThatHangsIsLeftToItselfAndCounted) {
  const size_t before = core_threads();
  std::vector<std::unique_ptr<HungPage>> pages;
  auto account = BounceAccount::of(kUser + 1);
  for (uint32_t i = 0; i < BounceAccount::kMostHung; i++) {
    EXPECT_TRUE(account->may_move().ok());
    pages.push_back(std::make_unique<HungPage>());
    if (!pages.back()->hangs()) GTEST_SKIP() << "no userfaultfd here";
    // The check of the offer itself hangs.
    const ipc::MemoryOffer hung{address(pages.back()->data()), kCookie};
    auto mover = Mover::start(hung, client_of_this_user(), Fd(),
                              std::make_shared<BouncePool>(account, kMebibyte),
                              [](const Result<ipc::Memory>& how) { EXPECT_FALSE(how.ok()); });
    ASSERT_TRUE(mover.ok());
    EXPECT_EQ((*mover)->usable().code(), Code::kInvalidArgument);
    (*mover)->retire();
  }
  EXPECT_THAT(account->may_move().message(), HasSubstr("memory of 4 processes of user 4243 does"));
  for (const auto& page : pages) page->come();
  EXPECT_TRUE(until([&] { return account->may_move().ok(); }, "a mover to end"));
  // All threads end: later tests fork, which TSan does not support in a process with threads.
  EXPECT_TRUE(until([&] { return core_threads() == before; }, "the threads of movers to end"));
}

}  // namespace
}  // namespace mcast::test
