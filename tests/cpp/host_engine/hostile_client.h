// A client of a host engine that breaks the protocol: it has its own end of the link and does
// anything with it.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/element.h"
#include "host_engine/client/client_link.h"
#include "host_engine/ipc/record.h"
#include "support/ranks/processes.h"

namespace mcast::test {

// A store for two clients of one process.
class PairStore final : public KeyValueStore {
 public:
  Status set(const std::string& key, const std::string& value) override {
    const std::lock_guard<std::mutex> held(mutex_);
    values_[key] = value;
    news_.notify_all();
    return {};
  }
  Result<std::vector<std::string>> multi_get(const std::vector<std::string>& keys,
                                             Nanos timeout) override {
    std::unique_lock<std::mutex> held(mutex_);
    const auto all = [&] {
      return gone_ || std::all_of(keys.begin(), keys.end(),
                                  [this](const auto& key) { return values_.count(key) != 0; });
    };
    const auto patience = std::chrono::nanoseconds(std::min(timeout, 20 * kSecond));
    if (!news_.wait_for(held, patience, all) || gone_) return Status(Code::kTimeout, "no such key");
    std::vector<std::string> found;
    for (const std::string& key : keys) found.push_back(values_.at(key));
    return found;
  }
  void give_up() {
    const std::lock_guard<std::mutex> held(mutex_);
    gone_ = true;
    news_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable news_;
  std::map<std::string, std::string> values_;
  bool gone_ = false;
};

class Hostile {
 public:
  static constexpr size_t kLent = size_t{1} << 20;
  Hostile(const std::string& path, uint64_t seed) : path_(path), rng_(seed) {
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
  // Does something that a correct client would or would not do.
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
  void ask_for_group(uint64_t call, uint32_t size,
                     std::map<std::string, std::string> settings = {}) {
    const ipc::GroupAsk asked{"x", 0, size, 20 * kSecond, std::move(settings)};
    (void)socket_.send(ipc::bytes_of(ipc::control_of(call, asked)), {}, kSecond);
  }
  // Returns the next message, or nothing if the engine has ended the link or sends nothing for a
  // while.
  std::optional<ipc::Control> hear() {
    Packet packet;
    pollfd ready{socket_.fd(), POLLIN, 0};
    if (::poll(&ready, 1, 10'000) <= 0) return std::nullopt;
    if (socket_.receive(packet) != LocalSocket::Got::kPacket) return std::nullopt;
    return ipc::parse_control(packet.bytes);
  }
  // Makes a group with a second, correct client, and lends an arena, so that later posts get far
  // into the engine.
  void settle() {
    const auto mine = group_spec("x", 0, 2, {}), other = group_spec("x", 1, 2, {});
    if (!mine || !other) return;
    PairStore store;
    std::thread partner([&] {
      auto link = ClientLink::connect(path_, 10 * kSecond);
      if (!link.ok()) return;
      partner_ = *link;
      (void)partner_->make_group(*other, store);
    });
    ask_for_group(1, 2, mine->config.values());
    lend();
    if (rng_() % 2 == 0) offer_memory(true);
    bool made = false, looked = !offered_;
    while (!made || !looked) {
      const auto message = hear();
      if (!message) break;
      if (message->call == 1) answer(*message, store);
      made = made || message->type == ipc::ControlType::kGroupMade;
      looked = looked || message->call == 3;
    }
    if (!made) store.give_up();
    partner.join();
  }
  // A post in the settled group that looks correct to the parser.
  void post() {
    ipc::PostRecord post;
    post.group = 1 + (rng_() % 16 == 0);
    const bool reduces = rng_() % 2 == 0;
    post.lane = reduces ? LaneId::kReduce : LaneId::kMulticast;
    post.sequence = next_[reduces];
    post.timeout = 20 * kSecond;  // the other client posts nothing
    const uint64_t bytes = 8 * (rng_() % 512);
    post.descriptor = {reduces ? wire::Kind::kAllreduce : wire::Kind::kAllgather, 0, 0, bytes, "x"};
    post.descriptor.element = reduces ? static_cast<uint8_t>(Element::kInt32) : 0;
    const auto slice = [&](ipc::Role role) {
      const uint64_t at = rng_() % 64 * 4096;
      const bool empty = bytes == 0, own = offered_ && rng_() % 2 == 0;
      // An address of its own memory, or rarely an unmapped one.
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
    if (!reduces) slice(ipc::Role::kOutput);
    next_[reduces] += post.group == 1;
    submit(ipc::bytes_of(ipc::Submission(post)));
  }
  // A send or a receive as a correct client might make it, or a wrong one: any peer, memory outside
  // its arena, the same memory for several, or more readable bytes than there are.
  void send_or_receive() {
    ipc::MessageRecord message;
    message.group = 1 + (rng_() % 16 == 0);
    message.number = rng_() % 4096 == 0 ? messages_ / 2 : messages_++;
    message.receives = rng_() % 2 == 0;
    message.staged = !message.receives && rng_() % 4 == 0;
    message.peer = rng_() % 2048 == 0 ? static_cast<Member>(rng_()) : 1;
    message.tag = rng_() % 4;
    message.timeout = 20 * kSecond;
    const uint64_t bytes = 8 * (rng_() % 512), at = rng_() % 64 * 4096;
    const bool own = offered_ && rng_() % 2 == 0, beside = rng_() % 4096 == 0;
    message.memory = {bytes == 0 ? ipc::Space::kNone : static_cast<ipc::Space>(own ? 1 : 16),
                      message.receives ? ipc::Role::kOutput : ipc::Role::kInput,
                      1,
                      own ? reinterpret_cast<uint64_t>(&own_[at]) : at + (beside ? kLent : 0),
                      bytes,
                      0};
    submit(ipc::bytes_of(ipc::Submission(message)));
    if (!message.staged) return;
    submit(ipc::bytes_of(ipc::Submission(
        ipc::ReadyRecord{LaneId::kReduce, message.group, message.number, 0, rng_(), true})));
  }
  // Frees the completion ring without reading it.
  void forget() {
    auto& words = reinterpret_cast<ipc::LinkPage*>(memory_.data())->completion;
    words.head.store(words.tail.load());
  }
  // Claims to have read more than was written.
  void break_completions() {
    auto& words = reinterpret_cast<ipc::LinkPage*>(memory_.data())->completion;
    words.head.store(words.tail.load() + 8);
  }
  bool look() { return socket_.send(ipc::bytes_of({ipc::ControlType::kLook, 0, {}}), {}, 0).ok(); }
  bool ended() {
    pollfd end{socket_.fd(), 0, 0};
    return ::poll(&end, 1, 0) != 0;
  }
  // kPatient first works like a correct client, so that its violations happen late and deep in the
  // engine. kMutating also has a group, and changes one byte of each record that it posts there.
  enum class Manner : uint8_t { kWild, kPatient, kMutating };
  void attack(Manner manner) {
    if (!greet()) return;
    if (manner != Manner::kWild && writer_) {
      settle();
      mutating_ = manner == Manner::kMutating;
      for (int i = 0; i < 3000 && !ended(); i++) {
        if (rng_() % 500 == 0)
          act();
        else if (rng_() % 2 == 0)
          send_or_receive();
        else
          post();
        if (i % 64 == 0) forget();
      }
    }
    for (int i = 0; i < 60; i++) act();
  }
  struct Taken {
    uint64_t records = 0, mutated = 0;
  };
  // The number of records that the engine has read, once it has ended the link or has read all.
  Taken taken() {
    if (!writer_) return {};
    const auto& words = reinterpret_cast<const ipc::LinkPage*>(memory_.data())->submission;
    pollfd end{socket_.fd(), 0, 0};
    while (::poll(&end, 1, 1) == 0 && !ends_.empty() && words.head.load() < ends_.back()) {
    }
    const uint64_t head = words.head.load();  // or a value written over it
    const auto until = [head](const std::vector<uint64_t>& ends) {
      return static_cast<uint64_t>(std::upper_bound(ends.begin(), ends.end(), head) - ends.begin());
    };
    return {until(ends_), until(mutated_ends_)};
  }

 private:
  // Answers the store requests of the group's creation.
  void answer(const ipc::Control& question, PairStore& store) {
    ipc::StoreSet set;
    ipc::StoreGet get;
    ipc::StoreAnswer told;
    if (question.type == ipc::ControlType::kStoreSet && read(question, set)) {
      told.verdict = ipc::Verdict::of(store.set(set.key, set.value));
    } else if (question.type == ipc::ControlType::kStoreGet && read(question, get)) {
      auto found = store.multi_get(get.keys, get.timeout);
      told.verdict = ipc::Verdict::of(found.status());
      if (found.ok()) told.values = std::move(found).value();
    } else {
      return;
    }
    (void)socket_.send(ipc::bytes_of(ipc::control_of(question.call, told)), {}, kSecond);
  }
  void lend() {
    const auto made = Segment::create("arena", kLent);
    if (!made.ok()) return;
    const std::vector<int> files{made->fd()};
    const auto m = ipc::control_of(ipc::ControlType::kArenaOffer, 2, ipc::Arena{0, kLent});
    (void)socket_.send(ipc::bytes_of(m), files, kSecond);
  }
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
  // Offers a correct arena, one that could shrink, none, or two; of the right size or not.
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
  // Offers its own memory, invalid memory, or that of another process.
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
    if (rng_() % 4 == 0) one = ipc::ReadyRecord{LaneId::kReduce, 1, 0, 0, rng_(), rng_() % 2 == 0};
    if (rng_() % 4 == 0) {
      ipc::MessageRecord message;
      message.group = rng_() % 3;
      message.number = rng_() % 3;
      message.peer = rng_() % 4;
      message.memory = {static_cast<ipc::Space>(rng_() % 2 == 0 ? 16 : 1),
                        ipc::Role::kInput,
                        1,
                        rng_() % (1u << 23),
                        rng_() % 8192,
                        0};
      one = message;
    }
    const bool before = std::exchange(mutating_, rng_() % 3 == 0);
    submit(ipc::bytes_of(one));
    mutating_ = before;
  }
  void submit(std::vector<std::byte> bytes) {
    const bool mutated = mutating_;
    if (mutated) bytes[4 + rng_() % (bytes.size() - 4)] ^= std::byte(1 + rng_() % 255);
    for (int i = 0; !writer_->write(bytes); i++) {
      if (writer_->broken() || ended() || i > 100) return;
      usleep(100);
    }
    ends_.push_back((ends_.empty() ? 0 : ends_.back()) + bytes.size());
    if (mutated) mutated_ends_.push_back(ends_.back());
    auto& page = *reinterpret_cast<ipc::LinkPage*>(memory_.data());
    if (ipc::RingWriter::take_sleeper(page.engine_asleep)) {
      (void)socket_.send(ipc::bytes_of({ipc::ControlType::kLook, 0, {}}), {}, 0);
    }
  }

  const std::string path_;
  std::mt19937_64 rng_;
  std::shared_ptr<ClientLink> partner_;
  LocalSocket socket_;
  Segment memory_;
  std::unique_ptr<ipc::RingWriter> writer_;
  std::vector<uint64_t> ends_;          // in the ring, of the records written
  std::vector<uint64_t> mutated_ends_;  // of the mutated records
  bool mutating_ = false;
  bool offered_ = false;
  std::vector<std::byte> own_ = std::vector<std::byte>(64 * 4096 + 4096);
  uint32_t messages_ = 0;      // numbers used so far
  uint32_t next_[2] = {0, 0};  // next sequence of each lane of the settled group
};

}  // namespace mcast::test
