// Text that people write: settings by option and by environment, fault rules, interface patterns,
// secrets. The input's first byte selects one. Accepted text stays the same when it is written and
// read again.
#include <array>
#include <charconv>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "base/config.h"
#include "base/hex.h"
#include "base/log.h"
#include "crypto/secret.h"
#include "fuzz.h"
#include "support/secret_text.h"
#include "transport/fault_classifier.h"
#include "transport/fault_spec.h"
#include "transport/udp/netif.h"

using namespace mcast;
using fuzz::require;

namespace {

// Lines of name=value; names that begin with MCAST_ come from the environment.
void check_settings(const std::string& text) {
  std::map<std::string, std::string> options, environment;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const size_t equals = std::min(text.find('=', at), end);
    const std::string name = text.substr(at, equals - at);
    auto& into = name.rfind("MCAST_", 0) == 0 ? environment : options;
    into[name] = equals < end ? text.substr(equals + 1, end - equals - 1) : "";
    at = end + 1;
  }
  const Result<Config> config = Config::resolve(options, environment);
  if (!config.ok()) {
    require(config.status().code() == Code::kInvalidArgument, "a refusal is the caller's mistake");
    return;
  }
  const Result<Config> again = Config::resolve(config->values(), environment);
  require(again.ok() && again->values() == config->values(), "settings stay what they are");
}

std::string number(double value) {
  std::array<char, 64> text{};
  return {text.data(), std::to_chars(text.data(), text.data() + text.size(), value).ptr};
}

std::string text_of(const FaultRule& r) {
  std::string text = fault_action_name(r.action);
  text += ":rate=" + number(r.rate) + ",burst=" + number(r.burst) +
          ",seed=" + std::to_string(r.seed) + ",after=" + std::to_string(r.after) +
          ",count=" + std::to_string(r.count);
  if (r.action != FaultAction::kRefuse) text += std::string(",dir=") + (r.outgoing ? "out" : "in");
  if (r.action == FaultAction::kReorder) text += ",hold=" + std::to_string(r.hold);
  for (const auto& [key, value] : r.predicates) text += "," + key + "=" + value;
  return text;
}

void check_faults(const std::string& text) {
  const auto rules = parse_faults(text, &wire_fault_classifier());
  if (!rules.ok()) return;
  std::string plain;
  for (const FaultRule& r : *rules) {
    require(r.rate >= 0 && r.rate <= 1 && r.burst >= 1 && r.time >= 0 && r.hold >= 1, "in range");
    plain += (plain.empty() ? "" : ";") + text_of(r);
    const std::array<std::byte, 32> message{};
    for (const auto& [key, value] : r.predicates) {
      (void)wire_fault_classifier().matches(key, value, message, r.outgoing);
    }
  }
  const auto again = parse_faults(plain, &wire_fault_classifier());
  require(again.ok() && again->size() == rules->size(), "rules can be read again");
  for (size_t i = 0; i < rules->size(); i++) {
    require(text_of((*again)[i]) == text_of((*rules)[i]), "a rule stays what it is");
  }
}

void check_pattern(const std::string& text) {
  const auto interface = [](const char* name, int index, uint32_t address, uint32_t mtu) {
    Interface made{name, index, address != 0 ? IpAddress::v4(address) : IpAddress{}};
    made.mtu = mtu;
    made.up = true;
    made.multicast = true;
    if (address != 0) made.addresses.push_back(IpAddress::v4(address)), made.prefixes.push_back(24);
    return made;
  };
  static const std::vector<Interface> kHost = [&interface] {
    std::vector<Interface> all{interface("lo", 1, 0x7f000001, 65536),
                               interface("eth0", 2, 0x0a000001, 1500),
                               interface("eth1", 3, 0x0a000002, 9000), interface("ib0", 4, 0, 2044),
                               interface("docker0", 5, 0xac110001, 1500)};
    all[0].loopback = true;
    all[0].multicast = false;
    all[1].default_route = true;
    all[3].up = false;
    return all;
  }();
  const auto pattern = InterfacePattern::parse(text);
  if (pattern.ok()) {
    std::string plain = std::string(pattern->exclude ? "^" : "") + (pattern->exact ? "=" : "");
    for (size_t i = 0; i < pattern->names.size(); i++) {
      plain += (i > 0 ? "," : "") + pattern->names[i];
    }
    require(plain == text, "a pattern is written as it was read");
  }
  for (size_t lane = 0; lane < 3; lane++) {
    const auto chosen = choose_interfaces(kHost, text, lane);
    require(!chosen.ok() || (pattern.ok() && !chosen->stripe.empty()),
            "a choice by a pattern that is one");
    if (!chosen.ok()) continue;
    for (const Interface& i : chosen->stripe) require(i.usable(), "an interface that can be used");
  }
}

void check_secret(std::string_view text) {
  const auto secret = crypto::parse_secret(text);
  if (!secret.ok()) {
    require(secret.status().code() == Code::kInvalidArgument, "no secret is the caller's mistake");
    return;
  }
  const ConstBytes bytes = secret->bytes();
  require(bytes.size() == crypto::kSecretBytes, "a secret of the size that there is");
  const auto again = crypto::parse_secret(test::secret_text(bytes) + "\n");
  require(again.ok() && fuzz::equal(again->bytes(), bytes), "a secret stays what it is");
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string text(fuzz::text_of(data + 1, size - 1));
  (void)parse_log_level(text);
  if (data[0] >= 0x80) return check_secret(text), 0;
  if (data[0] % 3 == 0) check_settings(text);
  if (data[0] % 3 == 1) check_faults(text);
  if (data[0] % 3 == 2) check_pattern(text);
  return 0;
}
