// Loads libibverbs and librdmacm by dlopen, so that one binary runs with and without them.
// Functions that rdma-core's headers define inline (posting, polling) go through the context that
// the library made and need no symbol. Both libraries stay loaded: their threads and atfork
// handlers do not survive an unload.
#include <dlfcn.h>
#include <sys/resource.h>

#include <cerrno>
#include <mutex>
#include <string>

#include "base/log.h"
#include "transport/verbs/api.h"

namespace mcast::verbs {
namespace {

// Symbols, by library. The headers define some of the names as macros, hence the parentheses.
// clang-format moves these lines at every run.
// clang-format off
#define MCAST_IBVERBS_SYMBOLS(X)                                                                   \
  X(ibv_get_device_list)                                                                           \
  X(ibv_free_device_list) X(ibv_get_device_name) X(ibv_query_device) X(ibv_alloc_pd)               \
      X(ibv_dealloc_pd) X(ibv_dereg_mr) X(ibv_create_comp_channel) X(ibv_destroy_comp_channel)     \
          X(ibv_create_cq) X(ibv_destroy_cq) X(ibv_get_cq_event) X(ibv_ack_cq_events)              \
              X(ibv_create_qp) X(ibv_modify_qp) X(ibv_destroy_qp) X(ibv_create_ah)                 \
                  X(ibv_destroy_ah) X(ibv_attach_mcast) X(ibv_detach_mcast) X(ibv_get_async_event) \
                      X(ibv_ack_async_event) X(ibv_fork_init) X(ibv_query_gid) X(ibv_query_pkey)
#define MCAST_RDMACM_SYMBOLS(X)                                                             \
  X(rdma_create_event_channel)                                                              \
  X(rdma_destroy_event_channel) X(rdma_get_cm_event) X(rdma_ack_cm_event) X(rdma_create_id) \
      X(rdma_destroy_id) X(rdma_bind_addr) X(rdma_listen) X(rdma_get_src_port)              \
          X(rdma_resolve_addr) X(rdma_resolve_route) X(rdma_create_qp) X(rdma_destroy_qp)   \
              X(rdma_connect) X(rdma_accept) X(rdma_reject) X(rdma_disconnect)              \
                  X(rdma_join_multicast_ex) X(rdma_set_option)
// clang-format on

struct Symbols {
#define MCAST_POINTER(name) decltype(&::name) name = nullptr;
  MCAST_IBVERBS_SYMBOLS(MCAST_POINTER)
  MCAST_RDMACM_SYMBOLS(MCAST_POINTER)
#undef MCAST_POINTER
  // Declared separately because headers define macros of these names.
  ibv_mr* (*reg_mr)(ibv_pd*, void*, size_t, int) = nullptr;
  int (*query_port)(ibv_context*, uint8_t, ibv_port_attr*) = nullptr;
  int (*is_fork_initialized)() = nullptr;  // rdma-core 35
};

int code(int result) { return result == 0 ? 0 : (errno != 0 ? errno : EIO); }

class SystemApi final : public Api {
 public:
  Status load() {
    void* verbs = nullptr;
    void* cm = nullptr;
    if (Status s = open("libibverbs.so.1", "libibverbs1 and ibverbs-providers", verbs); !s.ok()) {
      return s;
    }
    if (Status s = open("librdmacm.so.1", "librdmacm1", cm); !s.ok()) return s;
    const char* missing = nullptr;
    const auto find = [&missing](void* library, const char* name) {
      void* const symbol = ::dlsym(library, name);
      if (symbol == nullptr) missing = name;
      return symbol;
    };
#define MCAST_FIND_VERBS(name) s_.name = reinterpret_cast<decltype(s_.name)>(find(verbs, #name));
#define MCAST_FIND_CM(name) s_.name = reinterpret_cast<decltype(s_.name)>(find(cm, #name));
    MCAST_IBVERBS_SYMBOLS(MCAST_FIND_VERBS)
    MCAST_RDMACM_SYMBOLS(MCAST_FIND_CM)
#undef MCAST_FIND_VERBS
#undef MCAST_FIND_CM
    s_.reg_mr = reinterpret_cast<decltype(s_.reg_mr)>(find(verbs, "ibv_reg_mr"));
    s_.query_port = reinterpret_cast<decltype(s_.query_port)>(find(verbs, "ibv_query_port"));
    if (missing != nullptr) {
      return Status(Code::kUnavailable, std::string("rdma-core is too old: it has no ") + missing);
    }
    s_.is_fork_initialized = reinterpret_cast<decltype(s_.is_fork_initialized)>(
        ::dlsym(verbs, "ibv_is_fork_initialized"));
    // Must run before any memory is registered: otherwise pages that a child shares copy-on-write
    // could be replaced while the device uses them. Kernels from 5.12 copy them at fork and make
    // this a no-op.
    if (const int error = s_.ibv_fork_init(); error != 0) {
      log(LogLevel::kInfo, "ibv_fork_init: %s; do not fork while a group uses verbs",
          std::to_string(error).c_str());
    }
    return {};
  }

  bool fork_copies() override {
    constexpr int kUnneeded = 2;  // IBV_FORK_UNNEEDED
    return s_.is_fork_initialized != nullptr && s_.is_fork_initialized() == kUnneeded;
  }
  size_t lock_limit() override {
    rlimit limit{};
    if (::getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
      return SIZE_MAX;
    }
    return limit.rlim_cur;
  }
  int device_count() override {
    int count = 0;
    ibv_device** list = s_.ibv_get_device_list(&count);
    if (list == nullptr) return -1;
    s_.ibv_free_device_list(list);
    return count;
  }
  int query_device(ibv_context* c, ibv_device_attr* a) override {
    return s_.ibv_query_device(c, a);
  }
  int query_port(ibv_context* c, uint8_t port, ibv_port_attr* a) override {
    *a = {};
    return s_.query_port(c, port, a);
  }
  int query_gid(ibv_context* c, uint8_t port, int index, ibv_gid* gid) override {
    return code(s_.ibv_query_gid(c, port, index, gid));
  }
  int query_pkey(ibv_context* c, uint8_t port, int index, uint16_t* key) override {
    __be16 raw = 0;
    const int error = code(s_.ibv_query_pkey(c, port, index, &raw));
    if (error == 0) *key = be16toh(raw);
    return error;
  }
  const char* device_name(ibv_context* c) override { return s_.ibv_get_device_name(c->device); }
  ibv_pd* alloc_pd(ibv_context* c) override { return s_.ibv_alloc_pd(c); }
  int dealloc_pd(ibv_pd* pd) override { return s_.ibv_dealloc_pd(pd); }
  ibv_mr* reg_mr(ibv_pd* pd, void* at, size_t length, int access) override {
    return s_.reg_mr(pd, at, length, access);
  }
  int dereg_mr(ibv_mr* mr) override { return s_.ibv_dereg_mr(mr); }
  ibv_comp_channel* create_comp_channel(ibv_context* c) override {
    return s_.ibv_create_comp_channel(c);
  }
  int destroy_comp_channel(ibv_comp_channel* c) override { return s_.ibv_destroy_comp_channel(c); }
  ibv_cq* create_cq(ibv_context* c, int depth, void* tag, ibv_comp_channel* channel) override {
    return s_.ibv_create_cq(c, depth, tag, channel, 0);
  }
  int destroy_cq(ibv_cq* cq) override { return s_.ibv_destroy_cq(cq); }
  int poll_cq(ibv_cq* cq, int most, ibv_wc* out) override { return ibv_poll_cq(cq, most, out); }
  int req_notify_cq(ibv_cq* cq) override { return ibv_req_notify_cq(cq, 0); }
  int get_cq_event(ibv_comp_channel* c, ibv_cq** cq) override {
    void* tag = nullptr;
    return code(s_.ibv_get_cq_event(c, cq, &tag));
  }
  void ack_cq_events(ibv_cq* cq, unsigned n) override { s_.ibv_ack_cq_events(cq, n); }
  ibv_qp* create_qp(ibv_pd* pd, ibv_qp_init_attr* a) override { return s_.ibv_create_qp(pd, a); }
  int modify_qp(ibv_qp* qp, ibv_qp_attr* a, int mask) override {
    return s_.ibv_modify_qp(qp, a, mask);
  }
  int destroy_qp(ibv_qp* qp) override { return s_.ibv_destroy_qp(qp); }
  int post_send(ibv_qp* qp, ibv_send_wr* chain, ibv_send_wr** bad) override {
    return ibv_post_send(qp, chain, bad);
  }
  int post_recv(ibv_qp* qp, ibv_recv_wr* chain, ibv_recv_wr** bad) override {
    return ibv_post_recv(qp, chain, bad);
  }
  ibv_ah* create_ah(ibv_pd* pd, ibv_ah_attr* a) override { return s_.ibv_create_ah(pd, a); }
  int destroy_ah(ibv_ah* ah) override { return s_.ibv_destroy_ah(ah); }
  int attach_mcast(ibv_qp* qp, const ibv_gid* gid, uint16_t lid) override {
    return s_.ibv_attach_mcast(qp, gid, lid);
  }
  int detach_mcast(ibv_qp* qp, const ibv_gid* gid, uint16_t lid) override {
    return s_.ibv_detach_mcast(qp, gid, lid);
  }
  int get_async_event(ibv_context* c, ibv_async_event* e) override {
    return code(s_.ibv_get_async_event(c, e));
  }
  void ack_async_event(ibv_async_event* e) override { s_.ibv_ack_async_event(e); }

  rdma_event_channel* create_event_channel() override { return s_.rdma_create_event_channel(); }
  void destroy_event_channel(rdma_event_channel* c) override { s_.rdma_destroy_event_channel(c); }
  int get_cm_event(rdma_event_channel* c, rdma_cm_event** e) override {
    return code(s_.rdma_get_cm_event(c, e));
  }
  int ack_cm_event(rdma_cm_event* e) override { return code(s_.rdma_ack_cm_event(e)); }
  int create_id(rdma_event_channel* c, rdma_cm_id** id, void* tag, rdma_port_space ps) override {
    return code(s_.rdma_create_id(c, id, tag, ps));
  }
  int destroy_id(rdma_cm_id* id) override { return code(s_.rdma_destroy_id(id)); }
  int bind_addr(rdma_cm_id* id, sockaddr* a) override { return code(s_.rdma_bind_addr(id, a)); }
  int listen(rdma_cm_id* id, int backlog) override { return code(s_.rdma_listen(id, backlog)); }
  uint16_t local_port(rdma_cm_id* id) override { return be16toh(s_.rdma_get_src_port(id)); }
  int resolve_addr(rdma_cm_id* id, sockaddr* from, sockaddr* to, int ms) override {
    return code(s_.rdma_resolve_addr(id, from, to, ms));
  }
  int resolve_route(rdma_cm_id* id, int ms) override { return code(s_.rdma_resolve_route(id, ms)); }
  int create_cm_qp(rdma_cm_id* id, ibv_pd* pd, ibv_qp_init_attr* a) override {
    return code(s_.rdma_create_qp(id, pd, a));
  }
  void destroy_cm_qp(rdma_cm_id* id) override { s_.rdma_destroy_qp(id); }
  int connect(rdma_cm_id* id, rdma_conn_param* p) override { return code(s_.rdma_connect(id, p)); }
  int accept(rdma_cm_id* id, rdma_conn_param* p) override { return code(s_.rdma_accept(id, p)); }
  int reject(rdma_cm_id* id, const void* data, uint8_t length) override {
    return code(s_.rdma_reject(id, data, length));
  }
  int disconnect(rdma_cm_id* id) override { return code(s_.rdma_disconnect(id)); }
  int join_multicast(rdma_cm_id* id, sockaddr* group, bool send_only) override {
    rdma_cm_join_mc_attr_ex attr{};
    attr.comp_mask = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS;
    attr.join_flags =
        send_only ? RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER : RDMA_MC_JOIN_FLAG_FULLMEMBER;
    attr.addr = group;
    return code(s_.rdma_join_multicast_ex(id, &attr, id->context));
  }
  int set_option(rdma_cm_id* id, int level, int name, void* value, size_t length) override {
    return code(s_.rdma_set_option(id, level, name, value, length));
  }

 private:
  static Status open(const char* file, const char* package, void*& out) {
    out = ::dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (out != nullptr) return {};
    const char* const why = ::dlerror();
    return Status(Code::kUnavailable, std::string(file) + " cannot be loaded (" +
                                          (why != nullptr ? why : "no reason given") +
                                          "); install " + package);
  }
  Symbols s_;
};

}  // namespace

Result<Api*> system_api() {
  static std::once_flag once;
  static SystemApi* api = nullptr;
  static Status* failure = nullptr;
  std::call_once(once, [] {
    auto* const loading = new SystemApi;
    const Status status = loading->load();
    if (status.ok()) {
      api = loading;
    } else {
      failure = new Status(status);
      delete loading;
    }
  });
  if (api == nullptr) return *failure;
  return static_cast<Api*>(api);
}

}  // namespace mcast::verbs
