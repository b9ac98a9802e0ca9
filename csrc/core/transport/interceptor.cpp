// Every message passes decide(), which asks each rule in order: does it match, is it within its
// counts, and does the rule's random process hit it? Hits come independently or in bursts (a
// two-state Markov chain whose stationary rate is `rate` and whose mean run is `burst`). Then the
// combined effects are applied: the message is dropped, held back (by time or until others have
// passed), corrupted, or duplicated.
//
// Held messages wait in four queues, datagrams and frames in each direction, and are released when
// their time has passed at a poll(), or enough other messages have gone by. Outgoing datagrams are
// changed in the memory that the inner transport lent; a dropped one is not committed.
#include "transport/interceptor.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace mcast {
namespace {

void flip_bit(Bytes bytes, size_t bit) {
  if (!bytes.empty()) bytes[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
}

std::vector<std::byte> copy_of(ConstBytes bytes) { return {bytes.begin(), bytes.end()}; }

}  // namespace

// --- datagrams ---------------------------------------------------------------------------------

// Never places, even if the medium can: rules apply to datagrams, so all must come through here.
class Interceptor::FaultyDatagram final : public Datagram, private DatagramSink {
 public:
  explicit FaultyDatagram(Interceptor& owner)
      : owner_(owner),
        inner_(owner.inner_->datagram()),
        incoming_(owner.has_rules(false, false)),
        outgoing_(owner.has_rules(false, true)) {}

  size_t max_datagram(const MulticastAddress& a) const override { return inner_.max_datagram(a); }
  size_t header_bytes() const override { return inner_.header_bytes(); }
  size_t receive_budget() const override { return inner_.receive_budget(); }
  uint64_t fragmented() const override { return inner_.fragmented(); }
  uint64_t ignored() const override { return inner_.ignored(); }
  Source source() const override { return inner_.source(); }
  std::vector<IpAddress> sources_of(const StreamAddress& a) const override {
    return inner_.sources_of(a);
  }
  Status join(const MulticastAddress& a) override { return inner_.join(a); }
  void leave(const MulticastAddress& a) override { inner_.leave(a); }

  Bytes lend(const MulticastAddress& to, size_t size, Echo echo) override {
    release_outgoing();
    lent_ = {};
    if (owner_.refuses()) return lent_;
    lent_ = inner_.lend(to, size, echo);
    to_ = to;
    echo_ = echo;
    return lent_;
  }

  void commit(size_t size) override {
    const Bytes bytes = lent_.first(std::min(size, lent_.size()));
    lent_ = {};
    if (!outgoing_) return inner_.commit(bytes.size());
    Fate fate = owner_.decide(bytes, false, true);
    if (!fate.drop) {
      if (fate.corrupt) flip_bit(bytes, fate.flip);
      if (fate.hold) {
        fate.held.bytes = copy_of(bytes);
        fate.held.to = to_;
        fate.held.echo = echo_;
        hold(owner_.datagrams_out_, std::move(fate));
        return;
      }
      const auto again = fate.duplicate ? copy_of(bytes) : std::vector<std::byte>();
      inner_.commit(bytes.size());
      if (fate.duplicate && !put(to_, echo_, again)) ++owner_.counters_.suppressed;
    }
    count_overtaking(owner_.datagrams_out_);
  }

  // Rules inspect whole datagrams and change them.
  size_t gather_from() const override { return outgoing_ ? SIZE_MAX : inner_.gather_from(); }
  bool commit_gather(size_t header, const Slice& block, size_t offset, size_t length) override {
    if (outgoing_ || !inner_.commit_gather(header, block, offset, length)) return false;
    lent_ = {};
    return true;
  }

  bool flush() override {
    release_outgoing();
    return !owner_.refuses() && inner_.flush();
  }

  size_t receive(DatagramSink& sink, size_t max_bytes) override {
    if (!incoming_) return inner_.receive(sink, max_bytes);
    sink_ = &sink;
    handed_ = 0;
    release_incoming();
    // The caller takes zero as empty: continue while everything that arrived was dropped or held.
    while (inner_.receive(*this, max_bytes) > 0 && handed_ == 0) {
    }
    sink_ = nullptr;
    return handed_;
  }

  // Uses the clock, because held datagrams may be due at any call.
  void release_outgoing() {
    Held held;
    while (lent_.empty() && owner_.take_due(owner_.datagrams_out_, held)) {
      if (put(held.to, held.echo, held.bytes)) continue;
      owner_.datagrams_out_.push_front(std::move(held));  // no room: still due
      return;
    }
  }

 private:
  bool put(const MulticastAddress& to, Echo echo, ConstBytes bytes) {
    const Bytes lent = inner_.lend(to, bytes.size(), echo);
    if (lent.empty()) return false;
    std::memcpy(lent.data(), bytes.data(), bytes.size());
    inner_.commit(bytes.size());
    return true;
  }

  void on_datagram(ConstBytes datagram) override {
    Fate fate = owner_.decide(datagram, false, false);
    if (!fate.drop) {
      std::vector<std::byte> changed;
      if (fate.corrupt || fate.hold) changed = copy_of(datagram);
      if (fate.corrupt) flip_bit(changed, fate.flip);
      if (fate.hold) {
        fate.held.bytes = std::move(changed);
        hold(owner_.datagrams_in_, std::move(fate));
        return;
      }
      for (int i = fate.duplicate ? 2 : 1; i > 0; --i) {
        deliver(fate.corrupt ? ConstBytes(changed) : datagram);
      }
    }
    count_overtaking(owner_.datagrams_in_);
    release_incoming();
  }

  void release_incoming() {
    Held held;
    while (owner_.take_due(owner_.datagrams_in_, held)) deliver(held.bytes);
  }

  void deliver(ConstBytes datagram) {
    ++handed_;
    sink_->on_datagram(datagram);
  }

  Interceptor& owner_;
  Datagram& inner_;
  const bool incoming_, outgoing_;
  Bytes lent_;
  MulticastAddress to_;
  Echo echo_ = Echo::kOn;
  DatagramSink* sink_ = nullptr;
  size_t handed_ = 0;
};

// --- streams -----------------------------------------------------------------------------------

class Interceptor::FaultyStream final : public Stream, private StreamSink {
 public:
  explicit FaultyStream(Interceptor& owner)
      : owner_(owner),
        inner_(owner.inner_->stream()),
        incoming_(owner.has_rules(true, false)),
        outgoing_(owner.has_rules(true, true)) {}

  StreamAddress address(bool loopback) const override { return inner_.address(loopback); }
  PeerId add_peer(const StreamAddress& address) override { return inner_.add_peer(address); }
  std::vector<PeerId> expect(std::span<const uint64_t> uids) override {
    return inner_.expect(uids);
  }
  void keep_trying(PeerId peer, Nanos until) override { inner_.keep_trying(peer, until); }
  size_t queued(PeerId peer, Channel channel) const override {
    return inner_.queued(peer, channel);
  }

  void send(PeerId peer, Channel channel, std::span<const ConstBytes> parts) override {
    if (!outgoing_) return inner_.send(peer, channel, parts);
    std::vector<std::byte> frame;
    for (const ConstBytes& part : parts) frame.insert(frame.end(), part.begin(), part.end());
    Fate fate = owner_.decide(frame, true, true);
    if (!fate.drop) {
      if (fate.corrupt) flip_bit(frame, fate.flip);
      if (fate.hold) {
        fate.held.bytes = std::move(frame);
        fate.held.peer = peer;
        fate.held.channel = channel;
        hold(owner_.frames_out_, std::move(fate));
        return;
      }
      for (int i = fate.duplicate ? 2 : 1; i > 0; --i) put(peer, channel, frame);
    }
    count_overtaking(owner_.frames_out_);
    release_outgoing();
  }

  size_t poll(StreamSink& sink, Nanos now) override {
    owner_.now_ = now;
    sink_ = &sink;
    handed_ = 0;
    owner_.datagram_->release_outgoing();
    if (!owner_.datagrams_out_.empty()) owner_.inner_->datagram().flush();
    release_outgoing();
    release_incoming();
    const size_t events = inner_.poll(incoming_ ? *this : sink, now);
    sink_ = nullptr;
    return events + handed_;
  }

  // Reads pass unchanged: they carry no message that a rule could name.
  RemoteMemory* remote_memory() override { return inner_.remote_memory(); }

  bool close_peers(Nanos now) override {
    owner_.now_ = now;
    for (Held& held : owner_.frames_out_) put(held.peer, held.channel, held.bytes);
    owner_.frames_out_.clear();
    return inner_.close_peers(now);
  }

 private:
  void put(PeerId peer, Channel channel, ConstBytes frame) {
    const ConstBytes parts[] = {frame};
    inner_.send(peer, channel, parts);
  }

  void release_outgoing() {
    Held held;
    while (owner_.take_due(owner_.frames_out_, held)) put(held.peer, held.channel, held.bytes);
  }

  void release_incoming() {
    Held held;
    while (owner_.take_due(owner_.frames_in_, held)) {
      ++handed_;
      sink_->on_frame(held.peer, held.channel, held.bytes);
    }
  }

  void on_frame(PeerId peer, Channel channel, ConstBytes frame) override {
    Fate fate = owner_.decide(frame, true, false);
    if (!fate.drop) {
      std::vector<std::byte> changed;
      if (fate.corrupt || fate.hold) changed = copy_of(frame);
      if (fate.corrupt) flip_bit(changed, fate.flip);
      if (fate.hold) {
        fate.held.bytes = std::move(changed);
        fate.held.peer = peer;
        fate.held.channel = channel;
        hold(owner_.frames_in_, std::move(fate));
        return;
      }
      for (int i = fate.duplicate ? 2 : 1; i > 0; --i) {
        sink_->on_frame(peer, channel, fate.corrupt ? ConstBytes(changed) : frame);
      }
    }
    count_overtaking(owner_.frames_in_);
    release_incoming();
  }

  void on_read(PeerId peer, uint64_t token, ConstBytes bytes) override {
    sink_->on_read(peer, token, bytes);
  }
  void on_peer_down(PeerId peer, const Status& why, bool graceful) override {
    std::erase_if(owner_.frames_in_, [peer](const Held& h) { return h.peer == peer; });
    sink_->on_peer_down(peer, why, graceful);
  }
  void on_stranger_gone(PeerId peer) override {
    std::erase_if(owner_.frames_in_, [peer](const Held& h) { return h.peer == peer; });
    sink_->on_stranger_gone(peer);
  }
  void on_refused(Cause cause, Source source) override { sink_->on_refused(cause, source); }

  Interceptor& owner_;
  Stream& inner_;
  const bool incoming_, outgoing_;
  StreamSink* sink_ = nullptr;
  size_t handed_ = 0;
};

// --- rules -------------------------------------------------------------------------------------

Interceptor::Interceptor(std::unique_ptr<Transport> inner, std::vector<FaultRule> rules,
                         const FaultClassifier* classifier)
    : inner_(std::move(inner)), classifier_(classifier) {
  for (FaultRule& rule : rules) {
    const uint64_t seed = mix64(rule.seed + 1);
    rules_.push_back({std::move(rule), Rng(seed)});
  }
  datagram_ = std::make_unique<FaultyDatagram>(*this);
  stream_ = std::make_unique<FaultyStream>(*this);
}

Interceptor::~Interceptor() = default;

Datagram& Interceptor::datagram() { return *datagram_; }
Stream& Interceptor::stream() { return *stream_; }

bool Interceptor::has_rules(bool frame, bool outgoing) const {
  return std::any_of(rules_.begin(), rules_.end(), [&](const Rule& rule) {
    return rule.spec.action != FaultAction::kRefuse && rule.spec.outgoing == outgoing &&
           (!frame || rule.spec.names_type());
  });
}

bool Interceptor::hit(Rule& rule, ConstBytes message, bool frame) {
  const FaultRule& spec = rule.spec;
  for (const auto& [key, value] : spec.predicates) {
    if (!classifier_->matches(key, value, message, frame)) return false;
  }
  if (rule.seen++ < spec.after || rule.hits >= spec.count) return false;
  bool struck = false;
  if (spec.burst <= 1 || spec.rate >= 1) {
    struck = rule.rng.chance(spec.rate);
  } else {
    const double leave = 1 / spec.burst;
    const double enter = spec.rate * leave / (1 - spec.rate);
    rule.in_burst = rule.in_burst ? !rule.rng.chance(leave) : rule.rng.chance(enter);
    struck = rule.in_burst;
  }
  if (struck) ++rule.hits;
  return struck;
}

Interceptor::Fate Interceptor::decide(ConstBytes message, bool frame, bool outgoing) {
  Fate fate;
  for (Rule& rule : rules_) {
    const FaultRule& spec = rule.spec;
    if (spec.action == FaultAction::kRefuse || spec.outgoing != outgoing ||
        (frame && !spec.names_type()))
      continue;
    if (!hit(rule, message, frame)) continue;
    auto& counter = frame ? counters_.frames : counters_.datagrams;
    ++counter[static_cast<size_t>(spec.action)];
    switch (spec.action) {
      case FaultAction::kDrop:
        fate.drop = true;
        return fate;
      case FaultAction::kDuplicate:
        fate.duplicate = true;
        break;
      case FaultAction::kCorrupt:
        fate.corrupt = !message.empty();
        if (fate.corrupt) fate.flip = rule.rng.below(message.size() * 8);
        break;
      case FaultAction::kRefuse:  // handled by refuses()
        break;
      case FaultAction::kDelay:
      case FaultAction::kReorder:
        fate.hold = true;
        fate.held.due = now_ + spec.time;
        fate.held.overtakes = spec.action == FaultAction::kReorder ? spec.hold : UINT64_MAX;
        break;
    }
  }
  return fate;
}

bool Interceptor::refuses() {
  bool any = false;
  for (Rule& rule : rules_) {
    if (rule.spec.action == FaultAction::kRefuse && hit(rule, {}, false)) any = true;
  }
  if (any) ++counters_.datagrams[static_cast<size_t>(FaultAction::kRefuse)];
  refused_ = refused_ || any;
  return any;
}

void Interceptor::hold(std::deque<Held>& queue, Fate fate) {
  if (fate.duplicate) queue.push_back(fate.held);
  queue.push_back(std::move(fate.held));
}

void Interceptor::count_overtaking(std::deque<Held>& queue) {
  for (Held& held : queue) {
    if (held.overtakes != UINT64_MAX && held.overtakes > 0) --held.overtakes;
  }
}

bool Interceptor::take_due(std::deque<Held>& queue, Held& out) const {
  const auto it = std::find_if(queue.begin(), queue.end(), [this](const Held& held) {
    return held.overtakes == 0 || now_ >= held.due;
  });
  if (it == queue.end()) return false;
  out = std::move(*it);
  queue.erase(it);
  return true;
}

Nanos Interceptor::next_due() const {
  Nanos due = kNever;
  for (const auto* queue : {&datagrams_in_, &datagrams_out_, &frames_in_, &frames_out_}) {
    for (const Held& held : *queue) due = std::min(due, held.due);
  }
  return due;
}

void Interceptor::wait(Nanos timeout) {
  const Nanos due = next_due();
  if (std::exchange(refused_, false)) timeout = std::min(timeout, kMilli);
  if (due != kNever) timeout = std::min(timeout, std::max<Nanos>(due - now_, 0));
  inner_->wait(timeout);
}

std::vector<uint64_t> Interceptor::hits() const {
  std::vector<uint64_t> out;
  for (const Rule& rule : rules_) out.push_back(rule.hits);
  return out;
}

std::string Interceptor::describe() const {
  std::string text = inner_->describe() + " FAULTS INJECTED:";
  for (const Rule& rule : rules_) {
    text +=
        std::string(" ") + fault_action_name(rule.spec.action) + "=" + std::to_string(rule.hits);
  }
  return text;
}

Result<std::unique_ptr<Transport>> intercept(std::unique_ptr<Transport> inner,
                                             std::string_view text,
                                             const FaultClassifier* classifier) {
  auto rules = parse_faults(text, classifier);
  if (!rules.ok()) return rules.status();
  if (rules->empty()) return inner;
  return std::unique_ptr<Transport>(
      std::make_unique<Interceptor>(std::move(inner), std::move(*rules), classifier));
}

}  // namespace mcast
