// A job's store, asked through the engine of this host: for ranks that have no network.
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

// One question at a time: who asks meanwhile waits. Thread-safe.
class StoreClient {
 public:
  struct Where {
    std::string engine;  // path of its socket
    std::string host;    // whose engine keeps the store
    uint16_t port = 0;
    std::string name;       // of the store
    std::string user = {};  // of the engine, as the setting engine_user
  };
  // Also while engine or store are not there yet, for `patience`; 0: without limit.
  static Result<std::unique_ptr<StoreClient>> connect(const Where& where, Nanos patience);

  // The parts of the answer. kTimeout: the question's own limit is over. `interrupted` is asked now
  // and then; true: kAborted, and the connection is over.
  Result<std::vector<std::string>> ask(const wire::StoreRecord& question,
                                       const std::function<bool()>& interrupted);
  const Where& where() const { return where_; }

 private:
  StoreClient(Where where, Fd fd);
  Status fail(Status why);

  const Where where_;
  const int pid_;
  std::mutex mutex_;  // of what follows
  Fd fd_;
  wire::StoreReader in_;
  Status failure_;
};

}  // namespace mcast
