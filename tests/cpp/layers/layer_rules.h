// Project rules that a program can check from the text of one file, and the checker.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace mcast::layers {

// The violations of one file, as "path:line: why"; empty if there are none. `path` is relative to
// the repository and selects the rules; `text` is the whole file.
std::vector<std::string> check_file(std::string_view path, std::string_view text);

// `text` with comments and the contents of string and character literals replaced by blanks, and
// newlines kept, so that a search finds code only.
std::string code_only(std::string_view text);

// Files that the rules name, without their endings. A name without a file has a useless rule.
std::vector<std::string> files_with_a_place();

// The folders of csrc/core, lowest first.
std::span<const std::string_view> folders();

// The modules beside the core, relative to csrc.
std::vector<std::string_view> modules();

size_t count_lines(std::string_view text);

}  // namespace mcast::layers
