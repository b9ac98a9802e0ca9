// The reach probe at group creation: does every member receive every other's multicast, with
// datagrams of full chunk size? From the second probe on a small one is sent with each, to
// distinguish a path with a smaller MTU from one without multicast. It is also the barrier of the
// creation. First all join, however late some are; only then do probes and a time limit start.
// Pure; time is an argument.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/types.h"

namespace mcast {

class ReachProbe {
 public:
  // Knowledge of multicast among the members of a subtree: the least of what any member knows.
  enum class Reach : uint8_t {
    kNone = 0,     // one of them cannot multicast
    kUnknown = 1,  // to be probed
    kKnown = 2,    // no probe needed: all of them are heard, or multicast is not wanted
  };
  struct Params {
    Member self = 0;
    uint32_t members = 1;
    uint32_t children = 0;  // in the control tree
    Reach reach = Reach::kUnknown;
    std::string why;              // reason for Reach::kNone
    Nanos timeout = 2 * kSecond;  // from start() on; a little more in large groups
    size_t bytes = 1500;          // of a probe datagram
    size_t headers = 28;          // of its IP packet, besides
  };

  ReachProbe(Params params, Nanos now);

  // Joining. A child reports that its subtree has joined, and its reach, or the missing members.
  void on_joined(uint32_t child, Reach reach, const std::string& why);
  void on_missing(uint32_t child, const std::string& text);
  // Returns true once, when the subtree has joined: to be sent up, or acted on at the top.
  bool joined(Reach& reach, std::string& why);
  // Called periodically while the others wait; returns true if there is news: the missing members
  // here or `above` (empty: none there). `here(child)`: a frame of it has arrived.
  using Here = std::function<bool(uint32_t child)>;
  bool news(Nanos now, const std::string& above, Member first_child, const Here& here,
            std::string& text);
  bool joining() const { return !started_; }

  // All have joined: starts the probes and the time limit.
  void start(Nanos now);
  // `full`: of full size, not one of the small ones.
  void on_probe(Member from, bool full = true);
  // A child's verdict about its subtree: it hears all, or the reason why not.
  void on_status(uint32_t child, bool ok, const std::string& why);
  // Returns true if a probe datagram must be sent now.
  bool send_due(Nanos now);
  // Returns true if a small one must be sent with it; called after send_due() returned true.
  bool small_due() const { return sent_ > 1; }
  // Returns true once, with the subtree's verdict: to be sent up, or acted on at the top.
  bool verdict(Nanos now, bool& ok, std::string& why);

  Nanos deadline() const;
  // Names the members that keep it open below this member; empty: none.
  std::string open_text(Member first_child, const Here& here) const;

 private:
  struct Child {
    bool joined = false;
    int ok = -1;          // -1 open, 0 bad, 1 good
    std::string missing;  // missing members that its subtree has reported
  };
  bool all_joined() const;
  // Returns true if no member below needs the names of missing members, or all are here.
  bool waits_for_none() const { return children_.empty() || told_joined_ || started_; }
  bool all_spoken() const;
  void add_reason(const std::string& why);
  std::string unheard() const;
  std::string missing_text(Member first_child, const Here& here) const;

  Member self_;
  std::vector<bool> heard_, heard_small_;
  uint32_t deaf_to_;  // members not heard
  std::vector<Child> children_;
  Reach reach_;
  std::string why_, told_missing_;
  Nanos timeout_, sweep_;  // time in which every member sends one probe
  bool told_joined_ = false, started_ = false, told_ = false;
  Nanos begun_ = kNever;  // start of the probes
  uint32_t sent_ = 0;     // number of probes sent
  size_t bytes_;          // size of a probe
  size_t headers_;        // of its IP packet
  Nanos next_news_, give_up_ = kNever, next_send_ = kNever, interval_;
};

}  // namespace mcast
