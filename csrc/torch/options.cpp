// A map of texts: types, ranges and suffixes are the table's business (base/config.h), so a setting
// added there needs no line here.
#include "options.h"

#include <sstream>

namespace mcast::pg {

const SettingInfo* find_setting(const std::string& name) {
  for (const SettingInfo& row : setting_table()) {
    if (name == row.name) return &row;
  }
  return nullptr;
}

void McastOptions::set(const std::string& name, const std::string& text) {
  const Status checked = Config::check_setting(name, text);
  TORCH_CHECK_VALUE(checked.ok(), "torch_mcast.Options: ", checked.message());
  settings[name] = text;
}

Config McastOptions::resolve() const {
  auto config = Config::resolve(settings, Config::read_environment());
  TORCH_CHECK_VALUE(config.ok(), "torch_mcast: ", config.status().message());
  return std::move(config).value();
}

bool McastOptions::operator==(const McastOptions& other) const {
  return settings == other.settings && fallback == other.fallback && timeout == other.timeout &&
         group_name == other.group_name && global_ranks_in_group == other.global_ranks_in_group;
}

std::string McastOptions::repr() const {
  std::ostringstream out;
  out << "Options(";
  for (const auto& [name, text] : settings) out << name << "='" << text << "', ";
  out << "fallback='" << fallback << "', timeout=" << static_cast<double>(timeout.count()) / 1e3
      << "s)";
  return out.str();
}

}  // namespace mcast::pg
