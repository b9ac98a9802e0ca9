// Aggregators are asked only at addresses that the owner of an engine allows.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "aggregation/member/member_aggregation.h"
#include "aggregation/member/registrar_thread.h"
#include "support/until.h"

namespace mcast::test {
namespace {

using testing::HasSubstr;

TEST(RegistrarReach, AggregatorsElsewhereAreNotAsked) {
  RegistrarThread registrar(resolve_within([](const std::string& host, uint16_t port) {
    return Status(Code::kInvalidArgument, "not to " + host + ":" + std::to_string(port));
  }));
  Registrar::Job job;
  job.aggregators = {{"127.0.0.1", 7117}};
  job.offer = [](const std::vector<wire::StationEntry>&) {};
  ASSERT_TRUE(registrar.enter(1, std::move(job)).ok());
  const auto reason = [&] { return registrar.stats(1).at(0).reason; };
  EXPECT_TRUE(until([&] { return !reason().empty(); }, "the reason why it is not reached"));
  EXPECT_THAT(reason(), HasSubstr("not to 127.0.0.1:7117"));
  registrar.stop();
}

}  // namespace
}  // namespace mcast::test
