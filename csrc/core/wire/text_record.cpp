// Lines end at line feeds, each is split at its first "=": any bytes give a map.
#include "wire/text_record.h"

#include <algorithm>

namespace mcast::wire {

Fields fields_of(std::string_view text) {
  Fields fields;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const size_t eq = text.find('=', at);
    if (eq < end) {
      fields[std::string(text.substr(at, eq - at))] = text.substr(eq + 1, end - eq - 1);
    }
    at = end + 1;
  }
  return fields;
}

void put_field(std::string& out, std::string_view key, std::string_view value) {
  out += key;
  out += '=';
  for (const char c : value) out += c == '\n' ? ' ' : c;
  out += '\n';
}

}  // namespace mcast::wire
