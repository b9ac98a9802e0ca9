// A text of the table is matched piece by piece: a fixed part must match exactly; a field ends at
// the first occurrence of the next fixed part. There is no backtracking, so a text is read in one
// pass from each position at which a row's first part occurs.
#include "base/errors.h"

#include <cassert>

namespace mcast {
namespace {

constexpr bool is_digit(char c) { return c >= '0' && c <= '9'; }

// End of a field at the end of a row's text.
size_t end_of_last(std::string_view text, size_t at) {
  return std::min(
      {text.find("; ", at), text.find(" Hint: ", at), text.find('\n', at), text.size()});
}

// Length of the value of a field at `at`, which ends before the fixed part `next`; npos: no match.
size_t value_length(std::string_view text, size_t at, bool number, std::string_view next,
                    char quote) {
  if (number) {
    size_t end = at;
    while (end < text.size() && is_digit(text[end])) end++;
    return end > at ? end - at : std::string_view::npos;
  }
  const size_t end = next.empty() ? end_of_last(text, at) : text.find(next, at);
  if (end == std::string_view::npos) return end;
  const std::string_view value = text.substr(at, end - at);
  const bool quoted = quote == '\'' || quote == '"';
  const bool crosses = value.find('\n') != std::string_view::npos ||
                       (quoted && value.find(quote) != std::string_view::npos);
  return crosses ? std::string_view::npos : value.size();
}

// The fields of the row `id`, if its text starts at `at`.
std::optional<FoundError> match(ErrorId id, std::string_view text, size_t at) {
  FoundError found{id, {}};
  std::string_view rest = row_of(id).text;
  while (!rest.empty()) {
    const size_t open = std::min(rest.find('{'), rest.size());
    const std::string_view fixed = rest.substr(0, open);
    if (text.substr(at, open) != fixed) return std::nullopt;
    at += open;
    rest.remove_prefix(open);
    if (rest.empty()) break;
    const size_t close = rest.find('}');
    const bool number = rest[1] == '#';
    const std::string_view name = rest.substr(number ? 2 : 1, close - (number ? 2 : 1));
    rest.remove_prefix(close + 1);
    const std::string_view next = rest.substr(0, rest.find('{'));
    const size_t length = value_length(text, at, number, next, fixed.empty() ? ' ' : fixed.back());
    if (length == std::string_view::npos) return std::nullopt;
    found.fields.emplace_back(name, text.substr(at, length));
    at += length;
  }
  return found;
}

}  // namespace

std::string fill_error(ErrorId id, std::initializer_list<std::string> values) {
  std::string text;
  std::string_view rest = row_of(id).text;
  for (const std::string& value : values) {
    const size_t open = rest.find('{');
    assert(open != std::string_view::npos);
    text.append(rest.substr(0, open)).append(value);
    rest.remove_prefix(rest.find('}') + 1);
  }
  return text.append(rest);
}

std::optional<FoundError> find_error(std::string_view text) {
  std::optional<FoundError> first;
  size_t best = std::string_view::npos;
  for (size_t i = 0; i < std::size(kErrorRows); i++) {
    const std::string_view row = kErrorRows[i].text;
    const std::string_view start = row.substr(0, row.find('{'));
    for (size_t at = text.find(start); at < best; at = text.find(start, at + 1)) {
      if (auto found = match(static_cast<ErrorId>(i), text, at)) {
        first = std::move(found);
        best = at;
      }
    }
  }
  return first;
}

Code find_code(std::string_view text) {
  Code first = Code::kOk;
  size_t best = std::string_view::npos;
  for (auto code = static_cast<int>(Code::kInvalidArgument);
       code <= static_cast<int>(Code::kInternal); code++) {
    const std::string name = std::string(code_name(static_cast<Code>(code))) + ": ";
    size_t at = text.starts_with(name) ? 0 : text.find(": " + name);
    if (at < best) {
      best = at;
      first = static_cast<Code>(code);
    }
  }
  return first;
}

}  // namespace mcast
