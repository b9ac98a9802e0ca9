// What an engine of the host refuses: clients beyond its limits, by name, and clients that are
// hostile, of which the jobs beside them notice nothing.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <random>
#include <vector>

#include "arena_new.h"
#include "engine/client_link.h"
#include "engine_process.h"
#include "host/arena_pool.h"
#include "ipc/record.h"
#include "programs.h"
#include "support/seeds.h"

namespace mcast::test {
namespace {

using testing::HasSubstr;

GroupSpec spec_of(const EngineProcess& engine, Member rank, uint32_t ranks) {
  auto spec = group_spec("limited", rank, ranks, {{"engine", engine.setting()}});
  spec->timeout = 20 * kSecond;
  return *spec;
}

TEST(EngineLimits, Groups) {
  service::TenantLimits limits;
  limits.groups = 1;
  EngineProcess engine(limits);
  expect_all_good(run_ranks(2, 60, [&](Member rank, DirectoryStore& store) {
    auto first = store.scoped("a"), second = store.scoped("b"), third = store.scoped("c");
    auto made = Engine::instance().create_group(spec_of(engine, rank, 2), first);
    if (!made.ok()) return false;
    const auto refused = Engine::instance().create_group(spec_of(engine, rank, 2), second);
    EXPECT_EQ(refused.status().code(), Code::kResourceExhausted);
    EXPECT_THAT(refused.status().message(), HasSubstr("engine's limit of 1 groups"));
    EXPECT_TRUE(work(**made, 1000, 2));
    EXPECT_TRUE((*made)->close(5 * kSecond).ok());
    made = Status(Code::kClosed, "");  // its place is free
    auto again = Engine::instance().create_group(spec_of(engine, rank, 2), third);
    return again.ok() && work(**again, 1000, 2);
  }));
}

TEST(EngineLimits, Memory) {
  service::TenantLimits limits;
  limits.arenas = uint64_t{40} << 20;
  EngineProcess engine(limits);
  expect_all_good(run_ranks(2, 60, [&](Member rank, DirectoryStore& store) {
    auto made = Engine::instance().create_group(spec_of(engine, rank, 2), store);
    if (!made.ok()) return false;
    EXPECT_TRUE(work(**made, 1 << 20, 20));  // spans go back: 40 MiB serve more than 40 MiB
    std::vector<std::byte> large(size_t{64} << 20);
    const Status status = broadcast(**made, large, 0);
    EXPECT_EQ(status.code(), Code::kResourceExhausted) << status.to_string();
    EXPECT_THAT(status.message(), HasSubstr("bytes of arenas (--arenas)"));
    return true;
  }));
}

// Room for the pool and one arena of spans, which these operations would not fit.
TEST(EngineLimits, TensorsThatAreMappedTakeNoSpans) {
  service::TenantLimits limits;
  limits.arenas = ArenaPool::memory_of_machine() + (uint64_t{40} << 20);
  EngineProcess engine(limits);
  expect_all_good(run_ranks(2, 60, [&](Member rank, DirectoryStore& store) {
    new_in_arenas();
    auto made = Engine::instance().create_group(spec_of(engine, rank, 2), store);
    return made.ok() && work(**made, size_t{64} << 20, 1) && reduce_all_ways(**made, 10 << 20, 1);
  }));
}

TEST(EngineLimits, OperationsInFlight) {
  service::TenantLimits limits;
  limits.operations = 3;
  EngineProcess engine(limits);
  expect_all_good(run_ranks(2, 60, [&](Member rank, DirectoryStore& store) {
    auto made = Engine::instance().create_group(spec_of(engine, rank, 2), store);
    EXPECT_TRUE(made.ok()) << made.status().to_string();
    if (!made.ok()) return false;
    Group& group = **made;
    // Else its creation may end with the other's abort.
    if (!store.set("made." + std::to_string(rank), "").ok()) return false;
    if (!store.multi_get({"made.0", "made.1"}, 30 * kSecond).ok()) return false;
    if (rank == 1) {
      std::vector<std::byte> data(100);
      const Status status = broadcast(group, data, 0, 20 * kSecond);
      EXPECT_FALSE(status.ok());
      EXPECT_THAT(status.message(), HasSubstr("operations in flight (--operations)"));
      return store.set("told", "").ok();
    }
    // Barriers that rank 1 does not call.
    std::atomic<int> ended{0};
    std::atomic<bool> named{false};
    for (int i = 0; i < 4; i++) {
      PostOptions options;
      options.done = [&](const Status& status) {
        if (status.message().find("3 operations in flight (--operations)") != std::string::npos) {
          named = true;
        }
        ended++;
      };
      EXPECT_TRUE(group.post_barrier(std::move(options)).ok());
    }
    (void)group.help(
        LaneId::kMulticast, [&] { return ended == 4; }, monotonic_now() + 20 * kSecond);
    EXPECT_EQ(ended, 4);
    EXPECT_TRUE(named);
    return store.multi_get({"told"}, 30 * kSecond).ok();  // else rank 1 may hear of this one's end
  }));
}

TEST(EngineLimits, Clients) {
  EngineProcess engine({}, 1);
  expect_all_good(run_ranks(1, 60, [&](Member, DirectoryStore&) {
    auto first = ClientLink::connect(engine.path(), 10 * kSecond);
    EXPECT_TRUE(first.ok()) << first.status().to_string();
    const auto second = ClientLink::connect(engine.path(), 10 * kSecond);
    EXPECT_EQ(second.status().code(), Code::kResourceExhausted);
    EXPECT_THAT(second.status().message(), HasSubstr("limit of 1 clients of one user"));
    return true;
  }));
}

TEST(EngineLimits, NobodyAnswers) {
  const auto link = ClientLink::connect("/nonexistent/engine.sock", 100 * kMilli);
  EXPECT_EQ(link.status().code(), Code::kUnavailable);
  EXPECT_THAT(link.status().message(), HasSubstr("cannot connect to /nonexistent/engine.sock"));
}

// A client that keeps no word: its own end of the link, whatever it likes to do with it.
class Hostile {
 public:
  static constexpr size_t kLent = size_t{1} << 20;
  Hostile(const std::string& path, uint64_t seed) : rng_(seed) {
    auto fd = connect_to(path, SOCK_SEQPACKET);
    if (fd.ok()) socket_ = LocalSocket(std::move(fd).value());
  }
  bool greet() {
    if (!socket_.valid()) return false;
    if (rng_() % 16 == 0) return true;  // without Hello
    (void)socket_.send(ipc::bytes_of(ipc::control_of(ipc::Hello{})), {}, kSecond);
    Packet packet;
    pollfd ready{socket_.fd(), POLLIN, 0};
    (void)::poll(&ready, 1, 10'000);
    if (socket_.receive(packet) != LocalSocket::Got::kPacket) return false;
    if (packet.descriptors.size() != 1) return false;
    auto memory = Segment::adopt(std::move(packet.descriptors[0]), ipc::kLinkBytes, "link");
    if (!memory.ok()) return false;
    memory_ = std::move(memory).value();
    auto& page = *reinterpret_cast<ipc::LinkPage*>(memory_.data());
    writer_ = std::make_unique<ipc::RingWriter>(ipc::RingPlace{
        &page.submission, ipc::submission_of(memory_.data()), ipc::kSubmissionBytes});
    return true;
  }
  // Something that a sound client would not do, or would.
  void act() {
    switch (rng_() % 6) {
      case 0:
        return message();
      case 1:
        if (memory_.data() != nullptr && rng_() % 8 == 0) {
          memory_.data()[rng_() % sizeof(ipc::LinkPage)] = std::byte(rng_());
        }
        return;
      case 2:
        if (memory_.data() != nullptr) memory_.data()[rng_() % memory_.size()] = std::byte(rng_());
        return;
      default:
        return record();
    }
  }
  // Asks for a group of its own and lends an arena: what it posts then comes far.
  void settle() {
    (void)socket_.send(ipc::bytes_of(ipc::control_of(1, ipc::GroupAsk{"x", 0, 1, kSecond, {}})), {},
                       kSecond);
    const auto made = Segment::create("arena", kLent);
    if (!made.ok()) return;
    const std::vector<int> files{made->fd()};
    const auto m = ipc::control_of(ipc::ControlType::kArenaOffer, 2, ipc::Arena{0, kLent});
    (void)socket_.send(ipc::bytes_of(m), files, kSecond);
    if (rng_() % 2 == 0) offer_memory(true);
    bool made_group = false, looked = !offered_;
    while ((!made_group || !looked) && !ended()) {
      Packet packet;
      pollfd ready{socket_.fd(), POLLIN, 0};
      if (::poll(&ready, 1, 5000) == 0) return;
      if (socket_.receive(packet) != LocalSocket::Got::kPacket) return;
      const auto message = ipc::parse_control(packet.bytes);
      made_group = made_group || (message && message->type == ipc::ControlType::kGroupMade);
      looked = looked || (message && message->call == 3);
    }
  }
  // A post as a sound client might make it in the settled group, as far as the parser can tell.
  void post() {
    ipc::PostRecord post;
    post.group = 1 + (rng_() % 16 == 0);
    const bool reduces = rng_() % 2 == 0;
    post.lane = reduces ? LaneId::kReduce : LaneId::kMulticast;
    post.sequence = next_[reduces];
    post.timeout = kSecond;
    const uint64_t bytes = 8 * (rng_() % 512);
    post.descriptor = {reduces ? wire::Kind::kAllreduce : wire::Kind::kAllgather, 0, 0, bytes, "x"};
    post.descriptor.element = reduces ? static_cast<uint8_t>(Element::kInt32) : 0;
    const auto slice = [&](ipc::Role role) {
      const uint64_t at = rng_() % 64 * 4096;
      const bool empty = bytes == 0, own = offered_ && rng_() % 2 == 0;
      // Of its own memory: where there is something, or, rarely, where there is not.
      const uint64_t here = rng_() % 256 == 0 ? rng_() >> 1 : reinterpret_cast<uint64_t>(&own_[at]);
      ipc::add_slice(post.runs,
                     static_cast<ipc::Space>(empty ? 0
                                             : own ? 1
                                                   : 16),
                     role,
                     empty ? 0
                     : own ? here
                           : at,
                     bytes);
    };
    slice(ipc::Role::kInput);
    slice(ipc::Role::kOutput);
    next_[reduces] += post.group == 1;
    submit(ipc::bytes_of(ipc::Submission(post)));
  }
  // Reads nothing of what is over, but makes room for it.
  void forget() {
    auto& words = reinterpret_cast<ipc::LinkPage*>(memory_.data())->completion;
    words.head.store(words.tail.load());
  }
  bool ended() {
    pollfd end{socket_.fd(), 0, 0};
    return ::poll(&end, 1, 0) != 0;
  }
  // Every second one works for a while like a sound client, so that its wrongs come late and deep.
  void attack(bool patient) {
    if (!greet()) return;
    if (patient && writer_) {
      settle();
      for (int i = 0; i < 3000 && !ended(); i++) {
        if (rng_() % 500 == 0)
          act();
        else
          post();
        if (i % 64 == 0) forget();
      }
    }
    for (int i = 0; i < 60; i++) act();
  }
  // Its records that the engine has read, once that has ended the link or has read all.
  uint64_t taken() {
    if (!writer_) return 0;
    const auto& words = reinterpret_cast<const ipc::LinkPage*>(memory_.data())->submission;
    pollfd end{socket_.fd(), 0, 0};
    while (::poll(&end, 1, 1) == 0 && !ends_.empty() && words.head.load() < ends_.back()) {
    }
    const uint64_t head = words.head.load();  // or what was written over it
    return static_cast<uint64_t>(std::upper_bound(ends_.begin(), ends_.end(), head) -
                                 ends_.begin());
  }

 private:
  void message() {
    using Type = ipc::ControlType;
    ipc::Control m;
    switch (rng_() % 7) {
      case 0:
        return offer();
      case 6:
        return offer_memory(rng_() % 2 == 0);
      case 1:
        m = ipc::control_of(rng_() % 8, ipc::GroupAsk{"x", 0, 2, kSecond, {}});
        break;
      case 2:
        m = ipc::control_of(rng_() % 8, ipc::Close{static_cast<uint32_t>(rng_() % 4), 0, true});
        break;
      case 3:
        m = ipc::control_of(rng_() % 8, ipc::StoreAnswer{{}, {"value"}});
        break;
      default:
        m = {static_cast<Type>(rng_() % 70), rng_() % 8, {"1"}};
        break;
    }
    auto bytes = ipc::bytes_of(m);
    if (rng_() % 3 == 0 && !bytes.empty())
      bytes[rng_() % bytes.size()] ^= std::byte(1 + rng_() % 255);
    (void)socket_.send(bytes, {}, 0);
  }
  // A sound arena, one that could shrink, none, or two; of the right size or not.
  void offer() {
    const uint64_t bytes = 1 + rng_() % (1u << 22);
    const auto made = Segment::create("hostile", bytes);
    const Fd loose(memfd_create("loose", MFD_CLOEXEC));
    std::vector<int> files;
    if (rng_() % 2 == 0) files.push_back(made.ok() ? made->fd() : 0);
    if (rng_() % 3 == 0) files.push_back(loose.get());
    const ipc::Arena arena{0, rng_() % 4 == 0 ? rng_() : bytes};
    const auto m = ipc::control_of(ipc::ControlType::kArenaOffer, rng_() % 8, arena);
    (void)socket_.send(ipc::bytes_of(m), files, 0);
  }
  // Its memory, or what is none, or of another.
  void offer_memory(bool sound) {
    static const std::array<uint64_t, 2> kWord{1, 2};
    ipc::MemoryOffer memory{reinterpret_cast<uint64_t>(kWord.data()), kWord};
    if (!sound) memory.cookie[rng_() % 2] = rng_();
    if (!sound && rng_() % 4 == 0) memory.address = rng_();
    static constexpr const char* kFiles[] = {"/proc/self/mem", "/proc/1/mem", "/dev/zero",
                                             "/proc/self/maps"};
    const Fd file(
        open(kFiles[sound ? 0 : rng_() % 4], (rng_() % 8 == 0 ? O_RDONLY : O_RDWR) | O_CLOEXEC));
    std::vector<int> files;
    if (file.valid()) files.push_back(file.get());
    if (!sound && rng_() % 8 == 0) files.push_back(0);
    (void)socket_.send(ipc::bytes_of(ipc::control_of(3, memory)), files, kSecond);
    offered_ = true;
  }
  void record() {
    if (!writer_) return;
    ipc::PostRecord post;
    post.group = rng_() % 3;
    post.sequence = rng_() % 3;
    post.descriptor.kind = static_cast<wire::Kind>(1 + rng_() % wire::kKindMax);
    post.descriptor.bytes = rng_() % 4096;
    post.staged = rng_() % 2 == 0;
    post.more = rng_() % 8 == 0;
    for (uint64_t i = rng_() % 4; i > 0; i--) {
      ipc::add_slice(post.runs, static_cast<ipc::Space>(rng_() % 2 == 0 ? 16 : rng_() % 2),
                     static_cast<ipc::Role>(rng_() % 2), rng_() % (1u << 23), rng_() % 8192);
    }
    ipc::Submission one = post;
    if (rng_() % 4 == 0) one = ipc::ReadyRecord{LaneId::kReduce, 1, 0, 0, rng_()};
    auto bytes = ipc::bytes_of(one);
    if (rng_() % 3 == 0) bytes[4 + rng_() % (bytes.size() - 4)] ^= std::byte(1 + rng_() % 255);
    submit(bytes);
  }
  void submit(const std::vector<std::byte>& bytes) {
    for (int i = 0; !writer_->write(bytes); i++) {
      if (writer_->broken() || ended() || i > 100) return;
      usleep(100);
    }
    ends_.push_back((ends_.empty() ? 0 : ends_.back()) + bytes.size());
    auto& page = *reinterpret_cast<ipc::LinkPage*>(memory_.data());
    if (ipc::RingWriter::take_sleeper(page.engine_asleep)) {
      (void)socket_.send(ipc::bytes_of({ipc::ControlType::kLook, 0, {}}), {}, 0);
    }
  }

  std::mt19937_64 rng_;
  LocalSocket socket_;
  Segment memory_;
  std::unique_ptr<ipc::RingWriter> writer_;
  std::vector<uint64_t> ends_;  // in the ring, of the records written
  bool offered_ = false;
  std::vector<std::byte> own_ = std::vector<std::byte>(64 * 4096 + 4096);
  uint32_t next_[2] = {0, 0};  // sequence of the settled group's lanes
};

// Posts to a group that is not there are answered, so there is no end of answers.
TEST(EngineLimits, WhoReadsNoCompletionsIsEnded) {
  service::TenantLimits limits;
  limits.operations = 16;
  EngineProcess engine(limits);
  expect_all_good(run_ranks(1, 60, [&](Member, DirectoryStore&) {
    Hostile client(engine.path(), 1);
    if (!client.greet()) return false;
    int posts = 0;
    while (!client.ended() && posts < 200'000) {
      client.post();
      posts++;
    }
    EXPECT_LT(posts, 20'000) << "both rings, and what the engine keeps";
    return client.ended();
  }));
}

// By a client that is in order otherwise: the post comes to the group.
TEST(EngineLimits, ASliceBesideItsArenaEndsTheClient) {
  EngineProcess engine;
  expect_all_good(run_ranks(2, 60, [&](Member rank, DirectoryStore& store) {
    const GroupSpec spec = spec_of(engine, rank, 2);
    if (rank == 1) {
      auto made = Engine::instance().create_group(spec, store);
      if (!made.ok() || !store.set("both are there", "").ok()) return false;
      std::vector<std::byte> data(4096);
      const Status status = broadcast(**made, data, 0);
      EXPECT_EQ(status.code(), Code::kPeerLost) << status.to_string();
      EXPECT_THAT(status.message(), HasSubstr("a slice lies beside its arena"));
      return true;
    }
    auto link = ClientLink::connect(engine.path(), 5 * kSecond);
    if (!link.ok()) return false;
    const auto made = (*link)->make_group(spec, store);
    const auto span = (*link)->arenas().take(4096);
    if (!made.ok() || !*made || !span.ok()) return false;
    if (!store.multi_get({"both are there"}, 20 * kSecond).ok()) return false;
    ipc::PostRecord post;
    post.group = (*made)->handle;
    post.timeout = 20 * kSecond;
    post.descriptor = {wire::Kind::kBroadcast, 0, 0, 4096, "broadcast"};
    ipc::add_slice(post.runs, static_cast<ipc::Space>((*span)->space), ipc::Role::kInput,
                   ClientArenas::kLeast - 4095, 4096);
    EXPECT_TRUE((*link)->submit(post).ok());
    for (int i = 0; i < 5000 && (*link)->lost().ok(); i++) usleep(1000);
    return !(*link)->lost().ok();
  }));
}

// Two ranks of a job work, and compare bytes, while a third process attacks their engine.
TEST(EngineLimits, AHostileClientHarmsNobody) {
  service::TenantLimits limits;
  limits.arenas = uint64_t{64} << 20;
  EngineProcess engine(limits);
  const Seeds all = seeds(60);
  const auto limit = static_cast<unsigned>(120 + all.size() / 10);
  expect_all_good(run_ranks(3, limit, [&](Member rank, DirectoryStore& store) {
    if (rank == 2) {
      uint64_t taken = 0;
      for (const uint64_t seed : all) {
        Hostile client(engine.path(), seed);
        client.attack(seed % 2 == 0);
        taken += client.taken();
      }
      std::printf("%lu hostile records were read\n", taken);
      EXPECT_GT(taken, 10 * all.size()) << "the attack has reached the engine";
      return store.set("attacked", "").ok();
    }
    auto made = Engine::instance().create_group(spec_of(engine, rank, 2), store);
    if (!made.ok()) return false;
    int rounds = 0;
    for (bool over = false; !over; rounds++) {
      if (!work(**made, 50'000, 1)) return false;
      if (!reduce_all_ways(**made, 3000, rounds)) return false;
      // Rank 0 sees the end, and says so.
      std::vector<std::byte> word(1);
      if (rank == 0) {
        const bool last = rounds >= 2 && store.multi_get({"attacked"}, 0).ok();
        word[0] = std::byte(last ? 1 : 0);
      }
      if (!broadcast(**made, word, 0).ok()) return false;
      over = word[0] == std::byte{1};
    }
    EXPECT_GE(rounds, 3);
    return (*made)->close(5 * kSecond).ok();
  }));
}

}  // namespace
}  // namespace mcast::test
