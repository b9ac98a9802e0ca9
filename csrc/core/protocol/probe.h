// The reach probe at group creation: does every member hear every other by multicast, with
// datagrams of full chunk size? From the second probe on a small one goes beside each, so that a
// path of a smaller MTU is told from one without multicast. It is also the barrier of the creation.
// First all join, however late some are; only then is anything probed and does a time limit run.
// Pure; time is an argument.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/types.h"

namespace mcast {

class ReachProbe {
 public:
  // What is known of multicast among the members of a subtree: the least of what they know.
  enum class Reach : uint8_t {
    kNone = 0,     // one of them cannot multicast
    kUnknown = 1,  // to be probed
    kKnown = 2,    // nothing to probe: all of them are heard, or multicast is not wanted
  };
  struct Params {
    Member self = 0;
    uint32_t members = 1;
    uint32_t children = 0;  // in the control tree
    Reach reach = Reach::kUnknown;
    std::string why;              // where reach is kNone
    Nanos timeout = 2 * kSecond;  // from start() on; a little more in large groups
    size_t bytes = 1500;          // of a probe datagram
  };

  ReachProbe(Params params, Nanos now);

  // Joining. A child says that its subtree has joined, and what it knows, or who is missing there.
  void on_joined(uint32_t child, Reach reach, const std::string& why);
  void on_missing(uint32_t child, const std::string& text);
  // The subtree has joined: once, to be sent up, or acted on at the top. False: not yet.
  bool joined(Reach& reach, std::string& why);
  // Now and then while the others wait, if it is news: who is missing here or `above` (empty:
  // nobody there). `here(child)`: it has been heard of.
  using Here = std::function<bool(uint32_t child)>;
  bool news(Nanos now, const std::string& above, Member first_child, const Here& here,
            std::string& text);
  bool joining() const { return !started_; }

  // All have joined: probes are sent and the time limit runs.
  void start(Nanos now);
  // `full`: of full size, not one of the small ones beside it.
  void on_probe(Member from, bool full = true);
  // A child's verdict about its subtree: hears all, or the reason why not.
  void on_status(uint32_t child, bool ok, const std::string& why);
  // A probe datagram is due.
  bool send_due(Nanos now);
  // A small one is due beside it: after send_due() that returned true.
  bool small_due() const { return sent_ > 1; }
  // The subtree's verdict, once: to be sent up, or acted on at the top. False: not yet.
  bool verdict(Nanos now, bool& ok, std::string& why);

  Nanos deadline() const;
  // Who keeps it open below this member; empty: nobody.
  std::string open_text(Member first_child, const Here& here) const;

 private:
  struct Child {
    bool joined = false;
    int ok = -1;          // -1 open, 0 bad, 1 good
    std::string missing;  // in its subtree, as it says
  };
  bool all_joined() const;
  // Nobody below would be told who is missing, or everybody is here.
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
  Nanos timeout_, sweep_;  // the time in which every member sends one probe
  bool told_joined_ = false, started_ = false, told_ = false;
  Nanos begun_ = kNever;  // sending probes
  uint32_t sent_ = 0;     // probes
  size_t bytes_;          // of a probe
  Nanos next_news_, give_up_ = kNever, next_send_ = kNever, interval_;
};

}  // namespace mcast
