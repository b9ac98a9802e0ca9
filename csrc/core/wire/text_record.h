// Records that people can read: lines of key=value. Reading is total: lines without "=" are
// ignored; if a key occurs twice the last one counts.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <string_view>

#include "base/units.h"

namespace mcast::wire {

using Fields = std::map<std::string, std::string, std::less<>>;

Fields fields_of(std::string_view text);

// Appends "key=value\n"; line feeds in the value become blanks.
void put_field(std::string& out, std::string_view key, std::string_view value);

// Reads a field's value. Returns false if it is missing, or not such a number.
template <typename T>
bool number(const Fields& fields, std::string_view key, T& out,
            uint64_t most = std::numeric_limits<T>::max()) {
  const auto it = fields.find(key);
  return it != fields.end() && read_number(it->second, out, most);
}

}  // namespace mcast::wire
