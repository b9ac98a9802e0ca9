// A c10d store for ranks without a network: kept by an engine of some host, reached through the
// engine of this host.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <memory>
#include <string>
#include <vector>

#include "host_engine/client/store_client.h"

namespace mcast::pg {

// Thread-safe; one call at a time, like TCPStore. Errors: c10::DistStoreError.
class EngineStore final : public c10d::Store {
 public:
  // Waits up to `timeout` for the engines. Signals are handled while a call waits.
  EngineStore(const StoreClient::Where& where, const std::chrono::milliseconds& timeout);

  using c10d::Store::set;
  c10::intrusive_ptr<c10d::Store> clone() override;
  void set(const std::string& key, const std::vector<uint8_t>& value) override;
  std::vector<uint8_t> compareSet(const std::string& key, const std::vector<uint8_t>& currentValue,
                                  const std::vector<uint8_t>& newValue) override;
  std::vector<uint8_t> get(const std::string& key) override;
  int64_t add(const std::string& key, int64_t value) override;
  bool deleteKey(const std::string& key) override;
  bool check(const std::vector<std::string>& keys) override;
  int64_t getNumKeys() override;
  void wait(const std::vector<std::string>& keys) override { wait(keys, timeout_); }
  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds& timeout) override;
  void append(const std::string& key, const std::vector<uint8_t>& value) override;
  std::vector<std::vector<uint8_t>> multiGet(const std::vector<std::string>& keys) override;
  void multiSet(const std::vector<std::string>& keys,
                const std::vector<std::vector<uint8_t>>& values) override;
  bool hasExtendedApi() const override { return true; }

 private:
  std::vector<std::string> ask(wire::StoreOp op, std::vector<std::string> parts);
  std::vector<std::string> ask_for(wire::StoreOp op, const std::vector<std::string>& keys,
                                   std::chrono::milliseconds timeout);

  std::unique_ptr<StoreClient> client_;
};

}  // namespace mcast::pg
