// The grammar and the choice. The list determines the order, except that exclusions leave the
// system's.
#include "transport/verbs/hca.h"

#include <algorithm>
#include <charconv>

#include "base/units.h"

namespace mcast::verbs {

Result<HcaPattern> HcaPattern::parse(std::string_view text) {
  HcaPattern out;
  const std::string whole(text);
  const auto bad = [&whole](const std::string& why) {
    return Status(Code::kInvalidArgument,
                  "MCAST_IB_HCA \"" + whole + "\": " + why +
                      "; write a list like \"mlx5_0:1,mlx5_1\", \"=mlx5_0\" or \"^mlx5_2\"");
  };
  if (text.empty()) return out;
  if (text.front() == '^') {
    out.exclude = true;
    text.remove_prefix(1);
  }
  if (!text.empty() && text.front() == '=') {
    out.exact = true;
    text.remove_prefix(1);
  }
  for (const std::string_view item : split_at_commas(text)) {
    const size_t colon = item.find(':');
    Entry entry{std::string(item.substr(0, colon)), -1};
    if (entry.name.empty()) return bad("a device name is empty");
    if (colon != std::string_view::npos) {
      const std::string_view digits = item.substr(colon + 1);
      const auto [end, error] =
          std::from_chars(digits.data(), digits.data() + digits.size(), entry.port);
      if (error != std::errc() || end != digits.data() + digits.size() || entry.port < 1 ||
          entry.port > 255) {
        return bad("\"" + std::string(digits) + "\" is not a port number");
      }
    }
    out.entries.push_back(std::move(entry));
  }
  return out;
}

int HcaPattern::match(const Port& port) const {
  for (size_t i = 0; i < entries.size(); ++i) {
    const Entry& e = entries[i];
    const bool named = exact ? port.device == e.name : port.device.rfind(e.name, 0) == 0;
    if (named && (e.port < 0 || e.port == port.number)) return static_cast<int>(i);
  }
  return -1;
}

Result<Port> choose_port(const std::vector<Port>& ports, std::string_view text, size_t lane) {
  auto pattern = HcaPattern::parse(text);
  if (!pattern.ok()) return pattern.status();
  struct Ranked {
    int rank;
    const Port* port;
  };
  std::vector<Ranked> fit;
  std::string known;
  for (const Port& port : ports) {
    known += (known.empty() ? "" : ", ") + port.text() + " (" + port.interface.name +
             (port.active ? ")" : ", not active)");
    const int at = pattern->match(port);
    if (!port.active || (pattern->exclude ? at >= 0 : !pattern->entries.empty() && at < 0))
      continue;
    fit.push_back({pattern->exclude ? 0 : at, &port});
  }
  if (fit.empty()) {
    return Status(Code::kUnavailable,
                  "no active RDMA port" +
                      (text.empty() ? "" : " matches MCAST_IB_HCA \"" + std::string(text) + "\"") +
                      "; there are: " + (known.empty() ? "none" : known));
  }
  std::stable_sort(fit.begin(), fit.end(),
                   [](const Ranked& a, const Ranked& b) { return a.rank < b.rank; });
  return *fit[pattern->exact && !pattern->exclude ? lane % fit.size() : 0].port;
}

}  // namespace mcast::verbs
