// A recursive descent over three separators (';', ':' then ',', '='). Every piece keeps its offset
// in the text, so that an error can point at it.
#include "transport/fault_spec.h"

#include <charconv>
#include <cmath>
#include <string>

#include "base/units.h"

namespace mcast {
namespace {

constexpr std::string_view kActions[kFaultActions] = {"drop",    "duplicate", "delay",
                                                      "reorder", "corrupt",   "refuse"};
constexpr double kMaxMillis = 3600e3;

class Parser {
 public:
  Parser(std::string_view text, const FaultClassifier* classifier)
      : text_(text), classifier_(classifier) {}

  Result<std::vector<FaultRule>> parse() {
    std::vector<FaultRule> rules;
    if (text_.empty()) return rules;
    std::string_view rest = text_;
    while (true) {
      const size_t end = rest.find(';');
      FaultRule rule;
      rule.seed = rules.size() + 1;
      if (Status status = parse_rule(rest.substr(0, end), rule); !status.ok()) return status;
      rules.push_back(std::move(rule));
      if (end == std::string_view::npos) return rules;
      rest.remove_prefix(end + 1);
    }
  }

 private:
  Status error(std::string_view at, const std::string& what) const {
    std::string message =
        "faults, position " + std::to_string(at.data() - text_.data()) + ": " + what + " in \"" +
        std::string(text_) +
        "\"; expected action:key=value,...;... with action drop, duplicate, "
        "delay, reorder, corrupt or refuse, and keys rate, burst, seed, dir, after, "
        "count, time, hold";
    if (classifier_ != nullptr) message += ", " + classifier_->grammar();
    return Status(Code::kInvalidArgument, message);
  }

  Status parse_rule(std::string_view text, FaultRule& rule) const {
    const size_t colon = text.find(':');
    const std::string_view action = text.substr(0, colon);
    size_t index = 0;
    while (index < kFaultActions && kActions[index] != action) ++index;
    if (index == kFaultActions) {
      return error(action,
                   action.empty() ? "no action" : "unknown action \"" + std::string(action) + "\"");
    }
    rule.action = static_cast<FaultAction>(index);
    if (rule.action == FaultAction::kReorder) rule.time = 5 * kMilli;
    if (colon == std::string_view::npos) return {};
    for (const std::string_view pair : split_at_commas(text.substr(colon + 1))) {
      const size_t equals = pair.find('=');
      if (equals == 0 || equals == std::string_view::npos) {
        return error(pair, "\"" + std::string(pair) + "\" is not key=value");
      }
      const Status status = assign(pair.substr(0, equals), pair.substr(equals + 1), rule);
      if (!status.ok()) return status;
    }
    return {};
  }

  Status assign(std::string_view key, std::string_view value, FaultRule& rule) const {
    if (key == "rate") return number(value, 0, 1, rule.rate);
    if (key == "burst") return number(value, 1, 1e6, rule.burst);
    if (key == "seed") return integer(value, 0, rule.seed);
    if (key == "after") return integer(value, 0, rule.after);
    if (key == "count") return integer(value, 0, rule.count);
    if (key == "hold" && rule.action == FaultAction::kReorder) return integer(value, 1, rule.hold);
    if (key == "time" &&
        (rule.action == FaultAction::kReorder || rule.action == FaultAction::kDelay)) {
      double ms = 0;
      const Status status = number(value, 0, kMaxMillis, ms);
      if (status.ok()) rule.time = static_cast<Nanos>(ms * 1e6);
      return status;
    }
    if (key == "hold" || key == "time" || rule.action == FaultAction::kRefuse) {
      return error(
          key, "\"" + std::string(key) + "\" does not apply to " + fault_action_name(rule.action));
    }
    if (key == "dir") {
      if (value != "in" && value != "out") return error(value, "dir must be in or out");
      rule.outgoing = value == "out";
      return {};
    }
    if (classifier_ == nullptr || !classifier_->knows(key, value)) {
      return error(key, "unknown \"" + std::string(key) + "=" + std::string(value) + "\"");
    }
    rule.predicates.emplace_back(key, value);
    return {};
  }

  Status number(std::string_view text, double low, double high, double& out) const {
    double value = 0;
    const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (code != std::errc() || end != text.data() + text.size() || !std::isfinite(value) ||
        value < low || value > high) {
      return error(text, "\"" + std::string(text) + "\" is not a number from " +
                             std::to_string(static_cast<int64_t>(low)) + " to " +
                             std::to_string(static_cast<int64_t>(high)));
    }
    out = value;
    return {};
  }

  Status integer(std::string_view text, uint64_t low, uint64_t& out) const {
    uint64_t value = 0;
    const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (code != std::errc() || end != text.data() + text.size() || value < low) {
      return error(text, "\"" + std::string(text) + "\" is not an integer of at least " +
                             std::to_string(low));
    }
    out = value;
    return {};
  }

  std::string_view text_;
  const FaultClassifier* classifier_;
};

}  // namespace

const char* fault_action_name(FaultAction action) noexcept {
  return kActions[static_cast<size_t>(action)].data();
}

Result<std::vector<FaultRule>> parse_faults(std::string_view text,
                                            const FaultClassifier* classifier) {
  return Parser(text, classifier).parse();
}

}  // namespace mcast
