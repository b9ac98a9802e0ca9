// Reads an experiment: words key=value, each key with its own reader; conditions that involve
// several keys are checked at the end. A key that is not an option of an experiment is a setting of
// the engine, whose own table checks it.
#include <algorithm>
#include <charconv>
#include <iterator>

#include "base/config.h"
#include "base/units.h"
#include "sim/world/experiment.h"
#include "sim/world/schedules/schedules.h"

namespace mcast::sim {
namespace {

constexpr uint32_t kMostHosts = 16384, kMostRanks = 65534;
constexpr std::string_view kAlgorithms[] = {
    "mcast",    kWithAggregators, "ring",  "ring-schedule", "recursive-doubling",
    "binomial", "chain",          "direct"};

struct Reading {
  ExperimentSpec spec;
  std::string topology = "star";
  uint32_t planes = 1;
  bool block = false;
  double burst = 1;
};

bool read_double(std::string_view text, double low, double high, double* out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *out);
  return error == std::errc() && end == text.data() + text.size() && *out >= low && *out <= high;
}

// "20us", "1.5ms", "0".
bool read_time(std::string_view text, Nanos* out) {
  static constexpr std::pair<std::string_view, double> kUnits[] = {
      {"ns", 1}, {"us", 1e3}, {"ms", 1e6}, {"s", 1e9}};
  double value = 0;
  if (text == "0") return *out = 0, true;
  for (const auto& [unit, ns] : kUnits) {
    if (text.size() <= unit.size() || text.substr(text.size() - unit.size()) != unit) continue;
    if (!read_double(text.substr(0, text.size() - unit.size()), 0, 1e9, &value)) continue;
    if (value * ns > 1e15) return false;
    *out = static_cast<Nanos>(value * ns + 0.5);
    return true;
  }
  return false;
}

bool read_whole(std::string_view text, uint32_t least, uint32_t most, uint32_t* out) {
  return read_number(text, *out, most) && *out >= least;
}

bool read_bytes(std::string_view text, uint64_t* out) {
  return parse_size(text, *out) && *out <= uint64_t{1} << 50;
}

bool read_size(std::string_view text, Reading& r) {
  return read_bytes(text, &r.spec.size) && r.spec.size > 0;
}

bool read_bytes_per_second(std::string_view text, double* out) {
  uint64_t bits = 0;
  if (!parse_rate(text, bits)) return false;
  *out = static_cast<double>(bits) / 8;
  return true;
}

// Calls `take` for each of "a,b,c"; returns false as soon as one is refused, and for an empty list.
template <typename Take>
bool each(std::string_view list, char separator, Take take) {
  while (true) {
    const size_t end = std::min(list.find(separator), list.size());
    if (!take(list.substr(0, end))) return false;
    if (end == list.size()) return true;
    list.remove_prefix(end + 1);
  }
}

bool read_ops(std::string_view text, std::vector<Collective>* ops) {
  ops->clear();
  return each(text, '+', [&](std::string_view name) {
    for (const Collective op : kCollectives) {
      if (name == collective_name(op)) ops->push_back(op);
    }
    return !ops->empty() && name == collective_name(ops->back()) && ops->size() <= 2;
  });
}

bool read_type(std::string_view text, Element* type) {
  static constexpr std::pair<std::string_view, Element> kTypes[] = {
      {"float32", Element::kFloat32}, {"bfloat16", Element::kBFloat16}, {"int32", Element::kInt32}};
  for (const auto& [name, element] : kTypes) {
    if (text == name) return *type = element, true;
  }
  return false;
}

bool read_losses(std::string_view text, std::vector<LinkLoss>* losses) {
  return each(text, ',', [&](std::string_view item) {
    const size_t at = std::min(item.find('@'), item.size());
    LinkLoss loss;
    loss.where = item.substr(std::min(at + 1, item.size()));
    losses->push_back(loss);
    return read_double(item.substr(0, at), 0, 1, &losses->back().rate);
  });
}

// "5:VALUE,6:VALUE".
template <typename T, typename ReadValue>
bool read_by_rank(std::string_view text, std::vector<T>* all, ReadValue read) {
  return each(text, ',', [&](std::string_view item) {
    const size_t colon = std::min(item.find(':'), item.size());
    T one;
    if (!read_number(item.substr(0, colon), one.rank)) return false;
    if (!read(item.substr(std::min(colon + 1, item.size())), &one)) return false;
    all->push_back(one);
    return true;
  });
}

bool read_background(std::string_view text, BackgroundLoad* load) {
  return each(text, ',', [&](std::string_view item) {
    if (item.substr(0, 5) == "load=") return read_double(item.substr(5), 0, 0.95, &load->load);
    if (item.substr(0, 5) == "size=") return read_bytes(item.substr(5), &load->size) && load->size;
    return false;
  });
}

struct Key {
  std::string_view name;
  bool (*read)(std::string_view text, Reading& r);
  const char* allowed;
};

constexpr const char* kWhole = "a whole number";
constexpr const char* kSize = "bytes, such as 64K or 1M";
constexpr const char* kTime = "a time, such as 20us or 1.5ms";
constexpr const char* kRate = "bits per second, such as 100gbit";

const Key kKeys[] = {
    {"topology", [](std::string_view t, Reading& r) { return r.topology = t, !t.empty(); },
     "star, leafspine:leaves=,spines=,links= or fattree:radix="},
    {"planes", [](std::string_view t, Reading& r) { return read_whole(t, 1, 64, &r.planes); },
     "1 to 64"},
    {"hosts",
     [](std::string_view t, Reading& r) { return read_whole(t, 2, kMostHosts, &r.spec.hosts); },
     "2 to 16384"},
    {"ranks", [](std::string_view t, Reading& r) { return read_whole(t, 1, 256, &r.spec.ranks); },
     "1 to 256 per host"},
    {"rate",
     [](std::string_view t, Reading& r) { return read_bytes_per_second(t, &r.spec.net.rate); },
     kRate},
    {"inner_rate",
     [](std::string_view t, Reading& r) {
       return read_bytes_per_second(t, &r.spec.net.inner_rate);
     },
     kRate},
    {"delay",
     [](std::string_view t, Reading& r) {
       return read_time(t, &r.spec.net.delay) && r.spec.net.delay > 0;
     },
     kTime},
    {"mtu",
     [](std::string_view t, Reading& r) { return read_whole(t, 576, 65535, &r.spec.net.mtu); },
     "576 to 65535 bytes"},
    {"op", [](std::string_view t, Reading& r) { return read_ops(t, &r.spec.ops); },
     "broadcast, all_gather, reduce_scatter, all_reduce, all_to_all, gather or scatter, or two of "
     "them at once: A+B"},
    {"size", [](std::string_view t, Reading& r) { return r.block = false, read_size(t, r); },
     kSize},
    {"block", [](std::string_view t, Reading& r) { return r.block = true, read_size(t, r); },
     kSize},
    {"root", [](std::string_view t, Reading& r) { return read_number(t, r.spec.root); }, kWhole},
    {"order",
     [](std::string_view t, Reading& r) {
       r.spec.shuffled = t == "random";
       return t == "random" || t == "hosts";
     },
     "hosts or random: the order in which ranks are placed on hosts"},
    {"algorithm",
     [](std::string_view t, Reading& r) {
       r.spec.algorithm = t;
       return std::find(std::begin(kAlgorithms), std::end(kAlgorithms), t) != std::end(kAlgorithms);
     },
     "mcast, mcast-aggregators, ring, ring-schedule, recursive-doubling, binomial, chain or "
     "direct"},
    {"type", [](std::string_view t, Reading& r) { return read_type(t, &r.spec.type); },
     "float32, bfloat16 or int32, of reductions"},
    {"aggregators",
     [](std::string_view t, Reading& r) {
       return read_whole(t, 0, kMostAggregators, &r.spec.aggregators.count);
     },
     "0 to 64, on hosts of their own"},
    {"aggregator_rate",
     [](std::string_view t, Reading& r) {
       return read_bytes_per_second(t, &r.spec.aggregators.rate);
     },
     kRate},
    {"seed", [](std::string_view t, Reading& r) { return read_number(t, r.spec.seed); }, kWhole},
    {"queue", [](std::string_view t, Reading& r) { return read_bytes(t, &r.spec.net.queue); },
     kSize},
    {"mark", [](std::string_view t, Reading& r) { return read_bytes(t, &r.spec.net.mark); }, kSize},
    {"lossless",
     [](std::string_view t, Reading& r) {
       r.spec.net.lossless = t == "1";
       return t == "0" || t == "1";
     },
     "0 or 1"},
    {"frame",
     [](std::string_view t, Reading& r) { return read_whole(t, 0, 200, &r.spec.net.frame); },
     "0 to 200"},
    {"ack_every",
     [](std::string_view t, Reading& r) { return read_whole(t, 1, 64, &r.spec.net.ack_every); },
     "1 to 64"},
    {"cork",
     [](std::string_view t, Reading& r) {
       r.spec.net.cork = t == "1";
       return t == "0" || t == "1";
     },
     "0 or 1"},
    {"shaper", [](std::string_view t, Reading& r) { return read_bytes(t, &r.spec.net.shaper); },
     kSize},
    {"budget",
     [](std::string_view t, Reading& r) {
       return read_bytes(t, &r.spec.net.budget) && r.spec.net.budget >= 65536;
     },
     "64K or more"},
    {"warmup",
     [](std::string_view t, Reading& r) { return read_whole(t, 0, 10000, &r.spec.course.warmup); },
     "0 to 10000"},
    {"send_queue",
     [](std::string_view t, Reading& r) {
       return read_bytes(t, &r.spec.net.send_queue) && r.spec.net.send_queue >= 65536;
     },
     "64K or more"},
    {"bookkeeping",
     [](std::string_view t, Reading& r) { return read_whole(t, 0, 4096, &r.spec.net.bookkeeping); },
     "0 to 4096"},
    {"nic_queues",
     [](std::string_view t, Reading& r) { return read_whole(t, 1, 64, &r.spec.net.nic_queues); },
     "1 to 64"},
    {"nic_limit",
     [](std::string_view t, Reading& r) { return read_bytes(t, &r.spec.net.nic_limit); }, kSize},
    {"trees",
     [](std::string_view t, Reading& r) {
       r.spec.net.trees_by_source = t == "source";
       return t == "source" || t == "address";
     },
     "address or source"},
    {"train",
     [](std::string_view t, Reading& r) { return read_whole(t, 1, 64, &r.spec.net.train); },
     "1 to 64"},
    {"loss", [](std::string_view t, Reading& r) { return read_losses(t, &r.spec.losses); },
     "SHARE or SHARE@LINKS, such as 1e-4@leaf-spine; several with commas"},
    {"burst", [](std::string_view t, Reading& r) { return read_double(t, 1, 1e6, &r.burst); },
     "mean length of a run of losses, 1 or more"},
    {"late",
     [](std::string_view t, Reading& r) {
       return read_by_rank(t, &r.spec.late,
                           [](std::string_view v, LateRank* l) { return read_time(v, &l->by); });
     },
     "RANK:TIME, such as 5:3ms; several with commas"},
    {"slow",
     [](std::string_view t, Reading& r) {
       return read_by_rank(t, &r.spec.slow, [](std::string_view v, SlowRank* s) {
         return read_double(v, 1e-6, 1, &s->factor);
       });
     },
     "RANK:SHARE of its link's rate, such as 7:0.5; several with commas"},
    {"background",
     [](std::string_view t, Reading& r) { return read_background(t, &r.spec.background); },
     "load=SHARE,size=BYTES, such as load=0.3,size=1M; a load of at most 0.95"},
    {"wake", [](std::string_view t, Reading& r) { return read_time(t, &r.spec.wake); }, kTime},
    {"turn", [](std::string_view t, Reading& r) { return read_time(t, &r.spec.turn); }, kTime},
    {"limit", [](std::string_view t, Reading& r) { return read_time(t, &r.spec.course.limit); },
     kTime},
};

Status refuse_word(std::string_view word, const std::string& why) {
  return Status(Code::kInvalidArgument, "\"" + std::string(word) + "\": " + why);
}

Status read_word(std::string_view word, Reading& r) {
  const size_t equals = word.find('=');
  if (equals == std::string_view::npos) return refuse_word(word, "write key=value");
  const std::string_view name = word.substr(0, equals), value = word.substr(equals + 1);
  const auto* const key = std::find_if(std::begin(kKeys), std::end(kKeys),
                                       [&](const Key& k) { return k.name == name; });
  if (key == std::end(kKeys)) {
    r.spec.settings[std::string(name)] = value;
    const Status known = Config::check_setting(std::string(name), std::string(value));
    if (known.ok()) return {};
    const auto& table = setting_table();
    const bool setting = std::any_of(table.begin(), table.end(),
                                     [&](const SettingInfo& row) { return row.name == name; });
    return refuse_word(word,
                       setting ? known.message()
                               : "neither an option of an experiment nor a setting of the engine");
  }
  if (!key->read(value, r)) return refuse_word(word, std::string("allowed: ") + key->allowed);
  return {};
}

bool is_class_of(const Topology& topology, const std::string& where) {
  for (LinkId id = 0; id < topology.links(); id++) {
    if (loss_is_at(topology.class_name(topology.link(id)), where)) return true;
  }
  return false;
}

Status check_ranks(const ExperimentSpec& spec) {
  const uint32_t ranks = spec.all_ranks();
  const std::string there = "; there are ranks 0 to " + std::to_string(ranks - 1);
  if (ranks > kMostRanks) {
    return refuse_word("ranks=" + std::to_string(spec.ranks), "more than 65534 ranks on all hosts");
  }
  if (spec.root >= ranks)
    return refuse_word("root=" + std::to_string(spec.root), "no such rank" + there);
  for (const LateRank& late : spec.late) {
    if (late.rank >= ranks)
      return refuse_word("late=" + std::to_string(late.rank), "no such rank" + there);
  }
  for (const SlowRank& slow : spec.slow) {
    if (slow.rank >= ranks)
      return refuse_word("slow=" + std::to_string(slow.rank), "no such rank" + there);
  }
  if (spec.size < ranks) {
    return refuse_word("size=" + std::to_string(spec.size), "at least one byte for each rank");
  }
  return {};
}

// Checks that the planner of aggregators supports these operations.
Status check_served(std::vector<Collective> ops) {
  std::sort(ops.begin(), ops.end());
  const bool reduces = ops.back() >= Collective::kReduceScatter;
  if (!reduces)
    return refuse_word("algorithm=mcast-aggregators", "aggregators fold reductions only");
  if (ops.size() == 1 || ops == std::vector{Collective::kAllGather, Collective::kReduceScatter}) {
    return {};
  }
  return refuse_word(std::string("op=") + collective_name(ops[0]) + "+" + collective_name(ops[1]),
                     "with aggregators, op must be one reduction, or all_gather+reduce_scatter");
}

Status check_algorithm(const ExperimentSpec& spec) {
  if (spec.algorithm == kWithAggregators) {
    if (Status status = check_served(spec.ops); !status.ok()) return status;
    if (spec.aggregators.count > 0) return {};
    return refuse_word("algorithm=mcast-aggregators", "needs aggregators=, their number");
  }
  if (spec.algorithm == "mcast" || spec.algorithm == "ring") return {};
  for (const Collective op : spec.ops) {
    if (has_schedule(spec.algorithm, op)) continue;
    return refuse_word("algorithm=" + spec.algorithm,
                       std::string("has no schedule for ") + collective_name(op));
  }
  return {};
}

Status check_chunk(const ExperimentSpec& spec) {
  const uint32_t chunk = framing_of(spec).datagram_payload;
  const uint32_t headers = framing_of(spec).datagram_overhead - spec.net.frame;
  if (chunk >= 64 && chunk % 64 == 0 && chunk + headers <= spec.net.mtu) return {};
  return refuse_word(
      "chunk=" + std::to_string(chunk),
      "a multiple of 64 that fits the mtu with " + std::to_string(headers) + " bytes of headers");
}

// Checks the conditions that involve several keys.
Status finish(Reading& r) {
  ExperimentSpec& spec = r.spec;
  if (spec.size == 0) spec.size = 64 << 20;
  if (r.block) {
    if (spec.ops.front() == Collective::kBroadcast) {
      return refuse_word("block=" + size_text(spec.size), "a broadcast has no blocks: write size=");
    }
    spec.size *= spec.all_ranks();
  }
  if (r.planes > 1) {
    r.topology += r.topology.find(':') == std::string::npos ? ":" : ",";
    r.topology += "planes=" + std::to_string(r.planes);
  }
  const auto topology = TopologySpec::parse(r.topology, spec.hosts + spec.extra_hosts());
  if (!topology.ok()) return topology.status();
  spec.net.topology = *topology;
  const Topology links(spec.net.topology);
  for (LinkLoss& loss : spec.losses) {
    loss.burst = r.burst;
    if (!is_class_of(links, loss.where)) {
      return refuse_word("loss=@" + loss.where, "this topology has no such links");
    }
  }
  if (Status status = check_ranks(spec); !status.ok()) return status;
  if (Status status = check_chunk(spec); !status.ok()) return status;
  return check_algorithm(spec);
}

}  // namespace

Result<ExperimentSpec> ExperimentSpec::parse(std::string_view text) {
  Reading r;
  for (size_t at = 0; at < text.size();) {
    const size_t begin = text.find_first_not_of(" \t\r\n", at);
    if (begin == std::string_view::npos) break;
    at = std::min(text.find_first_of(" \t\r\n", begin), text.size());
    const std::string_view word = text.substr(begin, at - begin);
    if (!r.spec.text.empty()) r.spec.text += ' ';
    r.spec.text += word;
    if (Status status = read_word(word, r); !status.ok()) return status;
  }
  if (Status status = finish(r); !status.ok()) return status;
  return std::move(r.spec);
}

}  // namespace mcast::sim
