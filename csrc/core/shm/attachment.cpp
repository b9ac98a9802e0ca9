// Rank 0's record names the descriptor of a new segment; every record names its process's mailbox.
// Each rank maps them through /proc, verifies that each mailbox contains the announced token, and
// reads the copy of the token in the peer's private memory; then all exchange their verdicts, and
// the worst one applies to all. Ranks that an engine of the host runs name a token instead, for
// which the engine's directory gives the same facts: they find each other in one process.
#include "shm/attachment.h"

#include <algorithm>
#include <utility>

#include "shm/failure_record.h"
#include "shm/futex.h"

namespace mcast {
namespace {

std::string cannot(Member self, Member rank, const Status& why) {
  return "rank " + std::to_string(self) + " cannot share memory with rank " + std::to_string(rank) +
         ": " + why.message();
}

}  // namespace

Result<Attachment> Attachment::prepare(Member self, uint32_t size, const PeerRegistry& registry,
                                       bool makes_segment,
                                       const std::shared_ptr<HostDirectory>& directory,
                                       const std::string& name) {
  Attachment attachment(self, size);
  attachment.address_ = registry.address();
  if (self == 0 && makes_segment) {
    Result<Segment> made = Segment::create("mcast-group", ControlBlock::bytes(size));
    if (!made.ok()) return made.status();
    attachment.address_.segment = made->fd();
    attachment.shared_->segment = std::move(made).value();
  }
  if (!directory) return attachment;
  HostShared& shared = *attachment.shared_;
  shared.own = std::make_shared<Published>();
  shared.theirs.resize(size);
  attachment.directory_ = directory;
  attachment.name_ = name;
  attachment.ticket_ =
      HostDirectory::enter(directory, {name, self, size, attachment.address_, shared.own});
  return attachment;
}

HostAddress Attachment::address() const {
  if (!ticket_) return address_;
  HostAddress told;
  told.token_here = ticket_->token();
  return told;
}

bool Attachment::look_up(Member rank, HostAddress& address) {
  Status why;
  if ((directory_ != nullptr) != (address.token_here != 0)) {
    why = Status(Code::kUnavailable, "an engine of the host runs only one of them");
  } else if (directory_) {
    auto found = directory_->find(address.token_here, {name_, rank, size_, {}, nullptr}, self_);
    why = found.status();
    if (why.ok()) {
      address = found->address;
      shared_->theirs[rank] = found->published;
    }
  }
  if (!why.ok()) verdict_ = cannot(self_, rank, why);
  return why.ok();
}

// Finds the process of `rank`, and how its memory can be accessed.
std::optional<PeerMemory> Attachment::find(Member rank, const HostAddress& address,
                                           PeerRegistry& registry) {
  auto peer = registry.find(address);
  if (!peer.ok()) {
    verdict_ = cannot(self_, rank, peer.status());
    return std::nullopt;
  }
  shared_->peers[rank] = std::move(peer).value();
  if (directory_) return PeerMemory::kMapped;
  uint64_t copy = 0;
  const Status read = shared_->peers[rank]->process.read(
      address.private_copy, reinterpret_cast<std::byte*>(&copy), sizeof copy);
  if (!read.ok() || copy != address.token) return PeerMemory::kSlots;
  return shared_->peers[rank]->arena.data() != nullptr ? PeerMemory::kMapped : PeerMemory::kRead;
}

void Attachment::find_all(const std::vector<HostAddress>& addresses,
                          const std::vector<uint32_t>* host_of, PeerMemory most,
                          PeerRegistry& registry) {
  shared_->peers.resize(size_);
  const bool mapped = directory_ || address_.arena >= 0;
  PeerMemory least = std::min(most, mapped ? PeerMemory::kMapped : PeerMemory::kRead);
  uint32_t here = 1;
  for (uint32_t i = 0; i < size_; i++) {
    const auto rank = static_cast<Member>(i);
    if (rank == self_ || (host_of != nullptr && (*host_of)[rank] != (*host_of)[self_])) continue;
    const std::optional<PeerMemory> memory = find(rank, addresses[rank], registry);
    if (!memory) return;
    least = std::min(least, *memory);
    here++;
  }
  registry.note_ranks(here);
  verdict_ = word_of(least);
}

bool Attachment::look_up(std::vector<HostAddress>& addresses,
                         const std::vector<uint32_t>* host_of) {
  for (size_t r = 0; r < addresses.size(); r++) {
    const bool near = host_of == nullptr || (*host_of)[r] == (*host_of)[self_];
    if (r != self_ && near && !look_up(static_cast<Member>(r), addresses[r])) return false;
  }
  return true;
}

void Attachment::attach(std::vector<HostAddress> addresses, PeerMemory most,
                        PeerRegistry& registry) {
  if (!look_up(addresses, nullptr)) return;
  HostShared& s = *shared_;
  if (self_ != 0) {
    Result<Segment> found = Segment::attach(static_cast<pid_t>(addresses[0].pid),
                                            addresses[0].segment, ControlBlock::bytes(size_));
    if (!found.ok()) {
      verdict_ = cannot(self_, 0, found.status());
      return;
    }
    s.segment = std::move(found).value();
  }
  s.block = ControlBlock(s.segment.data(), size_);
  find_all(addresses, nullptr, most, registry);
}

void Attachment::attach_neighbours(std::vector<HostAddress> addresses,
                                   const std::vector<uint32_t>& host_of, PeerMemory most,
                                   PeerRegistry& registry) {
  if (look_up(addresses, &host_of)) find_all(addresses, &host_of, most, registry);
}

HostReader Attachment::reader() const {
  HostReader reader;
  if (shared_->own) {
    reader.read = [theirs = shared_->theirs](Member from, uint64_t address, std::byte* to,
                                             size_t length) {
      return theirs[from]->copy(address, to, length);
    };
    reader.publish = [own = shared_->own](const void* data, size_t bytes,
                                          const std::shared_ptr<const void>& owner) {
      own->add(data, bytes, owner);
    };
  } else {
    reader.read = [peers = shared_->peers](Member from, uint64_t address, std::byte* to,
                                           size_t length) {
      return peers[from]->process.read(address, to, length).ok();
    };
  }
  return reader;
}

const char* Attachment::word_of(PeerMemory memory) {
  switch (memory) {
    case PeerMemory::kSlots:
      return "slots";
    case PeerMemory::kRead:
      return "direct";
    case PeerMemory::kMapped:
      break;
  }
  return "mapped";
}

std::string Attachment::unite(const std::vector<std::string>& verdicts, PeerMemory& memory) {
  memory = PeerMemory::kMapped;
  for (const std::string& verdict : verdicts) {
    bool known = false;
    for (const PeerMemory m : {PeerMemory::kSlots, PeerMemory::kRead, PeerMemory::kMapped}) {
      if (verdict != word_of(m)) continue;
      known = true;
      memory = std::min(memory, m);
    }
    if (!known) return verdict;
  }
  return "";
}

Status Attachment::look_after(Nanos now, Nanos limit) {
  asked_.resize(shared_->peers.size());
  for (size_t rank = 0; rank < shared_->peers.size(); rank++) {
    if (shared_->peers[rank] == nullptr) continue;
    const HostPeer& peer = *shared_->peers[rank];
    const auto m = static_cast<Member>(rank);
    if (!peer.process.alive()) return peer.ended(m);
    Asked& a = asked_[rank];
    if (a.question == 0 || peer.answered(a.question)) {
      a.question = peer.ask();
      a.answered = now;
    } else if (now - a.answered >= limit) {
      return HostPeer::silent(m, now - a.answered, limit);
    }
  }
  return {};
}

std::vector<Member> Attachment::missing() const {
  std::vector<Member> ranks;
  for (uint32_t i = 0; i < size_; i++) {
    const auto m = static_cast<Member>(i);
    if (shared_->block.state(0, m).joined.load(std::memory_order_seq_cst) == 0) ranks.push_back(m);
  }
  return ranks;
}

void Attachment::ring_all() const {
  for (uint32_t m = 0; m < size_; m++) {
    ring(shared_->block.state(0, static_cast<Member>(m)).doorbell);
  }
}

Result<bool> Attachment::joined_by_all(Nanos patience) {
  RankState& mine = shared_->block.state(0, self_);
  const auto look = [this]() -> Result<bool> {
    const FailureRecord& failure = shared_->block.failure();
    const bool failed = failure_readable(failure);
    // All have joined: a failure since then belongs to an operation of faster ranks.
    if (missing().empty()) return true;
    if (failed) return read_failure(failure);
    return false;
  };
  if (mine.joined.exchange(1, std::memory_order_seq_cst) == 0 && missing().empty()) {
    ring_all();  // the last rank to join; two may both see themselves as last
  }
  const uint32_t bell = mine.doorbell.load(std::memory_order_seq_cst);
  Result<bool> all = look();
  if (!all.ok() || *all) return all;
  futex_wait(mine.doorbell, bell, patience);
  return look();
}

void Attachment::refuse(const Status& why) {
  if (shared_->block.members() == 0) return;  // nothing was mapped
  shared_->block.state(0, self_).joined.store(0, std::memory_order_seq_cst);
  (void)claim_failure(shared_->block.failure(), why.with_context("rank " + std::to_string(self_)),
                      self_, self_);
  ring_all();
}

std::shared_ptr<HostShared> Attachment::take() {
  shared_->segment.close_fd();
  ticket_.reset();
  return shared_;
}

}  // namespace mcast
