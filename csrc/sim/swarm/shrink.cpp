// Delta debugging (Zeller, Hildebrandt 2002): halves of lists are removed, then quarters, down to
// single items; then each number is tried at its default, at zero, and at half its value. This is
// repeated until a round changes nothing. Candidates that are not valid plans (check()) are not
// run.
#include "sim/swarm/shrink.h"

#include <algorithm>
#include <utility>

namespace mcast::sim {

namespace {

class Shrinker {
 public:
  Shrinker(const Plan& plan, const std::function<bool(const Plan&)>& fails, size_t runs,
           const std::function<bool()>& stop)
      : best_(plan), fails_(fails), most_(runs), stop_(stop) {}

  Shrunk run() {
    std::string before;
    while (before != print(best_) && !over()) {
      before = print(best_);
      lists();
      for (size_t g = best_.groups.size(); g-- > 0;) drop_group(g);
      for (uint32_t host = best_.world.hosts; host-- > 0;) drop_host(host);
      world();
      for (size_t i = 0; i < best_.groups.size(); i++) group(i);
      for (size_t i = 0; i < best_.ops.size(); i++) operation(i);
      for (size_t i = 0; i < best_.messages.size(); i++) message(i);
      for (size_t i = 0; i < best_.faults.size(); i++) fault(i);
      for (size_t i = 0; i < best_.special.size(); i++) special(i);
      for (size_t i = best_.aggregators.size(); i-- > 0;) aggregator(i);
    }
    return {best_, runs_};
  }

 private:
  bool over() const { return runs_ >= most_ || (stop_ && stop_()); }

  // Keeps a smaller plan if it still fails.
  bool keep(const Plan& smaller) {
    if (over() || !check(smaller).ok()) return false;
    runs_++;
    if (!fails_(smaller)) return false;
    best_ = smaller;
    return true;
  }
  template <typename Change>
  bool attempt(Change change) {
    Plan smaller = best_;
    change(smaller);
    return print(smaller) != print(best_) && keep(smaller);
  }

  template <typename Item>
  void shorten(std::vector<Item> Plan::*list) {
    for (size_t length = std::max<size_t>(1, (best_.*list).size() / 2); length > 0; length /= 2) {
      for (size_t at = 0; at < (best_.*list).size();) {
        const bool gone = attempt([&](Plan& p) {
          auto& items = p.*list;
          const size_t end = std::min(items.size(), at + length);
          items.erase(items.begin() + static_cast<ptrdiff_t>(at),
                      items.begin() + static_cast<ptrdiff_t>(end));
        });
        if (!gone) at += length;
      }
    }
  }

  void lists() {
    shorten(&Plan::faults);
    shorten(&Plan::ops);
    shorten(&Plan::messages);
    shorten(&Plan::settings);
    shorten(&Plan::special);
  }

  // Removes a group with its operations and the program's actions on it.
  void drop_group(size_t g) {
    attempt([&](Plan& p) {
      const auto of_it = [&](const auto& item) { return item.group == g; };
      std::erase_if(p.ops, of_it);
      std::erase_if(p.messages, of_it);
      std::erase_if(p.faults, [&](const PlannedFault& f) {
        const bool program = f.what == FaultKind::kAbort || f.what == FaultKind::kClose;
        return program && of_it(f);
      });
      p.groups.erase(p.groups.begin() + static_cast<ptrdiff_t>(g));
      for (auto& op : p.ops) op.group -= op.group > g ? 1 : 0;
      for (auto& one : p.messages) one.group -= one.group > g ? 1 : 0;
      for (auto& f : p.faults) f.group -= f.group > g ? 1 : 0;
    });
  }

  // Removes a host with its ranks, from all groups.
  void drop_host(uint32_t host) {
    attempt([&](Plan& p) {
      for (uint32_t i = p.world.ranks; i-- > 0;) drop_rank(p, host * p.world.ranks + i);
      p.world.hosts--;
    });
  }

  static void drop_rank(Plan& p, uint32_t rank) {
    for (size_t g = 0; g < p.groups.size(); g++) {
      auto& ranks = p.groups[g].ranks;
      const auto at = std::find(ranks.begin(), ranks.end(), rank);
      if (at == ranks.end()) continue;
      const auto member = static_cast<uint32_t>(at - ranks.begin());
      ranks.erase(at);
      for (auto& op : p.ops) {
        if (op.group == g) drop_member(op, member, static_cast<uint32_t>(ranks.size()));
      }
      drop_messages(p, g, member);
    }
    std::erase_if(p.faults, [&](auto& f) { return f.rank == rank || f.peer == rank; });
    std::erase_if(p.special, [&](auto& s) { return s.rank == rank; });
    const auto close_up = [&](uint32_t& one) { one -= one != kNoMember && one > rank ? 1 : 0; };
    for (auto& group : p.groups) std::for_each(group.ranks.begin(), group.ranks.end(), close_up);
    for (auto& f : p.faults) {
      close_up(f.rank);
      close_up(f.peer);
    }
    for (auto& s : p.special) close_up(s.rank);
  }

  static void drop_messages(Plan& p, size_t g, uint32_t member) {
    std::erase_if(p.messages, [&](const PlannedMessage& one) {
      return one.group == g && (one.from == member || one.to == member);
    });
    for (auto& one : p.messages) {
      if (one.group != g) continue;
      one.from -= one.from > member ? 1 : 0;
      one.to -= one.to > member ? 1 : 0;
    }
  }

  static void drop_member(PlannedOp& op, uint32_t member, uint32_t left) {
    const auto close_up = [&](uint32_t& one) { one -= one != kNoMember && one > member ? 1 : 0; };
    if (op.late == member) op.late = kNoMember;
    if (op.odd == member) op.odd = kNoMember;
    close_up(op.late);
    close_up(op.odd);
    close_up(op.root);
    if (op.root >= left) op.root = 0;
  }

  // Tries a number's default, zero, and half; restores it if none of them fails.
  template <typename Place, typename Value>
  void lower(Place place, Value plain) {
    if (attempt([&](Plan& p) { place(p) = plain; })) return;
    while (attempt([&](Plan& p) {
      auto& value = place(p);
      if (value > plain) value = plain + (value - plain) / 2;
    })) {
    }
  }

  void world() {
    const PlannedWorld plain;
    const auto reset = [&](auto field) {
      attempt([&](Plan& p) { p.world.*field = plain.*field; });
    };
    attempt([](Plan& p) {
      p.world.hosts *= p.world.ranks;
      p.world.ranks = 1;
    });
    reset(&PlannedWorld::topology);
    reset(&PlannedWorld::rate);
    reset(&PlannedWorld::delay);
    reset(&PlannedWorld::queue);
    reset(&PlannedWorld::lossless);
    reset(&PlannedWorld::interface);
    reset(&PlannedWorld::nic_queues);
    reset(&PlannedWorld::train);
    reset(&PlannedWorld::datagram);
    reset(&PlannedWorld::budget);
    reset(&PlannedWorld::bookkeeping);
    reset(&PlannedWorld::send_queue);
    reset(&PlannedWorld::gathers);
    reset(&PlannedWorld::jitter);
    reset(&PlannedWorld::wake);
    reset(&PlannedWorld::command);
    reset(&PlannedWorld::seed);
  }

  void group(size_t i) {
    lower(
        [i](Plan & p) -> auto& { return p.groups[i].at; }, Nanos{0});
    for (const auto field : {&PlannedGroup::ring, &PlannedGroup::callbacks, &PlannedGroup::early}) {
      attempt([&](Plan& p) { p.groups[i].*field = 0; });
    }
    for (uint32_t m = static_cast<uint32_t>(best_.groups[i].ranks.size()); m-- > 0;) {
      attempt([&](Plan& p) {
        auto& ranks = p.groups[i].ranks;
        ranks.erase(ranks.begin() + m);
        for (auto& op : p.ops) {
          if (op.group == i) drop_member(op, m, static_cast<uint32_t>(ranks.size()));
        }
        drop_messages(p, i, m);
      });
    }
  }

  void operation(size_t i) {
    const PlannedOp plain;
    attempt([&](Plan& p) {
      p.ops[i].late = kNoMember;
      p.ops[i].by = 0;
    });
    attempt([&](Plan& p) {
      p.ops[i].odd = kNoMember;
      p.ops[i].odd_bytes = 0;
    });
    attempt([&](Plan& p) {
      p.ops[i].element = plain.element;
      p.ops[i].reduction = plain.reduction;
      p.ops[i].bytes -= p.ops[i].bytes % 4;
    });
    attempt([&](Plan& p) { p.ops[i].root = 0; });
    attempt([&](Plan& p) { p.ops[i].splits = 0; });
    attempt([&](Plan& p) { p.ops[i].timeout = plain.timeout; });
    lower(
        [i](Plan & p) -> auto& { return p.ops[i].at; }, Nanos{0});
    lower(
        [i](Plan & p) -> auto& { return p.ops[i].by; }, Nanos{0});
    while (attempt([&](Plan& p) { p.ops[i].bytes = p.ops[i].bytes / 2 / 8 * 8; })) {
    }
  }

  void message(size_t i) {
    attempt([&](Plan& p) { p.messages[i].any = 0; });
    attempt([&](Plan& p) { p.messages[i].tag = 0; });
    attempt([&](Plan& p) { p.messages[i].timeout = PlannedMessage().timeout; });
    lower(
        [i](Plan & p) -> auto& { return p.messages[i].at; }, Nanos{0});
    lower(
        [i](Plan & p) -> auto& { return p.messages[i].by; }, Nanos{0});
    lower(
        [i](Plan & p) -> auto& { return p.messages[i].bytes; }, uint64_t{0});
  }

  void fault(size_t i) {
    lower(
        [i](Plan & p) -> auto& { return p.faults[i].at; }, Nanos{0});
    attempt([&](Plan& p) { p.faults[i].length = kNever; });
    if (best_.faults[i].length != kNever) {
      lower(
          [i](Plan & p) -> auto& { return p.faults[i].length; }, Nanos{0});
    }
    lower(
        [i](Plan & p) -> auto& { return p.faults[i].much; }, Nanos{0});
    lower(
        [i](Plan & p) -> auto& { return p.faults[i].burst; }, 1.0);
    attempt([&](Plan& p) { p.faults[i].every = 0; });
    attempt([&](Plan& p) { p.faults[i].lane = kNoMember; });
    if (!is_of_aggregator(best_.faults[i].what)) {
      attempt([&](Plan& p) { p.faults[i].rank = 0; });
    }
  }

  void aggregator(size_t i) {
    const bool gone = attempt([&](Plan& p) {
      p.aggregators.erase(p.aggregators.begin() + static_cast<ptrdiff_t>(i));
      std::erase_if(p.faults,
                    [&](auto& f) { return is_of_aggregator(f.what) && f.aggregator == i; });
      for (auto& f : p.faults) f.aggregator -= f.aggregator > i ? 1 : 0;
    });
    if (gone) return;
    const PlannedAggregator plain;
    for (const auto field : {&PlannedAggregator::clock, &PlannedAggregator::slow}) {
      attempt([&](Plan& p) { p.aggregators[i].*field = plain.*field; });
    }
    for (const auto field : {&PlannedAggregator::lanes, &PlannedAggregator::quota}) {
      attempt([&](Plan& p) { p.aggregators[i].*field = plain.*field; });
    }
    attempt([&](Plan& p) { p.aggregators[i].offset = 0; });
  }

  void special(size_t i) {
    attempt([&](Plan& p) { p.special[i].offset = 0; });
    attempt([&](Plan& p) { p.special[i].clock = 1; });
    attempt([&](Plan& p) { p.special[i].slow = 1; });
  }

  Plan best_;
  const std::function<bool(const Plan&)>& fails_;
  const size_t most_;
  const std::function<bool()>& stop_;
  size_t runs_ = 0;
};

}  // namespace

Shrunk shrink(const Plan& plan, const std::string& kind, size_t runs,
              const std::function<bool()>& stop, HeapMeter* meter) {
  const std::function<bool(const Plan&)> fails = [&](const Plan& smaller) {
    const std::vector<Finding> findings = break_laws(smaller, carry_out(smaller, meter));
    return std::any_of(findings.begin(), findings.end(),
                       [&](const Finding& finding) { return kind_of(finding) == kind; });
  };
  return shrink(plan, fails, runs, stop);
}

Shrunk shrink(const Plan& plan, const std::function<bool(const Plan&)>& fails, size_t runs,
              const std::function<bool()>& stop) {
  return Shrinker(plan, fails, runs, stop).run();
}

}  // namespace mcast::sim
