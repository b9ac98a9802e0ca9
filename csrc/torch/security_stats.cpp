// Plain dictionaries; causes by name, those that have not happened too, so that readers need not
// ask.
#include "security_stats.h"

#include <memory>
#include <vector>

#include "engine/engine.h"

namespace py = pybind11;

namespace mcast::pg {
namespace {

py::dict by_cause(const std::array<uint64_t, kCauses>& counts) {
  py::dict causes;
  for (size_t i = 0; i < kCauses; ++i) causes[cause_name(static_cast<Cause>(i))] = counts[i];
  return causes;
}

}  // namespace

py::dict security_dict(const SecurityStats& stats) {
  py::list sources;
  for (const SecurityStats::SourceRow& row : stats.sources) {
    py::dict source;
    source["address"] = row.address;
    source["refused"] = row.refused;
    source["inherited"] = row.inherited;
    source["causes"] = by_cause(row.causes);
    sources.append(source);
  }
  py::dict result;
  result["mode"] = stats.mode;
  result["sources_watched"] = stats.sources_watched;
  result["causes"] = by_cause(stats.causes);
  result["sources"] = sources;
  return result;
}

py::dict causes_dict() {
  py::dict help;
  for (size_t i = 0; i < kCauses; ++i) {
    help[cause_name(static_cast<Cause>(i))] = cause_help(static_cast<Cause>(i));
  }
  return help;
}

py::list groups_list() {
  const std::vector<std::shared_ptr<Group>> groups = Engine::instance().groups();
  std::vector<GroupStats> all;
  {
    const py::gil_scoped_release released;
    for (const auto& group : groups) all.push_back(group->stats());
  }
  py::list rows;
  for (size_t i = 0; i < all.size(); ++i) {
    const GroupStats& stats = all[i];
    py::dict counters;
    for (const auto& [name, value] : stats.counters) counters[name] = value;
    py::dict row;
    row["group"] = stats.name;
    row["rank"] = groups[i]->rank();
    row["size"] = groups[i]->size();
    row["path"] = stats.path;
    row["failure"] = stats.failure;
    row["counters"] = counters;
    row["security"] = security_dict(stats.security);
    rows.append(row);
  }
  return rows;
}

}  // namespace mcast::pg
