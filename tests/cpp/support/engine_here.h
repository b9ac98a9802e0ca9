// A host engine in the test's own process, with its socket in a folder of its own.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "host_engine/server/host_engine.h"
#include "support/temporary_folder.h"

namespace mcast::test {

// Returns false if it could not be started; the test has then failed already.
class EngineHere {
 public:
  explicit EngineHere(service::HostEngineOptions options = {}) {
    options.path = path_;
    auto started = service::HostEngine::start(std::move(options));
    EXPECT_TRUE(started.ok()) << started.status().to_string();
    if (started.ok()) engine_ = std::move(started).value();
  }

  explicit operator bool() const { return engine_ != nullptr; }
  service::HostEngine* operator->() const { return engine_.get(); }
  const std::string& path() const { return path_; }

 private:
  const TemporaryFolder folder_;
  const std::string path_ = folder_.path() + "/engine.sock";
  std::unique_ptr<service::HostEngine> engine_;
};

}  // namespace mcast::test
