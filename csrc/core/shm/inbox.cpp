// The flag is raised under the lock, after the mail is stored, and lowered under the lock by the
// thread that takes the mail: a driver that finds it down before it sleeps has missed nothing.
#include "shm/inbox.h"

#include <iterator>

namespace mcast {
namespace {

template <typename T>
void append(std::vector<T>& to, std::vector<T>& from) {
  if (to.empty()) {
    to.swap(from);
    return;
  }
  to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
  from.clear();
}

}  // namespace

void LaneInbox::put(Post post) {
  std::lock_guard<std::mutex> lock(mutex_);
  waiting_.posts.push_back(std::move(post));
  knock();
}

void LaneInbox::put(MessagePost post) {
  std::lock_guard<std::mutex> lock(mutex_);
  waiting_.messages.push_back(std::move(post));
  knock();
}

void LaneInbox::put(const Status& failure, Member culprit) {
  std::lock_guard<std::mutex> lock(mutex_);
  waiting_.failures.emplace_back(failure, culprit);
  knock();
}

void LaneInbox::put(Closing closing) {
  std::lock_guard<std::mutex> lock(mutex_);
  waiting_.closings.push_back(std::move(closing));
  knock();
}

bool LaneInbox::take(Mail& mail) {
  if (!has_mail()) return false;
  std::lock_guard<std::mutex> lock(mutex_);
  append(mail.posts, waiting_.posts);
  append(mail.messages, waiting_.messages);
  append(mail.failures, waiting_.failures);
  append(mail.closings, waiting_.closings);
  // Reads the flag as well: work published before a knock() that this clears is then visible to the
  // driver.
  (void)mail_.exchange(false, std::memory_order_seq_cst);
  return true;
}

}  // namespace mcast
