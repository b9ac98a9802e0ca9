// Keys below a store's root:
//   <base>over            how many makings with these members rank 0 has ended
//   <base><n>/over/<rank> this rank has ended making n
//   <base><n>/conflict    why it can never be complete
//   mcast/list/<global>   "<base><n>/" and the list of members that this rank makes the group with
// <base> is "mcast/", and "of-<hash of the members>/" where these are known.
#include "making.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "base/rng.h"
#include "store.h"

namespace mcast::pg {
namespace {

constexpr const char* kOver = "over";
constexpr const char* kOverForAll = "over/0";
constexpr const char* kConflict = "conflict";
// If all numbers in a store are over, this gives an error and not an endless loop.
constexpr int64_t kMostOver = 1000;

std::string list_text(const std::vector<uint64_t>& members) {
  constexpr size_t kShown = 16;
  std::string text;
  for (size_t i = 0; i < std::min(members.size(), kShown); ++i) {
    text += (i > 0 ? ", " : "") + std::to_string(members[i]);
  }
  if (members.size() > kShown) text += ", ... (" + std::to_string(members.size()) + ")";
  return "[" + text + "]";
}

std::string base_of(const std::vector<uint64_t>& members) {
  if (members.empty()) return "mcast/";
  uint64_t hash = members.size();
  for (const uint64_t member : members) hash = mix64(hash ^ member) + member;
  return "mcast/of-" + std::to_string(hash) + "/";
}

std::string list_key(uint64_t global_rank) { return "mcast/list/" + std::to_string(global_rank); }

std::string text_at(c10d::Store& store, const std::string& key) {
  const auto bytes = store.get(key);
  return {bytes.begin(), bytes.end()};
}

}  // namespace

Making::Making(c10::intrusive_ptr<c10d::Store> store, size_t rank, std::vector<uint64_t> members)
    : store_(std::move(store)),
      rank_(rank),
      members_(std::move(members)),
      list_(list_text(members_)),
      base_(base_of(members_)) {}

const std::string& Making::prefix() {
  if (joined()) return prefix_;
  const int64_t first = store_->add(base_ + kOver, 0) + 1;
  int64_t number = first;
  const auto keys_of = [this](int64_t n) { return base_ + std::to_string(n) + "/"; };
  const auto over = [&](int64_t n) {
    return store_->check({keys_of(n) + kOverForAll}) || store_->check({keys_of(n) + own_over()});
  };
  while (over(number)) {
    if (++number - first == kMostOver) {
      throw std::runtime_error("the attempts " + std::to_string(first) + " to " +
                               std::to_string(number - 1) + " to make this group are over");
    }
  }
  const std::string prefix = keys_of(number);
  if (rank_ < members_.size()) {
    store_->set(list_key(members_[rank_]), bytes_of_text(prefix + "\n" + list_));
  }
  prefix_ = prefix;
  return prefix_;
}

std::string Making::own_over() const { return "over/" + std::to_string(rank_); }

void Making::end() noexcept {
  if (!joined()) return;
  try {
    if (store_->add(prefix_ + own_over(), 1) == 1 && rank_ == 0) store_->add(base_ + kOver, 1);
  } catch (...) {
    // The store is gone, and the numbers with it.
  }
}

std::string Making::conflict(const std::vector<size_t>& waited_for) {
  if (!joined() || rank_ >= members_.size()) return "";
  if (store_->check({prefix_ + kConflict})) return text_at(*store_, prefix_ + kConflict);
  for (const size_t rank : waited_for) {
    if (rank >= members_.size() || !store_->check({list_key(members_[rank])})) continue;
    const std::string listed = text_at(*store_, list_key(members_[rank]));
    const size_t line = std::min(listed.find('\n'), listed.size() - 1);
    const std::string theirs = listed.substr(0, line), list = listed.substr(line + 1);
    if (list == list_ || theirs.empty() || store_->check({theirs + kOverForAll})) continue;
    const std::string why = "ranks differ in the members of the group: global rank " +
                            std::to_string(members_[rank_]) + " makes it with " + list_ +
                            ", global rank " + std::to_string(members_[rank]) + " with " + list;
    store_->set(theirs + kConflict, bytes_of_text(why));
    store_->set(prefix_ + kConflict, bytes_of_text(why));
    return why;
  }
  return "";
}

}  // namespace mcast::pg
