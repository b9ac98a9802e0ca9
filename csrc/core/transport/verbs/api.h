// The functions of libibverbs and librdmacm that the transport calls, as one table that tests
// replace. Every function that can fail returns 0 or an errno value (the libraries mix both
// conventions), or null with errno set; arguments are the libraries'.
#pragma once

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#include "base/status.h"

namespace mcast::verbs {

class Api {
 public:
  virtual ~Api() = default;

  // libibverbs
  virtual int device_count() = 0;  // < 0: none can be listed, errno
  virtual int query_device(ibv_context* context, ibv_device_attr* attr) = 0;
  virtual int query_port(ibv_context* context, uint8_t port, ibv_port_attr* attr) = 0;
  virtual int query_gid(ibv_context* context, uint8_t port, int index, ibv_gid* gid) = 0;
  // `key` in host order.
  virtual int query_pkey(ibv_context* context, uint8_t port, int index, uint16_t* key) = 0;
  virtual const char* device_name(ibv_context* context) = 0;
  virtual ibv_pd* alloc_pd(ibv_context* context) = 0;
  virtual int dealloc_pd(ibv_pd* pd) = 0;
  virtual ibv_mr* reg_mr(ibv_pd* pd, void* address, size_t length, int access) = 0;
  virtual int dereg_mr(ibv_mr* mr) = 0;
  // Returns true if the kernel copies registered memory at fork. If it does not, the library hides
  // the pages from children, which is acceptable for the transport's own memory but not for a
  // user's.
  virtual bool fork_copies() = 0;
  // Bytes that this process may lock in memory and so register; SIZE_MAX if there is no limit.
  virtual size_t lock_limit() = 0;
  virtual ibv_comp_channel* create_comp_channel(ibv_context* context) = 0;
  virtual int destroy_comp_channel(ibv_comp_channel* channel) = 0;
  virtual ibv_cq* create_cq(ibv_context* context, int depth, void* tag,
                            ibv_comp_channel* channel) = 0;
  virtual int destroy_cq(ibv_cq* cq) = 0;
  virtual int poll_cq(ibv_cq* cq, int most, ibv_wc* out) = 0;  // < 0: error
  virtual int req_notify_cq(ibv_cq* cq) = 0;
  virtual int get_cq_event(ibv_comp_channel* channel, ibv_cq** cq) = 0;
  virtual void ack_cq_events(ibv_cq* cq, unsigned count) = 0;
  virtual ibv_qp* create_qp(ibv_pd* pd, ibv_qp_init_attr* attr) = 0;
  virtual int modify_qp(ibv_qp* qp, ibv_qp_attr* attr, int mask) = 0;
  virtual int destroy_qp(ibv_qp* qp) = 0;
  virtual int post_send(ibv_qp* qp, ibv_send_wr* chain, ibv_send_wr** bad) = 0;
  virtual int post_recv(ibv_qp* qp, ibv_recv_wr* chain, ibv_recv_wr** bad) = 0;
  virtual ibv_ah* create_ah(ibv_pd* pd, ibv_ah_attr* attr) = 0;
  virtual int destroy_ah(ibv_ah* ah) = 0;
  virtual int attach_mcast(ibv_qp* qp, const ibv_gid* gid, uint16_t lid) = 0;
  virtual int detach_mcast(ibv_qp* qp, const ibv_gid* gid, uint16_t lid) = 0;
  virtual int get_async_event(ibv_context* context, ibv_async_event* event) = 0;
  virtual void ack_async_event(ibv_async_event* event) = 0;

  // librdmacm
  virtual rdma_event_channel* create_event_channel() = 0;
  virtual void destroy_event_channel(rdma_event_channel* channel) = 0;
  virtual int get_cm_event(rdma_event_channel* channel, rdma_cm_event** event) = 0;
  virtual int ack_cm_event(rdma_cm_event* event) = 0;
  virtual int create_id(rdma_event_channel* channel, rdma_cm_id** id, void* tag,
                        rdma_port_space space) = 0;
  virtual int destroy_id(rdma_cm_id* id) = 0;
  virtual int bind_addr(rdma_cm_id* id, sockaddr* address) = 0;
  virtual int listen(rdma_cm_id* id, int backlog) = 0;
  virtual uint16_t local_port(rdma_cm_id* id) = 0;  // host order
  virtual int resolve_addr(rdma_cm_id* id, sockaddr* from, sockaddr* to, int timeout_ms) = 0;
  virtual int resolve_route(rdma_cm_id* id, int timeout_ms) = 0;
  virtual int create_cm_qp(rdma_cm_id* id, ibv_pd* pd, ibv_qp_init_attr* attr) = 0;
  virtual void destroy_cm_qp(rdma_cm_id* id) = 0;
  virtual int connect(rdma_cm_id* id, rdma_conn_param* param) = 0;
  virtual int accept(rdma_cm_id* id, rdma_conn_param* param) = 0;
  virtual int reject(rdma_cm_id* id, const void* data, uint8_t length) = 0;
  virtual int disconnect(rdma_cm_id* id) = 0;
  virtual int join_multicast(rdma_cm_id* id, sockaddr* group, bool send_only) = 0;
  virtual int set_option(rdma_cm_id* id, int level, int name, void* value, size_t length) = 0;
};

// Returns the system's libraries, loaded once per process; kUnavailable names the missing one and
// how to get it. Valid until the process ends.
Result<Api*> system_api();

}  // namespace mcast::verbs
