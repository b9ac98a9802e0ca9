// The connections by which groups ask to be served: TCP, records as in wire/record_stream.h. The
// number of connections without a grant, their time and their bytes are bounded, so strangers cost
// a fixed amount. The visitor interprets the records.
//
// Not thread-safe: one thread calls everything.
#pragma once

#include <poll.h>

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "aggregation/server/links.h"
#include "aggregation/server/options.h"
#include "base/half_open_rules.h"
#include "base/log.h"
#include "base/status.h"
#include "base/types.h"
#include "transport/udp/socket.h"
#include "wire/admission.h"
#include "wire/record_stream.h"

namespace mcast::service {

class AdmissionListener final : public Links {
 public:
  // Maximum number of connections without a grant; when a further one arrives, one is ended by RST
  // (base/half_open_rules.h).
  static constexpr size_t kMostAsking = 64;
  static constexpr HalfOpenRules kRules{kMostAsking, 16, kMostAsking / 2};
  // Time to send an ask.
  static constexpr Nanos kAskPatience = 5 * kSecond;

  // Listens at `host` (a name or address; empty: all addresses of both IP versions) and `port` (0:
  // any).
  Status open(const std::string& host, uint16_t port);
  // Without a host if it listens at all addresses.
  const Endpoint& address() const { return address_; }

  // Adds descriptors to the poll list; serve() is given the same part of the list after the wait.
  void watch(std::vector<pollfd>& list);
  void serve(std::span<const pollfd> ready, Nanos now, Visitor& visitor);
  // Time at which serve() has work that no event announces.
  Nanos deadline() const;

  void keep(LinkId link) override;
  void send_text(LinkId link, const std::string& text) override;
  void finish(LinkId link, Nanos now) override;

  void stop_listening() { listener_.reset(); }
  size_t links() const { return links_.size(); }

 private:
  enum class State : uint8_t { kAsking, kServed, kFinishing, kEnded };
  struct Link {
    Fd fd;
    IpAddress host{};
    bool known = false;  // whether the visitor knew the host when the connection arrived
    State state = State::kAsking;
    Nanos since = 0;
    Nanos until = kNever;
    bool said_all = false;  // our side has been shut down
    std::string out;
    wire::RecordReader in{wire::kMaxAdmission};
  };

  void accept_all(Nanos now, Visitor& visitor);
  void read(LinkId id, Link& link, Nanos now, Visitor& visitor);
  void write(Link& link);
  void expire(Nanos now, Visitor& visitor);
  void make_room(const IpAddress& host, bool known, Visitor& visitor);

  Fd listener_;
  Endpoint address_;
  std::map<LinkId, Link> links_;
  std::vector<LinkId> watched_;  // in the order of the last watch()
  bool listening_ = false;       // in the last watch()
  Nanos accept_from_ = 0;        // set after a lack of descriptors
  LinkId next_ = 1;
  RateLimit warnings_{10 * kSecond};
};

}  // namespace mcast::service
