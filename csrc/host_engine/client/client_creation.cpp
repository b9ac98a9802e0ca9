// The engine has no access to the job's store. It sends questions, and the thread that makes the
// group, which would use the store directly without an engine, replies.
#include "host_engine/client/client_creation.h"

#include <chrono>
#include <utility>

namespace mcast {
namespace {

// As many values as fit.
ipc::StoreAnswer look_up(const ipc::StoreGet& get, KeyValueStore& store) {
  ipc::StoreAnswer answer;
  auto values = store.multi_get(get.keys, get.timeout);
  answer.verdict = ipc::Verdict::of(values.status());
  if (!values.ok()) return answer;
  const size_t count = fitting(control_of(0, answer), *values);
  if (count == 0 && !values->empty()) {
    answer.values = {values->front()};
    const Status why(Code::kResourceExhausted, "the store's value of " + get.keys[0] + ": " +
                                                   too_long(control_of(0, answer)));
    return {ipc::Verdict::of(why), {}};
  }
  values->resize(count);
  answer.values = std::move(values).value();
  return answer;
}

}  // namespace

void ClientCreation::push(ipc::Control message) {
  const std::lock_guard<std::mutex> held(mutex_);
  messages_.push_back(std::move(message));
  there_.notify_one();
}

void ClientCreation::lose() {
  const std::lock_guard<std::mutex> held(mutex_);
  lost_ = true;
  there_.notify_one();
}

std::optional<ipc::Control> ClientCreation::take(Nanos patience) {
  std::unique_lock<std::mutex> held(mutex_);
  there_.wait_for(held, std::chrono::nanoseconds(patience),
                  [&] { return lost_ || !messages_.empty(); });
  if (messages_.empty()) return std::nullopt;
  ipc::Control first = std::move(messages_.front());
  messages_.pop_front();
  return first;
}

Status serves(const ipc::Welcome& engine, pid_t pid, const std::string& mode) {
  const std::string list = "," + engine.security + ",";
  if (list.find("," + mode + ",") != std::string::npos) return {};
  const std::string who = "engine of this host (process " + std::to_string(pid) + ")";
  const std::string asked = ", this group has security=" + mode + "; ";
  if (engine.secret_check.empty()) {
    return Status(Code::kUnavailable, who + " has no secret and serves security=off only" + asked +
                                          "give it one (torch-mcast engine run --secret-file), or "
                                          "set MCAST_ENGINE=inproc");
  }
  return Status(Code::kUnavailable,
                who + " serves security=" + engine.security + asked +
                    "set MCAST_SECURITY to a mode that it serves, start it with "
                    "--security, or set MCAST_ENGINE=inproc");
}

std::map<std::string, std::string> non_defaults(const Config& config) {
  const std::map<std::string, std::string> usual = Config().values();
  std::map<std::string, std::string> changed = config.values();
  std::erase_if(changed, [&](const auto& entry) { return usual.at(entry.first) == entry.second; });
  // Only concerns this process: an older engine need not know the value.
  changed.erase("engine_memory");
  changed.erase("engine_user");  // only concerns the connection to the engine
  return changed;
}

Status knows(const ipc::Welcome& engine, pid_t pid, const std::map<std::string, std::string>& set) {
  if (engine.settings.empty()) return {};
  const std::string list = "," + engine.settings + ",";
  for (const auto& [name, value] : set) {
    if (list.find("," + name + ",") != std::string::npos) continue;
    return Status(Code::kMismatch, "engine of this host (process " + std::to_string(pid) +
                                       ") is of another version and does not know the setting " +
                                       name +
                                       ": replace it by one of this process's version, leave the "
                                       "setting at its default, or set MCAST_ENGINE=inproc");
  }
  return {};
}

std::optional<ipc::StoreAnswer> answer_of(const ipc::Control& question, KeyValueStore& store) {
  ipc::StoreSet set;
  ipc::StoreGet get;
  if (question.type == ipc::ControlType::kStoreSet && read(question, set)) {
    return ipc::StoreAnswer{ipc::Verdict::of(store.set(set.key, set.value)), {}};
  }
  ipc::StoreClaim claim;
  if (question.type == ipc::ControlType::kStoreClaim && read(question, claim)) {
    Result<std::string> owner = store.claim(claim.key, claim.owner);
    if (!owner.ok()) return ipc::StoreAnswer{ipc::Verdict::of(owner.status()), {}};
    return ipc::StoreAnswer{ipc::Verdict::of(Status()), {std::move(owner).value()}};
  }
  if (question.type == ipc::ControlType::kStoreGet && read(question, get)) {
    return look_up(get, store);
  }
  return std::nullopt;
}

}  // namespace mcast
