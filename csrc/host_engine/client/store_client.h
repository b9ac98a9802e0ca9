// Accesses a job's store through the engine of this host, for ranks that have no network.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/status.h"
#include "base/types.h"
#include "wire/store_record.h"

namespace mcast {

// One request at a time: concurrent callers wait. Thread-safe.
class StoreClient {
 public:
  struct Where {
    std::string engine;  // path of its socket
    std::string host;    // host whose engine keeps the store
    uint16_t port = 0;
    std::string name;       // of the store
    std::string user = {};  // of the engine, as in the setting engine_user
  };
  // Retries while engine or store do not exist yet, for `patience`; 0: without limit.
  static Result<std::unique_ptr<StoreClient>> connect(const Where& where, Nanos patience);

  // Returns the parts of the reply. kTimeout: the request's own limit has passed. `interrupted` is
  // called now and then; if it returns true, the result is kAborted and the connection is closed.
  Result<std::vector<std::string>> ask(const wire::StoreRecord& question,
                                       const std::function<bool()>& interrupted);
  const Where& where() const { return where_; }

 private:
  StoreClient(Where where, Fd fd);
  Status fail(Status why);

  const Where where_;
  const int pid_;
  std::mutex mutex_;  // guards the members below
  Fd fd_;
  wire::StoreReader in_;
  Status failure_;
};

}  // namespace mcast
