// What a registrar does (registrar.h), whoever drives it: which aggregator is asked when, what is
// made of its answers, what is offered. Time is an argument; connections are the caller's to make
// and to listen to.
//
// Threads: one at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/admission.h"
#include "engine/record_link.h"
#include "engine/registrar.h"

namespace mcast {

class RegistrarCore {
 public:
  // Begins a connection to the aggregator number `row` of a group; null: where it is, is not known
  // yet.
  using Connect = std::function<std::unique_ptr<RecordLink>(uint64_t group, size_t row,
                                                            const NetAddress& address)>;
  explicit RegistrarCore(Connect connect) : connect_(std::move(connect)) {}

  // As Registrar's. True: turn() has something to do.
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
  // Where it is, is being found out, or is known now: who does that will call turn().
  void looked_up(const Due& due, bool pending);
  // It cannot be: where it is, is not to be found out.
  void failed(const Due& due, const std::string& why, Nanos now);

  // Asks who is to be asked, gives up who is late, offers what has changed, ends what has left.
  void turn(Nanos now);
  // A link may have records. Not ok: it is over, too. turn() comes next.
  void arrived(uint64_t group, size_t row, const Status& status, Nanos now);
  // When turn() has something to do that nothing announces.
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
    bool looked_up = false;  // its name is, by the caller
    std::string noted;       // in the log
    std::string nonce;       // of a guarded aggregator's challenge
    std::string asked;       // digest_text() of the ask with its proof
  };
  struct Entry {
    Registrar::Job job;
    Nanos gather_until = 0;
    bool left = false;
    bool offered = false;
    std::vector<uint64_t> last_offer;  // uids
    uint32_t version = 0;              // rosters offered
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
