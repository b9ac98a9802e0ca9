// The Datagram endpoint over one unreliable-datagram queue pair with a completion queue of its own:
// a ring of registered send entries posted in chains, a ring of pre-posted receives, and
// memberships.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "transport/transport.h"
#include "transport/verbs/device.h"
#include "transport/verbs/gather.h"
#include "transport/verbs/multicast.h"
#include "transport/verbs/rings.h"

namespace mcast::verbs {

// Maximum number of distinct groups joined at once, as with sockets. Devices allow 248 or more per
// queue pair.
inline constexpr size_t kMaxGroups = 240;

class UdEndpoint final : public Datagram {
 public:
  UdEndpoint(Device& device, CmChannel& cm, UdStats& stats)
      : device_(device), cm_(cm), stats_(stats), cq_(device) {}
  ~UdEndpoint() override;
  UdEndpoint(const UdEndpoint&) = delete;
  UdEndpoint& operator=(const UdEndpoint&) = delete;
  Status open(const VerbsOptions& options);

  size_t max_datagram(const MulticastAddress&) const override { return device_.mtu(); }
  // Three quarters of the posted receives: the rest may be waiting to be posted again.
  size_t receive_budget() const override { return receives_.entries() * device_.mtu() / 4 * 3; }
  // Waits for the reply of rdma_cm, at most VerbsOptions::join_patience. A probe has to check that
  // the group then reaches all members.
  Status join(const MulticastAddress& address) override;
  void leave(const MulticastAddress& address) override;
  using Datagram::lend;
  Bytes lend(const MulticastAddress& address, size_t size, Echo echo) override;
  void commit(size_t size) override;
  bool flush() override;
  size_t gather_from() const override { return sources_ ? kGatherFrom : SIZE_MAX; }
  bool commit_gather(size_t header, const Slice& block, size_t offset, size_t length) override;
  Source source() const override;
  std::vector<IpAddress> sources_of(const StreamAddress& endpoint) const override;
  size_t receive(DatagramSink& sink, size_t max_bytes) override;

  CompletionQueue& completions() noexcept { return cq_; }
  // Time until the memberships need receive() to be called; kNever: not before something arrives.
  Nanos until_timer() const noexcept;
  // Returns true if completions were already taken, so that no event will announce them.
  bool pending() const noexcept { return receives_.any(); }
  size_t receive_entries() const noexcept { return receives_.entries(); }
  void abandon() noexcept;

 private:
  struct Queued {  // committed, but not posted
    uint16_t entry;
    size_t size;         // in the send entry
    ConstBytes payload;  // outside the entry, in memory registered under `key`
    uint32_t key;
  };
  struct Group {
    int joins = 0;
    std::unique_ptr<Membership> membership;
    std::deque<Queued> queue;
  };
  using Groups = std::map<MulticastAddress, Group>;

  // Replaces a broken queue pair, after pauses that grow if it keeps breaking.
  void mend(Nanos now);
  Status rebuild();
  void note_broken(const char* why);
  // Posts waiting datagrams and rejoins groups whose membership the fabric ended.
  void maintain();
  Status make_qp();
  Group& find_or_start(const MulticastAddress& address);
  // Drops the datagrams queued for the group and leaves it.
  void forget(Groups::iterator group);
  void enqueue(size_t size, ConstBytes payload, uint32_t key, Gathered held);
  // Number of datagrams queued for groups whose address is not known yet.
  size_t waiting() const;
  void reap();
  void on_completion(const ibv_wc& wc);
  bool is_own(const ibv_wc& wc, const std::byte* header) const;
  // Posts the datagrams queued for all groups, or for one, as far as the device takes them.
  // Datagrams that wait for their group's address do not block other groups.
  void push();
  void push(Group& group);
  size_t post_chain(Group& group, size_t count);
  void drop_head(Group& group);
  void recover();
  void repost(uint32_t entry);
  void post_receives();

  Device& device_;
  CmChannel& cm_;
  UdStats& stats_;
  VerbsOptions options_;
  CompletionQueue cq_;
  ibv_qp* qp_ = nullptr;
  uint32_t qp_number_ = 0;
  bool broken_ = false;  // the queue pair cannot be used any more
  Status problem_;       // why it could not be replaced
  Nanos next_mend_ = 0, pause_ = 0;
  SendRing sends_;
  ReceiveRing receives_;
  bool send_broken_ = false;             // the queue pair is in the send error state
  std::optional<GatherSource> sources_;  // if the device can gather payloads

  size_t queued_ = 0;  // number of datagrams, in all groups
  struct Lent {
    MulticastAddress to;
    size_t size = 0;  // 0 if nothing is lent
  } lent_;
  Groups groups_;
  uint64_t address_changes_ = 0;
  bool abandoned_ = false;
};

}  // namespace mcast::verbs
