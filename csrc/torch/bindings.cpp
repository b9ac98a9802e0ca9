// The Python module torch_mcast._C: Options, ProcessGroupMcast, statistics as plain dictionaries,
// the settings table, and shutdown. Everything that may wait gives up Python's lock. Settings
// become attributes of Options in a loop over the table.
#include <arpa/inet.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/version.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <pybind11/chrono.h>
#include <pybind11/stl.h>

#include <cmath>
#include <sstream>

#include "arena.h"
#include "assembly/assembly.h"
#include "backend.h"
#include "background.h"
#include "base/test_clock.h"
#include "base/units.h"
#include "bindings.h"
#include "device/completion_poller.h"
#include "device/failure_policy.h"
#include "gil.h"
#include "nccl_options.h"
#include "runtime/transport_choice.h"
#include "transport/udp/netif.h"

#ifdef MCAST_HOST_ENGINE
#include "engine_store.h"
#endif

namespace py = pybind11;

namespace mcast::pg {
namespace {

// int, float, bool, str, timedelta -> the text of a setting. None: not set.
std::string setting_text(const SettingInfo& row, const py::handle& value) {
  if (py::isinstance<py::str>(value)) return py::cast<std::string>(value);
  if (row.kind != 'S') {
    if (py::isinstance<py::bool_>(value)) return py::cast<bool>(value) ? "1" : "0";
    if (py::isinstance<py::int_>(value)) return py::cast<std::string>(py::str(value));
    if (row.kind == 'D') {
      if (py::isinstance<py::float_>(value)) return py::cast<std::string>(py::repr(value));
      const py::object timedelta = py::module_::import("datetime").attr("timedelta");
      if (py::isinstance(value, timedelta)) {
        const auto us = std::chrono::duration_cast<std::chrono::microseconds>(
            py::cast<std::chrono::duration<double>>(value));
        std::ostringstream text;
        text << us.count() / 1000 << "." << std::to_string(1000 + us.count() % 1000).substr(1);
        return text.str();
      }
    }
  }
  const char* expected = row.kind == 'S'   ? "a str"
                         : row.kind == 'U' ? "an int or a str like \"64K\""
                                           : "milliseconds (int, float) or a timedelta";
  throw py::type_error(std::string("torch_mcast.Options: ") + row.name + " must be " + expected +
                       ", got " +
                       py::cast<std::string>(py::str(py::type::of(value).attr("__name__"))));
}

py::object setting_value(const SettingInfo& row, const std::string& text) {
  switch (row.kind) {
    case 'U':
      return py::int_(py::str(text));
    case 'D': {
      double value = 0;
      (void)read_decimal(text, value);
      return py::float_(value);
    }
    default:
      return py::str(text);
  }
}

void set_option(McastOptions& options, const SettingInfo& row, const py::handle& value) {
  if (value.is_none()) {
    options.unset(row.name);
  } else {
    options.set(row.name, setting_text(row, value));
  }
}

void set_fallback_name(McastOptions& options, const std::string& name) {
  if (name != "auto" && name != "gloo" && name != "none") {
    throw py::value_error("torch_mcast.Options: fallback must be 'auto', 'gloo' or 'none', got '" +
                          name + "'");
  }
  options.fallback = name;
}

void set_timeout(McastOptions& options, const py::handle& value) {
  options.timeout = py::cast<std::chrono::milliseconds>(value);
}

void apply_keywords(McastOptions& options, const py::kwargs& keywords) {
  for (const auto& [key, value] : keywords) {
    const auto name = py::cast<std::string>(key);
    if (name == "timeout") {
      set_timeout(options, value);
    } else if (name == "fallback") {
      set_fallback_name(options, py::cast<std::string>(value));
    } else if (name == "nccl") {
      set_nccl_options(options, py::reinterpret_borrow<py::object>(value));
    } else if (const SettingInfo* row = find_setting(name)) {
      set_option(options, *row, value);
    } else {
      std::string known = "timeout, fallback, nccl";
      for (const SettingInfo& other : setting_table()) known += std::string(", ") + other.name;
      throw py::type_error("torch_mcast.Options: unknown option '" + name + "'; there are " +
                           known);
    }
  }
}

py::list aggregator_rows(const GroupStats& stats) {
  py::list rows;
  for (const AggregatorStats& aggregator : stats.aggregation.aggregators) {
    py::dict row;
    row["address"] = aggregator.address;
    row["state"] = aggregator.state;
    row["reason"] = aggregator.reason;
    row["stations"] = aggregator.stations;
    row["capacity"] = aggregator.capacity;
    rows.append(row);
  }
  return rows;
}

// A fraction or a time of the planner.
double whole(uint64_t value) { return static_cast<double>(value) / kWhole; }

py::dict plan_row(const AggregationReport::Plan& plan) {
  const Placement& placement = plan.placement;
  py::list stations;
  for (size_t j = 0; j < plan.stations.size(); ++j) {
    const AggregationReport::Station& station = plan.stations[j];
    py::dict row;
    row["address"] = station.address;
    row["capacity"] = whole(station.capacity);
    row["part"] = whole(placement.stations[j]);
    row["lost"] = station.lost;
    stations.append(row);
  }
  py::dict row;
  row["sequence"] = plan.sequence;
  row["bytes"] = plan.bytes;
  row["reason"] = placement_text(placement.reason);
  row["part"] = whole(placement.part);
  row["own"] = placement.part == 0 ? "" : placement.kept ? "kept" : "sent";
  row["stations"] = stations;
  row["measured"] = py::none();
  if (plan.with != 0 && plan.without != 0) {
    py::dict measured;
    measured["with_ms"] = static_cast<double>(plan.with) / kMilli;
    measured["without_ms"] = static_cast<double>(plan.without) / kMilli;
    row["measured"] = measured;
  }
  row["planned"] = whole(placement.planned);
  row["workers"] = whole(placement.workers);
  row["ratio"] = placement.workers == 0 ? 1.0
                                        : static_cast<double>(placement.planned) /
                                              static_cast<double>(placement.workers);
  return row;
}

py::dict aggregation_dict(const AggregationReport& report) {
  py::dict plans;
  for (const AggregationReport::Plan& plan : report.plans) {
    plans[wire::kind_name(plan.kind)] = plan_row(plan);
  }
  return plans;
}

py::object waiting_row(const AggregationReport& report) {
  if (!report.waiting) return py::none();
  py::dict row;
  row["sequence"] = report.waiting->sequence;
  row["ranks"] = report.waiting->ranks;
  row["ms"] = static_cast<double>(report.waiting->time) / kMilli;
  return row;
}

py::dict partial_dict(const ProcessGroupMcast& backend, const GroupStats& stats) {
  const AggregationReport::Partial& partial = stats.aggregation.report.partial;
  py::dict result;
  result["limit_ms"] = static_cast<double>(backend.config().partial) / kMilli;
  result["not_served"] = stats.aggregation.no_partial;
  result["operations"] = partial.operations;
  result["excused"] = partial.excused;
  result["last"] = py::none();
  if (partial.last) {
    py::dict last;
    last["sequence"] = partial.last->sequence;
    last["ranks"] = partial.last->ranks;
    last["contributors"] = partial.last->contributors;
    result["last"] = last;
  }
  return result;
}

uint32_t contributors(const c10::intrusive_ptr<c10d::Work>& work) {
  const auto* const ours = dynamic_cast<const McastWork*>(work.get());
  if (ours == nullptr) {
    throw py::value_error("torch_mcast: not a work of mcast: another backend has served the call");
  }
  return ours->contributors()->load();
}

// {device: kind} of those that the group has, or would make.
py::dict fallback_kinds(const ProcessGroupMcast& backend) {
  py::dict kinds;
  for (const c10::DeviceType device : {c10::DeviceType::CPU, c10::DeviceType::CUDA}) {
    const std::string kind = backend.fallbacks().kind(device);
    if (!kind.empty()) kinds[c10::DeviceTypeName(device, /*lower_case=*/true).c_str()] = kind;
  }
  return kinds;
}

py::dict stats_dict(ProcessGroupMcast& backend) {
  const GroupStats stats = backend.group_stats();
  py::dict counters;
  for (const auto& [name, value] : stats.counters) counters[name] = value;
  py::dict reduce_counters;
  for (size_t i = 0; i < stats.reduce_counters.size(); ++i) {
    reduce_counters[stats.counters[i].first] = stats.reduce_counters[i];
  }
  py::dict repairs;
  for (size_t peer = 0; peer < stats.repair_from_to.size(); ++peer) {
    py::dict row;
    row["received_bytes"] = stats.repair_from_to[peer].first;
    row["sent_bytes"] = stats.repair_from_to[peer].second;
    repairs[py::int_(peer)] = row;
  }
  py::dict calls;
  py::dict bytes;
  for (size_t i = 0; i < kOpCount; ++i) {
    const CallCounts& count = backend.call_statistics().get(static_cast<Op>(i));
    if (count.engine == 0 && count.fallback == 0) continue;
    py::dict row;
    row["engine"] = count.engine.load();
    row["fallback"] = count.fallback.load();
    calls[kOpNames[i]] = row;
    if (count.engine != 0) bytes[kOpNames[i]] = count.bytes.load();
  }
  py::dict result;
  result["group"] = stats.name;
  result["rank"] = backend.getRank();
  result["size"] = backend.getSize();
  result["path"] = stats.path;
  result["reason"] = stats.reason;
  result["transport"] = stats.transport;
  result["transport_reason"] = stats.transport_reason;
  result["contributions"] = stats.contributions;
  result["fold"] = stats.fold;
  result["streams"] = stats.streams;
  result["aggregators"] = aggregator_rows(stats);
  result["aggregation"] = aggregation_dict(stats.aggregation.report);
  result["waiting"] = waiting_row(stats.aggregation.report);
  result["partial"] = partial_dict(backend, stats);
  result["chunk"] = stats.chunk;
  result["window"] = stats.window;
  result["eager"] = stats.eager;
  result["segment"] = stats.segment;
  result["next_sequence"] = stats.next_sequence.multicast;
  result["next_reduce_sequence"] = stats.next_sequence.reduce;
  result["security"] = security_dict(stats.security);
  result["device"] = device_dict();
  result["failure"] = stats.failure;
  result["fallback"] = fallback_kinds(backend);
  result["calls"] = calls;
  result["bytes"] = bytes;
  result["counters"] = counters;
  result["reduce_counters"] = reduce_counters;
  result["repairs"] = repairs;
  return result;
}

py::list settings_list() {
  py::list rows;
  for (const SettingInfo& row : setting_table()) {
    py::dict entry;
    entry["name"] = row.name;
    entry["env"] = row.env;
    entry["kind"] = std::string(1, row.kind);
    entry["default"] = row.default_text;
    entry["min"] = row.min;
    entry["max"] = row.max;
    entry["agreed"] = row.agreed;
    entry["help"] = row.help;
    rows.append(entry);
  }
  return rows;
}

py::dict counters_dict() {
  py::dict help;
  for (size_t i = 0; i < kCounterCount; ++i) {
    help[counter_name(static_cast<Counter>(i))] = counter_help(static_cast<Counter>(i));
  }
  return help;
}

void bind_options(py::module_& module) {
  py::class_<McastOptions, c10d::Backend::Options, c10::intrusive_ptr<McastOptions>> cls(
      module, "Options",
      "Settings of one process group: Options(eager=65536, faults=\"drop:rate=0.1\").\n"
      "Settings that are not given come from the MCAST_* environment variables, then from the\n"
      "defaults.");
  cls.def(py::init([](const py::kwargs& keywords) {
       auto options = c10::make_intrusive<McastOptions>();
       apply_keywords(*options, keywords);
       return options;
     }))
      .def_property(
          "timeout", [](const McastOptions& self) { return self.timeout; },
          [](McastOptions& self, const py::object& value) { set_timeout(self, value); })
      .def_property(
          "fallback", [](const McastOptions& self) { return self.fallback; }, set_fallback_name)
      .def_property("nccl", &nccl_options, &set_nccl_options,
                    "ProcessGroupNCCL.Options of the fallback for CUDA tensors, or None.")
      .def_property_readonly(
          "settings", [](const McastOptions& self) { return self.settings; },
          "The settings that were given explicitly, as text.")
      .def(
          "resolved", [](const McastOptions& self) { return self.resolve().values(); },
          "Every setting as a group made now would have it.")
      .def("__eq__",
           [](const McastOptions& self, const py::object& other) {
             return py::isinstance<McastOptions>(other) &&
                    self == py::cast<const McastOptions&>(other);
           })
      .def("__repr__", [](const McastOptions& self) { return "torch_mcast." + self.repr(); })
      .def("__copy__",
           [](const McastOptions& self) { return c10::make_intrusive<McastOptions>(self); })
      .def("__deepcopy__", [](const McastOptions& self,
                              const py::dict&) { return c10::make_intrusive<McastOptions>(self); })
      .def(py::pickle(
          [](const McastOptions& self) {
            return py::make_tuple(self.settings, self.fallback, self.timeout.count(),
                                  self.group_name, self.group_desc, self.global_ranks_in_group);
          },
          [](const py::tuple& state) {
            auto options = c10::make_intrusive<McastOptions>();
            options->settings = py::cast<std::map<std::string, std::string>>(state[0]);
            options->fallback = py::cast<std::string>(state[1]);
            options->timeout = std::chrono::milliseconds(py::cast<int64_t>(state[2]));
            options->group_name = py::cast<std::string>(state[3]);
            options->group_desc = py::cast<std::string>(state[4]);
            options->global_ranks_in_group = py::cast<std::vector<uint64_t>>(state[5]);
            return options;
          }));
  cls.attr("__hash__") = py::none();  // mutable
  for (const SettingInfo& row : setting_table()) {
    cls.def_property(
        row.name,
        [&row](const McastOptions& self) {
          return setting_value(row, self.resolve().get(row.name));
        },
        [&row](McastOptions& self, const py::object& value) { set_option(self, row, value); },
        row.help);
  }
}

// The library's choice among interfaces as the doctor sees them.
py::tuple chosen_interfaces(const py::list& interfaces, const std::string& pattern, size_t lane) {
  std::vector<Interface> all;
  for (const py::handle& row : interfaces) {
    Interface& i = all.emplace_back();
    i.name = py::cast<std::string>(row.attr("name"));
    i.index = py::cast<int>(row.attr("index"));
    i.mtu = py::cast<uint32_t>(row.attr("mtu"));
    i.up = py::cast<bool>(row.attr("up"));
    i.loopback = py::cast<bool>(row.attr("loopback"));
    i.multicast = py::cast<bool>(row.attr("multicast"));
    i.default_route = py::cast<bool>(row.attr("default_route"));
    i.store_route = py::cast<bool>(row.attr("store_route"));
    i.speed = py::cast<uint32_t>(row.attr("speed"));
    const auto address = py::cast<std::string>(row.attr("address"));
    const auto number = IpAddress::parse(address);
    if (!address.empty() && !number) throw py::value_error("not an IP address: " + address);
    if (number) i.address = *number;
  }
  const auto choice = mcast::choose_interfaces(all, pattern, lane);
  if (!choice.ok()) throw py::value_error(choice.status().message());
  py::list names;
  for (const Interface& i : choice->stripe) names.append(i.name);
  return py::make_tuple(names, choice->reason);
}

void bind_backend(py::module_& module) {
  py::class_<ProcessGroupMcast, c10d::Backend, c10::intrusive_ptr<ProcessGroupMcast>>(
      module, "ProcessGroupMcast")
      .def(py::init([](const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                       const c10::intrusive_ptr<McastOptions>& options) {
             return c10::make_intrusive<ProcessGroupMcast>(store, rank, size, options);
           }),
           py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("options"),
           py::call_guard<py::gil_scoped_release>())
      .def("_fallback_store", &ProcessGroupMcast::fallback_store)
      // c10d's passes on the index of the device only.
      .def(
          "supports_tensor_alloc",
          [](const ProcessGroupMcast& self, const at::Device& device) {
            return device.is_cpu() && self.maps_memory().ok();
          },
          py::arg("device"), py::call_guard<py::gil_scoped_release>())
      .def("_mode_and_path",
           [](const ProcessGroupMcast& self) {
             const GroupStats stats = self.group_stats();
             return py::make_tuple(stats.security.mode, stats.path);
           })
      // c10d calls it on ranks that are not in a new group: NCCL's ranks must all take part there.
      .def("perform_nocolor_split", [](ProcessGroupMcast&, const py::object&) {})
      .def_property_readonly(
          "options",
          [](ProcessGroupMcast& self) {
            return c10::static_intrusive_pointer_cast<McastOptions>(self.getBackendOptions());
          },
          "The options of this group; its timeout follows set_timeout().")
      // Not all versions of torch bind it for every backend.
      .def("get_error", &ProcessGroupMcast::getError, py::call_guard<py::gil_scoped_release>())
      .def("_stats", &stats_dict)
      .def(
          "_config", [](const ProcessGroupMcast& self) { return self.config().values(); },
          "The settings this group was made with.");
}

void bind_store([[maybe_unused]] py::module_& module) {
#ifdef MCAST_HOST_ENGINE
  py::class_<EngineStore, c10d::Store, c10::intrusive_ptr<EngineStore>>(module, "EngineStore")
      .def(py::init([](std::string engine, std::string host, uint16_t port, std::string name,
                       std::chrono::milliseconds timeout, std::string user) {
             return c10::make_intrusive<EngineStore>(
                 StoreClient::Where{std::move(engine), std::move(host), port, std::move(name),
                                    std::move(user)},
                 timeout);
           }),
           py::arg("engine"), py::arg("host"), py::arg("port"), py::arg("name"), py::arg("timeout"),
           py::arg("user") = "", py::call_guard<py::gil_scoped_release>());
#endif
}

void bind_test_clock(py::module_& module) {
  module.def(
      "_use_test_clock",
      [](const std::string& path) {
        const Status used = test_clock::use(path);
        if (!used.ok()) throw py::value_error(used.message());
      },
      py::arg("path"),
      "For tests: the first 8 bytes of this file, nanoseconds, are added to the engine's clock.");
}

}  // namespace
}  // namespace mcast::pg

PYBIND11_MODULE(_C, module) {
  using namespace mcast;      // NOLINT
  using namespace mcast::pg;  // NOLINT
  use_products(&assemble);
  set_main_thread(py::cast<unsigned long>(
      py::module_::import("threading").attr("main_thread")().attr("ident")));
  module.attr("__version__") = version();
  module.attr("torch_version") = TORCH_VERSION;
  for (const auto bind : {bind_options, bind_backend, bind_groups, bind_store, bind_monitoring,
                          bind_test_clock, bind_errors, bind_devices}) {
    bind(module);
  }
  module.def("settings", &settings_list, "The rows of the settings table.");
  module.def("choose_interfaces", &chosen_interfaces, py::arg("interfaces"), py::arg("pattern"),
             py::arg("lane") = 0,
             "Chooses from `interfaces`, whose attributes are those of "
             "torch_mcast.doctor.netif.Interface. Returns (names of the interfaces of a lane, "
             "reason); a ValueError says why there is none.");
  module.def(
      "verbs_problem",
      [] {
        // As of the environment, but whether or not it leaves the choice.
        mcast::Config config = McastOptions().resolve();
        config.transport = "auto";
        return mcast::transport_problem(*mcast::find_transport("verbs"), config);
      },
      py::call_guard<py::gil_scoped_release>(),
      "Empty, or why the verbs transport does not work on this host.");
  module.def(
      "replace_cpu_allocator", &replace_cpu_allocator,
      "Places CPU tensors of 1 MiB and more that are made from now on in memory that the engine "
      "of the host and ranks of one host map. Returns False if there is none; the log says why.");
  module.def("contributors", &contributors, py::arg("work"),
             "How many ranks' inputs are in the result of a reduction.");
  module.def("counters", &counters_dict, "Counter names and what they count.");
  module.def(
      "shutdown",
      [](bool give_up) {
        leave_failures();
        HeldSignal signal;
        Engine::instance().shutdown(give_up, [&signal] { return signal.raised(); });
        CompletionPoller::instance().close(5 * kSecond);
        Background::instance().close(5 * kSecond);
        begin_leaving();
        signal.rethrow();
      },
      "Ends the engine, at exit. Waits until all ranks have confirmed the operations that were "
      "posted, at most for their time limits; with give_up, or after Ctrl-C, it does not wait for "
      "operations that are not over on this rank.",
      py::arg("give_up") = false, py::call_guard<py::gil_scoped_release>());
}
