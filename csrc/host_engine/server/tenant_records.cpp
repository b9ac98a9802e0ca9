// A tenant's ring: records become posts of its groups.
#include <algorithm>
#include <utility>

#include "host_engine/server/tenant.h"

namespace mcast::service {
namespace {

constexpr const char* kGroupClosed = "the group is closed";

std::string broken(const Status& status) {
  return status.ok() ? "" : "its process broke the engine's protocol: " + status.message();
}

}  // namespace

// Records written before a message are handled before it: no more than the ring holds, whatever the
// client claims.
std::string Tenant::catch_up(size_t& records) {
  const uint64_t from = link_->submissions().position();
  const uint64_t claimed = link_->page().submission.tail.load(std::memory_order_acquire) - from;
  const uint64_t end = from + std::min<uint64_t>(claimed, ipc::kSubmissionBytes);
  for (bool some = true; some && link_->submissions().position() < end; records++) {
    if (std::string why = take_record(some); !why.empty()) return why;
  }
  return "";
}

std::string Tenant::take_record(bool& some) {
  const ipc::RingReader::Found found = link_->submissions().read();
  some = found == ipc::RingReader::Found::kRecord;
  if (found == ipc::RingReader::Found::kNothing) return "";
  const std::string where = std::to_string(link_->submissions().position());
  if (!some) return "its process broke the engine's ring at byte " + where;
  auto record = ipc::parse_submission(link_->submissions().record());
  if (record) return on_record(std::move(*record));
  return "its process broke the engine's protocol: a record before byte " + where +
         " cannot be read";
}

TenantGroup* Tenant::find(uint32_t handle) const {
  const std::lock_guard<std::mutex> held(mutex_);
  const auto it = groups_.find(handle);
  return it == groups_.end() ? nullptr : it->second.get();
}

// A long post for a group that does not exist (any more) is read, and none of it is kept.
std::string Tenant::on_record(ipc::Submission record) {
  if (auto* post = std::get_if<ipc::PostRecord>(&record)) {
    const bool more = post->more, there = find(post->group) != nullptr;
    return more ? pending_.begin(std::move(*post), there) : on_post(*post);
  }
  if (auto* part = std::get_if<ipc::PartRecord>(&record)) {
    std::optional<ipc::PostRecord> whole;
    std::string why = pending_.add(*part, whole);
    return why.empty() && whole ? on_post(*whole) : why;
  }
  if (const auto* message = std::get_if<ipc::MessageRecord>(&record)) {
    TenantGroup* const group = find(message->group);
    if (group != nullptr) {
      return broken(group->message(*message, memory_.arenas, memory_.mover));
    }
    link_->complete(ipc::MessageDoneRecord{message->group, message->number, kNoMember,
                                           static_cast<uint8_t>(Code::kClosed), kGroupClosed});
    return "";
  }
  const auto& ready = std::get<ipc::ReadyRecord>(record);
  if (TenantGroup* const group = find(ready.group)) {
    group->ready(ready);
  } else if (const auto closing = closer_.find(ready.group)) {
    closing->ready(ready);
  }
  return "";
}

// Records of a closed group may still arrive.
std::string Tenant::on_post(const ipc::PostRecord& post) {
  uint64_t slices = 0;
  for (const ipc::SliceRun& run : post.runs) slices += run.count;
  if (slices > ipc::kMostSlices) return "its process posted too many slices";
  TenantGroup* const group = find(post.group);
  if (group == nullptr) {
    link_->complete(ipc::DoneRecord{post.lane, post.group, post.sequence, 0,
                                    static_cast<uint8_t>(Code::kClosed), kGroupClosed});
    return "";
  }
  return broken(group->post(post, post.runs, memory_.arenas, memory_.mover));
}

}  // namespace mcast::service
