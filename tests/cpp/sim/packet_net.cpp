// A port sends the first packet of its queue, and the next one when that has left. A packet that
// does not fit beside the waiting bytes, including the rest of the packet being sent, is dropped.
#include "sim/packet_net.h"

#include <algorithm>

namespace mcast::sim {

PacketNet::PacketNet(const Topology& topology, const Router& router, const FabricOptions& options)
    : topology_(topology), router_(router), options_(options), ports_(topology.links()) {
  for (LinkId id = 0; id < ports_.size(); id++) ports_[id].per_byte = 1e9 / spec(id).rate;
}

const PortSpec& PacketNet::spec(LinkId id) const {
  const Link& link = topology_.link(id);
  return link.level > 1 ? options_.inner : link.up ? options_.host_up : options_.host_down;
}

double PacketNet::Waiting::bytes_left(double now) const {
  if (packets.empty()) return 0;
  double bytes = (first_done - now) / per_byte;
  for (size_t i = 1; i < packets.size(); i++) bytes += packets[i].wire;
  return bytes;
}

void PacketNet::schedule(double at, std::function<void()> run) {
  steps_.push({at, pushed_++, std::move(run)});
}

void PacketNet::send(double at, HostId from, const Packet& packet) {
  const LinkId up = topology_.host_link(0, from);
  schedule(at, [this, up, packet] { enqueue(up, packet); });
}

void PacketNet::run() {
  while (!steps_.empty()) {
    now_ = steps_.top().at;
    const auto run = steps_.top().run;
    steps_.pop();
    run();
  }
}

void PacketNet::enqueue(LinkId link, const Packet& packet) {
  Waiting& port = ports_[link];
  const PortSpec& limits = spec(link);
  if (limits.queue > 0 && port.bytes_left(now_) + packet.wire > limits.queue + 1e-3) {
    drops_++;
    return;
  }
  bytes_[link] += packet.wire;
  port.packets.push_back(packet);
  if (port.packets.size() == 1) begin(link);
}

void PacketNet::begin(LinkId link) {
  Waiting& port = ports_[link];
  const Packet packet = port.packets.front();
  port.first_done = now_ + packet.wire * port.per_byte;
  schedule(port.first_done, [this, link, packet] {
    ports_[link].packets.pop_front();
    if (!ports_[link].packets.empty()) begin(link);
    schedule(now_ + spec(link).delay, [this, link, packet] { arrive(link, packet); });
  });
}

void PacketNet::arrive(LinkId in, const Packet& packet) {
  const Link& link = topology_.link(in);
  if (link.level == 1 && !link.up) {
    arrivals_.push_back({packet.id, link.child, now_});
    return;
  }
  if (!packet.multicast) {
    const auto& links = packet.route.links;
    return enqueue(*(std::find(links.begin(), links.end(), in) + 1), packet);
  }
  const Tree& tree = router_.tree(packet.tree);
  const Switch here = link.up ? topology_.upper(link) : topology_.lower(link);
  for (const LinkId down : tree.down[topology_.id(here)]) {
    if (down != Topology::reverse(in)) enqueue(down, packet);
  }
  if (link.up && here.level < packet.root_level) {
    enqueue(router_.tree_up(tree, here.level + 1u, here.block), packet);
  }
}

}  // namespace mcast::sim
