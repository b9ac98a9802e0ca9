// Errors that have a name: one table {name, code, text with fields}. The text is written from the
// table and can be read back, from anywhere in a longer one: so name and fields reach whoever has
// the text, a rank that was notified or a Python exception, and only code and text travel.
// Tests compare names and fields; docs/troubleshooting.md has a row for each (tools/lint_docs.py).
#pragma once

#include <algorithm>
#include <concepts>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"

namespace mcast {

// {name} is any text of one line up to the part that follows it (where none does: up to "; ",
// " Hint: " or the end), without quotes if it stands in such; {#name} is a number. A text begins
// with a fixed part, and no two texts match each other.
#define MCAST_ERRORS(X)                                                                            \
  X(rank_silent, kPeerLost, "rank {#rank} has been silent for {silence} (liveness limit {limit})") \
  X(rank_ended, kPeerLost,                                                                         \
    "rank {#rank} is lost (its process {#pid} has ended); look at its log for the first error")    \
  X(rank_lost, kPeerLost, "rank {#rank} is lost ({why}); look at its log for the first error")     \
  X(rank_unreached, kPeerLost, "rank {#rank} cannot be reached ({why})")                           \
  X(rank_left, kClosed, "rank {#rank} has left the group (it called {#operations} operations;")    \
  X(rank_left_before, kClosed,                                                                     \
    "rank {#rank} left the group without calling operation {#sequence}")                           \
  X(ranks_late, kTimeout, "rank(s) {ranks} have not called it")                                    \
  X(creation_late, kTimeout, "group '{group}' was not made after {elapsed} (limit {limit})")       \
  X(operation_differs, kMismatch,                                                                  \
    "operation {#sequence} differs between ranks: rank {#rank} called {call}, "                    \
    "rank {#other} called {other_call}")                                                           \
  X(lengths_differ, kMismatch,                                                                     \
    "operation {#sequence} ({operation}) differs between ranks: rank {#rank} has {#sent} "         \
    "bytes for rank {#other}, which expects {#expected}")                                          \
  X(version_differs, kMismatch,                                                                    \
    "ranks differ in the version of torch_mcast: rank {#rank} has \"{version}\", "                 \
    "rank {#other} has \"{other_version}\"")                                                       \
  X(settings_differ, kMismatch,                                                                    \
    "ranks differ in settings: rank {#rank} has \"{settings}\", "                                  \
    "rank {#other} has \"{other_settings}\"")                                                      \
  X(secret_differs, kMismatch, "rank {#rank} has another secret than rank {#other}")               \
  X(security_differs, kMismatch,                                                                   \
    "rank {#rank} runs with security={security}, "                                                 \
    "rank {#other} runs with security={other_security}")                                           \
  X(group_closed, kClosed, "group '{group}' is closed")                                            \
  X(group_of_parent, kClosed, "group '{group}' belongs to the parent process")                     \
  X(aborted, kAborted, "aborted by rank {#rank}: {reason}")                                        \
  X(multicast_unreachable, kUnavailable,                                                           \
    "multicast does not reach all ranks: {why}; set MCAST_ALGORITHM=auto")                         \
  X(no_interface, kUnavailable,                                                                    \
    "interface pattern \"{pattern}\" {why}; this host has: {interfaces}")                          \
  X(reduction_undefined, kInvalidArgument, "has no meaning for {element}")                         \
  X(size_not_whole, kInvalidArgument, "bytes are no whole number of {element}")                    \
  X(block_forged, kMismatch,                                                                       \
    "the block of rank {#root} that rank {#rank} has received in operation {#sequence} ({call}) "  \
    "of group '{group}' is not the one that its root has sent")                                    \
  X(digest_late, kTimeout,                                                                         \
    "no digest has come from rank(s) {ranks} for operation {#sequence} ({call}) of group "         \
    "'{group}'")

enum class ErrorId : uint8_t {
#define MCAST_ERROR_ENUM(name, code, text) name,
  MCAST_ERRORS(MCAST_ERROR_ENUM)
#undef MCAST_ERROR_ENUM
};

struct ErrorRow {
  const char* name;  // stable
  Code code;
  const char* text;
};
inline constexpr ErrorRow kErrorRows[] = {
#define MCAST_ERROR_ROW(name, code, text) {#name, Code::code, text},
    MCAST_ERRORS(MCAST_ERROR_ROW)
#undef MCAST_ERROR_ROW
};
constexpr const ErrorRow& row_of(ErrorId id) { return kErrorRows[static_cast<size_t>(id)]; }

// The row's text with these values, one for each field.
std::string fill_error(ErrorId id, std::initializer_list<std::string> values);

inline std::string field_text(std::string value) { return value; }
inline std::string field_text(std::integral auto value) { return std::to_string(value); }

// A part of a longer text.
template <ErrorId kId, typename... Values>
std::string error_text(const Values&... values) {
  constexpr std::string_view kText = row_of(kId).text;
  static_assert(std::count(kText.begin(), kText.end(), '{') == sizeof...(Values));
  return fill_error(kId, {field_text(values)...});
}

template <ErrorId kId, typename... Values>
Status make_error(const Values&... values) {
  return Status(row_of(kId).code, error_text<kId>(values...));
}

struct FoundError {
  ErrorId id{};
  std::vector<std::pair<std::string, std::string>> fields;  // name without '#', value
};

// The first error of the table in a text.
std::optional<FoundError> find_error(std::string_view text);

// The code whose name stands first in a text of Status::to_string(), perhaps after a context
// ("broadcast 7: peer_lost: ..."). kOk: there is none.
Code find_code(std::string_view text);

}  // namespace mcast
