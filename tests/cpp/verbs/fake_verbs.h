// A device and a fabric in memory behind the table of functions: queue pairs, completion queues,
// rdma_cm and multicast groups as the transport uses them, with one thread and immediate delivery.
// It is strict where hardware is: keys and ranges are checked, a datagram without a posted receive
// is lost, a message without one breaks the connection, and state changes out of order are refused.
// Tests make it misbehave through the public members.
#pragma once

#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "transport/verbs/api.h"

namespace mcast::testing {

class FakeVerbs final : public verbs::Api {
 public:
  FakeVerbs();
  ~FakeVerbs() override;

  // The device.
  int devices = 1;
  std::string address = "127.0.0.1";  // its interface's; only this one can be bound
  ibv_port_state port_state = IBV_PORT_ACTIVE;
  uint8_t link_layer = IBV_LINK_LAYER_ETHERNET;
  ibv_mtu mtu = IBV_MTU_4096;
  ibv_device_attr attr{};
  bool fork_copies_memory = true;
  size_t locked_memory = SIZE_MAX;  // limit of locked memory

  // The fabric: what a join returns.
  uint32_t qkey = 0x1ee7;
  uint32_t multicast_qpn = 0xffffff;
  uint16_t mlid = 0xc001;
  uint8_t gid_index = 1;
  bool ipv6 = false;                    // RoCE: IPv6 headers instead of IPv4 headers
  std::vector<uint16_t> pkeys{0xffff};  // InfiniBand: the port's table
  uint16_t partition = 0xffff;          // of the interface and its groups

  // Misbehaviour.
  int channel_error = 0;                   // create_event_channel fails with it
  int registration_error = 0;              // reg_mr fails with it
  size_t largest_registration = SIZE_MAX;  // beyond: ENOMEM
  int join_status = 0;                     // joins end with it
  bool join_silent = false;                // joins are never answered
  std::set<in_addr_t> silent_groups;       // joins of these groups are not answered either
  uint8_t port_number = 1;                 // only this port has the address and works
  int attach_error = 0;
  int qp_error = 0;                                // create_qp fails with it
  bool connects_silent = false;                    // connect requests are never answered
  bool resolves_silent = false;                    // until time_out_resolves()
  ibv_wc_status send_status = IBV_WC_SUCCESS;      // of the next messages (RC)
  ibv_wc_status datagram_status = IBV_WC_SUCCESS;  // of the next datagrams' completions
  ibv_wc_status read_status = IBV_WC_SUCCESS;
  ibv_wc_status receive_status = IBV_WC_SUCCESS;  // of the next arrivals
  int cut_read = 0;                               // bytes by which a read is too short
  int refuse_posts = 0;                           // sends that post_send refuses with ENOMEM
  bool hold_sends = false;                        // datagrams stay in the device
  bool hold_reads = false;                        // RDMA Reads stay in the device
  uint32_t hold_completions_of = 0;               // sends of this queue pair complete later
  std::function<bool(std::vector<std::byte>&)>
      on_datagram;  // per receiver; false: lost; may change it
  std::function<bool(std::vector<std::byte>&, uint32_t from)>
      on_message;  // same for connections; from: sender's queue pair

  // Counts of events.
  uint64_t lost_without_receive = 0;  // datagrams
  uint64_t wrong_partition = 0;       // datagrams
  uint64_t flushed_receives = 0;
  uint64_t overflows = 0;    // completion queue entries beyond its depth
  uint64_t overcommits = 0;  // queue pairs beyond their queue's capacity
  uint64_t unsignalled = 0;  // sends without a completion
  uint64_t send_posts = 0;
  uint64_t arms = 0;          // req_notify_cq
  std::vector<int> gathered;  // pieces of each datagram
  size_t registrations() const { return keys_.size(); }
  size_t remote_registrations() const;     // readable by peers
  uint64_t remote_registrations_ever = 0;  // including deleted ones
  std::set<uint16_t> attached_lids() const;
  size_t queue_pairs() const { return qps_.size(); }
  std::vector<uint32_t> used_qkeys;
  uint64_t destroyed_in_use = 0;  // handles or regions still named by work requests

  // Control from outside.
  void let_sends_go();  // the held ones
  void let_reads_go();
  void let_completions_go();
  std::vector<uint32_t> connection_numbers() const;  // of queue pairs, in order of creation
  size_t held_reads() const { return held_reads_.size(); }
  void raise(ibv_event_type type, uint32_t qp_number = 0, int port = 1);
  // Raises MULTICAST_ERROR for every member of one group, or (0) of all groups.
  void fabric_takes_group_away(in_addr_t group = 0);
  void device_removal();  // rdma_cm's event for every identifier
  // Breaks every connection, as a silent peer does.
  void break_connections(ibv_wc_status status);
  // Injects a message of a peer that breaks the protocol.
  void inject_message(const std::vector<std::byte>& bytes);
  // The same, to the peer of this queue pair.
  void inject_from(uint32_t qp_number, const std::vector<std::byte>& bytes);
  // Injects a datagram of another host whose queue pair has the receiver's number.
  void inject_namesake(const std::vector<std::byte>& payload);
  // Puts every queue pair for datagrams into the error state, with or without an event.
  void break_datagrams(bool event);
  void take_receives_away();  // of every reliable connection
  void time_out_resolves();   // of unanswered addresses
  size_t completion_queues() const { return cqs_.size(); }

  int device_count() override;
  int query_device(ibv_context*, ibv_device_attr* out) override;
  int query_port(ibv_context*, uint8_t, ibv_port_attr* out) override;
  int query_gid(ibv_context*, uint8_t, int index, ibv_gid* out) override;
  int query_pkey(ibv_context*, uint8_t, int index, uint16_t* out) override;
  const char* device_name(ibv_context*) override { return "fake_0"; }
  ibv_pd* alloc_pd(ibv_context*) override;
  int dealloc_pd(ibv_pd*) override;
  ibv_mr* reg_mr(ibv_pd*, void*, size_t, int access) override;
  int dereg_mr(ibv_mr*) override;
  bool fork_copies() override { return fork_copies_memory; }
  size_t lock_limit() override { return locked_memory; }
  ibv_comp_channel* create_comp_channel(ibv_context*) override;
  int destroy_comp_channel(ibv_comp_channel*) override;
  ibv_cq* create_cq(ibv_context*, int depth, void*, ibv_comp_channel*) override;
  int destroy_cq(ibv_cq*) override;
  int poll_cq(ibv_cq*, int most, ibv_wc* out) override;
  int req_notify_cq(ibv_cq*) override;
  int get_cq_event(ibv_comp_channel*, ibv_cq**) override;
  void ack_cq_events(ibv_cq*, unsigned) override {}
  ibv_qp* create_qp(ibv_pd*, ibv_qp_init_attr*) override;
  int modify_qp(ibv_qp*, ibv_qp_attr*, int mask) override;
  int destroy_qp(ibv_qp*) override;
  int post_send(ibv_qp*, ibv_send_wr*, ibv_send_wr** bad) override;
  int post_recv(ibv_qp*, ibv_recv_wr*, ibv_recv_wr** bad) override;
  ibv_ah* create_ah(ibv_pd*, ibv_ah_attr*) override;
  int destroy_ah(ibv_ah*) override;
  int attach_mcast(ibv_qp*, const ibv_gid*, uint16_t) override;
  int detach_mcast(ibv_qp*, const ibv_gid*, uint16_t) override;
  int get_async_event(ibv_context*, ibv_async_event*) override;
  void ack_async_event(ibv_async_event*) override {}
  rdma_event_channel* create_event_channel() override;
  void destroy_event_channel(rdma_event_channel*) override;
  int get_cm_event(rdma_event_channel*, rdma_cm_event**) override;
  int ack_cm_event(rdma_cm_event*) override;
  int create_id(rdma_event_channel*, rdma_cm_id**, void*, rdma_port_space) override;
  int destroy_id(rdma_cm_id*) override;
  int bind_addr(rdma_cm_id*, sockaddr*) override;
  int listen(rdma_cm_id*, int) override;
  uint16_t local_port(rdma_cm_id*) override;
  int resolve_addr(rdma_cm_id*, sockaddr*, sockaddr*, int) override;
  int resolve_route(rdma_cm_id*, int) override;
  int create_cm_qp(rdma_cm_id*, ibv_pd*, ibv_qp_init_attr*) override;
  void destroy_cm_qp(rdma_cm_id*) override;
  int connect(rdma_cm_id*, rdma_conn_param*) override;
  int accept(rdma_cm_id*, rdma_conn_param*) override;
  int reject(rdma_cm_id*, const void*, uint8_t) override;
  int disconnect(rdma_cm_id*) override;
  int join_multicast(rdma_cm_id*, sockaddr*, bool send_only) override;
  int set_option(rdma_cm_id*, int, int, void*, size_t) override { return 0; }

 private:
  struct Channel;
  struct CompChannel;
  struct Cq;
  struct Qp;
  struct Id;
  struct Event;
  struct Key {
    std::byte* at;
    size_t size;
    int access;
    std::unique_ptr<ibv_mr> region;  // an abandoned one is never freed
  };

  Event& push(Id* id, rdma_cm_event_type type, int status = 0, const void* data = nullptr,
              size_t length = 0);
  bool gather(const Qp& qp, const ibv_send_wr& wr, std::vector<std::byte>& out) const;
  bool inside(uint32_t key, uint64_t at, size_t size, int access) const;
  void complete(Cq& cq, ibv_wc wc);
  ibv_gid own_gid() const;
  std::vector<std::byte> routing_header(const ibv_gid& from) const;
  void flush_receives(Qp& qp);
  void break_qp(Qp& qp, ibv_wc_status status, uint64_t wr_id, ibv_wc_opcode opcode);
  bool deliver(Qp& to, const std::vector<std::byte>& bytes, uint32_t from, bool datagram);
  void send_datagram(Qp& qp, const ibv_send_wr& wr);
  void send_message(Qp& qp, const ibv_send_wr& wr);
  void read(Qp& qp, const ibv_send_wr& wr);
  Qp* find(const ibv_qp* qp);
  void unlink(Id& id);

  ibv_context context_{};
  ibv_device device_{};
  std::list<ibv_pd> pds_;
  std::map<uint32_t, Key> keys_;
  std::list<CompChannel> comp_channels_;
  std::list<Cq> cqs_;
  std::list<Qp> qps_;
  std::list<Channel> channels_;
  std::list<Id> ids_;
  struct Handle;
  std::list<Handle> handles_;
  struct HeldSend {
    Qp* qp;
    ibv_send_wr wr;
    std::vector<ibv_sge> pieces;
  };
  std::deque<HeldSend> held_, held_reads_;
  std::deque<std::pair<Cq*, ibv_wc>> held_completions_;
  std::deque<ibv_async_event> async_;
  uint32_t next_ = 17;
  uint16_t next_port_ = 40000;
};

}  // namespace mcast::testing
