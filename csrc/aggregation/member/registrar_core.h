// The logic of a registrar (registrar.h), independent of its driver: when to ask which aggregator,
// how to handle replies, which stations to offer. Time is an argument; the caller makes connections
// and reads from them.
//
// Threads: one at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "aggregation/member/admission.h"
#include "aggregation/member/record_link.h"
#include "aggregation/member/registrar.h"

namespace mcast {

class RegistrarCore {
 public:
  // Begins a connection to the aggregator number `row` of a group. Null: its address is not known
  // yet.
  using Connect = std::function<std::unique_ptr<RecordLink>(uint64_t group, size_t row,
                                                            const NetAddress& address)>;
  explicit RegistrarCore(Connect connect) : connect_(std::move(connect)) {}

  // As in Registrar. Return true if turn() has work to do.
  void enter(uint64_t group, Registrar::Job job, Nanos now);
  void settled(uint64_t group, const std::vector<uint64_t>& uids);
  bool lost(uint64_t group, uint64_t uid, const std::string& why, Nanos now);
  bool parted(uint64_t group, uint64_t uid, Nanos now);
  bool leave(uint64_t group);
  void leave_all();
  std::vector<AggregatorStats> stats(uint64_t group) const;

  // An aggregator that is to be asked now.
  struct Due {
    uint64_t group = 0;
    size_t row = 0;
    NetAddress address;
  };
  std::vector<Due> due(Nanos now) const;
  // Its address is being looked up (`pending`), or is known now. The caller will call turn() then.
  void looked_up(const Due& due, bool pending);
  // The aggregator cannot be asked, because its address cannot be found.
  void failed(const Due& due, const std::string& why, Nanos now);

  // Asks aggregators that are due, gives up late ones, offers changed stations, and closes
  // connections of groups that have left.
  void turn(Nanos now);
  // A link may have records. An error means that the link is over as well. Call turn() next.
  void arrived(uint64_t group, size_t row, const Status& status, Nanos now);
  // Time at which turn() has work to do without an event.
  Nanos next() const;

  // Calls visit(group, row, link) for each link.
  template <typename Visit>
  void for_each_link(Visit&& visit) const {
    for (const auto& [group, entry] : jobs_) {
      for (size_t i = 0; i < entry.rows.size(); i++) {
        if (entry.rows[i].link) visit(group, i, *entry.rows[i].link);
      }
    }
  }

 private:
  struct Row {
    explicit Row(const NetAddress& address) : admission(address) {}
    Admission admission;
    std::unique_ptr<RecordLink> link;
    bool looked_up = false;  // the caller is looking up its name
    std::string noted;       // last state in the log
    std::string nonce;       // of a guarded aggregator's challenge
    std::string asked;       // digest_text() of the request with its proof
  };
  struct Entry {
    Registrar::Job job;
    Nanos gather_until = 0;
    bool left = false;
    bool offered = false;
    std::vector<uint64_t> last_offer;  // uids
    uint32_t version = 0;              // number of rosters offered
    std::vector<Row> rows;
  };

  static const wire::Ask& ask_of(Entry& entry, const Row& row);
  void ask(uint64_t group, Entry& entry, size_t row, Nanos now);
  void tidy(Entry& entry, Nanos now);
  static void say_goodbye(const Entry& entry, Row& row);
  void offer(Entry& entry, Nanos now);
  void on_record(Entry& entry, Row& row, wire::Admission record, const std::string& text,
                 Nanos now);
  void on_challenge(Entry& entry, Row& row, const wire::Challenge& challenge, Nanos now);
  static Status check_accept(const Entry& entry, const Row& row, const wire::Accept& accept,
                             const std::string& text);
  void on_end(Entry& entry, Row& row, const Status& why, Nanos now);
  void note(const Entry& entry, Row& row) const;
  std::vector<uint64_t> taken(const Entry& entry) const;

  const Connect connect_;
  std::map<uint64_t, Entry> jobs_;  // by group
};

}  // namespace mcast
