// The half that replaces librdmacm: identifiers, events, connections, joins. An event waits in its
// channel until it is fetched; the events of an identifier are deleted with it.
#include <arpa/inet.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "verbs/fake_state.h"

namespace mcast::testing {

rdma_event_channel* FakeVerbs::create_event_channel() {
  if (channel_error != 0) {
    errno = channel_error;
    return nullptr;
  }
  channels_.emplace_back();
  channels_.back().fd = semaphore();
  return &channels_.back();
}

void FakeVerbs::destroy_event_channel(rdma_event_channel* channel) {
  ::close(channel->fd);
  channels_.remove_if([channel](const Channel& c) { return &c == channel; });
}

FakeVerbs::Event& FakeVerbs::push(Id* id, rdma_cm_event_type type, int status, const void* data,
                                  size_t length) {
  auto event = std::make_unique<Event>();
  static_cast<rdma_cm_event&>(*event) = {};
  event->id = id;
  event->event = type;
  event->status = status;
  const auto* at = static_cast<const std::byte*>(data);
  if (at != nullptr) event->data.assign(at, at + length);
  // The kernel pads the data to the size of the message.
  if (at != nullptr) event->data.resize(196);
  event->param.conn.private_data = event->data.data();
  event->param.conn.private_data_len = static_cast<uint8_t>(event->data.size());
  Event& out = *event;
  id->owner->events.push_back(std::move(event));
  ring(id->owner->fd);
  return out;
}

int FakeVerbs::get_cm_event(rdma_event_channel* channel, rdma_cm_event** out) {
  auto& c = *static_cast<Channel*>(channel);
  // Events of deleted identifiers are deleted too, but their wake-ups remain.
  while (take(c.fd)) {
    if (c.events.empty()) continue;
    *out = c.events.front().release();
    c.events.pop_front();
    return 0;
  }
  return EAGAIN;
}

int FakeVerbs::ack_cm_event(rdma_cm_event* event) {
  delete static_cast<Event*>(event);
  return 0;
}

int FakeVerbs::create_id(rdma_event_channel* channel, rdma_cm_id** out, void* tag,
                         rdma_port_space) {
  ids_.emplace_back();
  Id& id = ids_.back();
  id.owner = static_cast<Channel*>(channel);
  id.channel = channel;
  id.context = tag;
  *out = &id;
  return 0;
}

void FakeVerbs::unlink(Id& id) {
  Id* const partner = std::exchange(id.partner, nullptr);
  if (partner == nullptr) return;
  partner->partner = nullptr;
  if (id.connected) {
    partner->connected = false;
    push(partner, RDMA_CM_EVENT_DISCONNECTED);
  } else {
    push(partner, RDMA_CM_EVENT_REJECTED, 28);
  }
  id.connected = false;
}

int FakeVerbs::destroy_id(rdma_cm_id* raw) {
  Id& id = *static_cast<Id*>(raw);
  EXPECT_EQ(id.qp, nullptr) << "destroyed with its queue pair";
  unlink(id);
  std::erase_if(id.owner->events, [&](const auto& e) { return e->id == raw; });
  ids_.remove_if([raw](const Id& i) { return &i == raw; });
  return 0;
}

int FakeVerbs::bind_addr(rdma_cm_id* raw, sockaddr* at) {
  Id& id = *static_cast<Id*>(raw);
  const auto* in = reinterpret_cast<const sockaddr_in*>(at);
  if (address != ::inet_ntoa(in->sin_addr)) return ENODEV;
  id.verbs = &context_;
  id.port_num = port_number;
  id.route.addr.addr.ibaddr.pkey =
      link_layer == IBV_LINK_LAYER_INFINIBAND ? htons(partition) : uint16_t{0};
  id.port = in->sin_port != 0 ? ntohs(in->sin_port) : next_port_++;
  return 0;
}

int FakeVerbs::listen(rdma_cm_id* id, int) {
  static_cast<Id*>(id)->listening = true;
  return 0;
}

uint16_t FakeVerbs::local_port(rdma_cm_id* id) { return static_cast<Id*>(id)->port; }

int FakeVerbs::resolve_addr(rdma_cm_id* raw, sockaddr* from, sockaddr* to, int) {
  Id& id = *static_cast<Id*>(raw);
  if (const int error = bind_addr(raw, from); error != 0) return error;
  id.target = ntohs(reinterpret_cast<const sockaddr_in*>(to)->sin_port);
  id.resolving = resolves_silent;
  if (!resolves_silent) push(&id, RDMA_CM_EVENT_ADDR_RESOLVED);
  return 0;
}

int FakeVerbs::resolve_route(rdma_cm_id* id, int) {
  push(static_cast<Id*>(id), RDMA_CM_EVENT_ROUTE_RESOLVED);
  return 0;
}

int FakeVerbs::create_cm_qp(rdma_cm_id* id, ibv_pd* pd, ibv_qp_init_attr* init) {
  id->qp = create_qp(pd, init);
  id->qp->state = IBV_QPS_INIT;
  return 0;
}

void FakeVerbs::destroy_cm_qp(rdma_cm_id* id) {
  (void)destroy_qp(id->qp);
  id->qp = nullptr;
}

int FakeVerbs::connect(rdma_cm_id* raw, rdma_conn_param* param) {
  Id& id = *static_cast<Id*>(raw);
  if (connects_silent) return 0;
  for (Id& listener : ids_) {
    if (!listener.listening || listener.port != id.target) continue;
    rdma_cm_id* made = nullptr;
    (void)create_id(listener.owner, &made, listener.context, RDMA_PS_TCP);
    Id& request = *static_cast<Id*>(made);
    request.verbs = &context_;
    request.port_num = port_number;
    request.partner = &id;
    request.route.addr.dst_sin.sin_family = AF_INET;
    request.route.addr.dst_sin.sin_port = htons(id.port);
    ::inet_aton(address.c_str(), &request.route.addr.dst_sin.sin_addr);
    id.partner = &request;
    Event& event = push(&request, RDMA_CM_EVENT_CONNECT_REQUEST, 0, param->private_data,
                        param->private_data_len);
    event.listen_id = &listener;
    return 0;
  }
  push(&id, RDMA_CM_EVENT_REJECTED, 8);  // no listener
  return 0;
}

int FakeVerbs::accept(rdma_cm_id* raw, rdma_conn_param* param) {
  Id& id = *static_cast<Id*>(raw);
  if (id.partner == nullptr) return 0;  // gone meanwhile; its event is pending
  Id& other = *id.partner;
  id.connected = other.connected = true;
  Qp& mine = *find(id.qp);
  Qp& theirs = *find(other.qp);
  mine.peer = &theirs;
  theirs.peer = &mine;
  mine.state = theirs.state = IBV_QPS_RTS;
  push(&other, RDMA_CM_EVENT_ESTABLISHED, 0, param->private_data, param->private_data_len);
  push(&id, RDMA_CM_EVENT_ESTABLISHED);
  return 0;
}

int FakeVerbs::reject(rdma_cm_id* raw, const void* data, uint8_t length) {
  Id& id = *static_cast<Id*>(raw);
  if (id.partner == nullptr) return 0;
  push(id.partner, RDMA_CM_EVENT_REJECTED, 28, data, length);
  id.partner->partner = nullptr;
  id.partner = nullptr;
  return 0;
}

int FakeVerbs::disconnect(rdma_cm_id* raw) {
  Id& id = *static_cast<Id*>(raw);
  if (id.qp != nullptr && id.qp->state == IBV_QPS_RTS) {
    Qp& qp = *find(id.qp);
    qp.state = IBV_QPS_ERR;
    if (qp.peer != nullptr) qp.peer->peer = nullptr;
    qp.peer = nullptr;
  }
  unlink(id);
  return 0;
}

int FakeVerbs::join_multicast(rdma_cm_id* raw, sockaddr* group, bool) {
  Id& id = *static_cast<Id*>(raw);
  id.group = reinterpret_cast<const sockaddr_in*>(group)->sin_addr.s_addr;
  if (join_silent || silent_groups.count(id.group) > 0) return 0;
  id.joined = join_status == 0;
  Event& event =
      push(&id, join_status == 0 ? RDMA_CM_EVENT_MULTICAST_JOIN : RDMA_CM_EVENT_MULTICAST_ERROR,
           join_status);
  event.param.ud = {};
  ibv_ah_attr& ah = event.param.ud.ah_attr;
  ah.is_global = 1;
  ah.grh.dgid.raw[10] = ah.grh.dgid.raw[11] = 0xff;
  std::memcpy(ah.grh.dgid.raw + 12, &reinterpret_cast<const sockaddr_in*>(group)->sin_addr, 4);
  ah.grh.sgid_index = gid_index;
  ah.dlid = mlid;
  event.param.ud.qp_num = multicast_qpn;
  event.param.ud.qkey = qkey;
  return 0;
}

void FakeVerbs::time_out_resolves() {
  for (Id& id : ids_) {
    if (std::exchange(id.resolving, false)) push(&id, RDMA_CM_EVENT_ADDR_ERROR, -ETIMEDOUT);
  }
}

void FakeVerbs::fabric_takes_group_away(in_addr_t group) {
  for (Id& id : ids_) {
    if (id.joined && (group == 0 || id.group == group))
      push(&id, RDMA_CM_EVENT_MULTICAST_ERROR, -ENETRESET);
  }
}

void FakeVerbs::device_removal() {
  for (Id& id : ids_) push(&id, RDMA_CM_EVENT_DEVICE_REMOVAL);
}

}  // namespace mcast::testing
