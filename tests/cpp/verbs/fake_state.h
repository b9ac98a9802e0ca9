// The state of FakeVerbs, for its two halves (verbs and rdma_cm).
#pragma once

#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "verbs/fake_verbs.h"

namespace mcast::testing {

// A descriptor that is readable once for each ring.
inline int semaphore() { return ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK | EFD_SEMAPHORE); }

inline void ring(int fd) {
  const uint64_t one = 1;
  if (::write(fd, &one, sizeof one) < 0) ADD_FAILURE() << "eventfd";
}

inline bool take(int fd) {
  uint64_t count = 0;
  return ::read(fd, &count, sizeof count) == sizeof count;
}

struct FakeVerbs::Channel : rdma_event_channel {
  std::deque<std::unique_ptr<Event>> events;
};

struct FakeVerbs::Event : rdma_cm_event {
  std::vector<std::byte> data;
};

struct FakeVerbs::CompChannel : ibv_comp_channel {
  std::deque<ibv_cq*> events;
};

struct FakeVerbs::Cq : ibv_cq {
  CompChannel* comp = nullptr;
  std::deque<ibv_wc> entries;
  size_t depth = 0;
  size_t promised = 0;  // entries that its queue pairs can fill
  bool armed = false;
  bool overrun = false;  // it takes no more, and polling fails
};

struct FakeVerbs::Qp : ibv_qp {
  Cq* send = nullptr;
  Cq* receive = nullptr;
  ibv_qp_cap cap{};
  uint32_t key = 0;
  uint16_t pkey_index = 0;
  struct Receive {
    uint64_t wr_id;
    ibv_sge sge;
  };
  std::deque<Receive> receives;
  std::map<std::string, uint16_t> groups;  // MGID -> LID
  Qp* peer = nullptr;
  size_t in_flight = 0;  // sends without a completion so far
};

struct FakeVerbs::Id : rdma_cm_id {
  Channel* owner = nullptr;
  Id* partner = nullptr;  // the other end of a connection or a request
  bool listening = false;
  bool connected = false;
  uint16_t port = 0, target = 0;
  bool joined = false;
  in_addr_t group = 0;
  bool resolving = false;  // not answered yet
};

struct FakeVerbs::Handle : ibv_ah {
  ibv_ah_attr attr{};
};

}  // namespace mcast::testing
