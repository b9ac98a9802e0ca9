// The store of a job, which a host engine reaches through the client that creates a group.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "host_engine/ipc/control.h"
#include "runtime/group.h"

namespace mcast::service {

// One thread, the creation's, makes the store's calls; answered() and give_up() are for any thread.
class RelayStore final : public KeyValueStore {
 public:
  // `tell` sends a message to the client; `scope`: of the client's store, as the client reports it;
  // `claims`: whether it replies to a StoreClaim.
  RelayStore(uint64_t call, std::function<void(const ipc::Control&)> tell, std::string scope = "",
             bool claims = false)
      : call_(call), tell_(std::move(tell)), scope_(std::move(scope)), claims_(claims) {}

  Status set(const std::string& key, const std::string& value) override;
  Result<std::vector<std::string>> multi_get(const std::vector<std::string>& keys,
                                             Nanos timeout) override;
  Result<std::string> scope() override { return scope_; }
  Result<std::string> claim(const std::string& key, const std::string& owner) override;

  void answered(ipc::StoreAnswer answer);
  // The client is gone: every request fails.
  void give_up();

 private:
  Result<ipc::StoreAnswer> ask(const ipc::Control& question, Nanos patience);

  const uint64_t call_;
  const std::function<void(const ipc::Control&)> tell_;
  const std::string scope_;
  const bool claims_;
  std::mutex mutex_;
  std::condition_variable there_;
  std::optional<ipc::StoreAnswer> answer_;
  bool gone_ = false;
};

}  // namespace mcast::service
