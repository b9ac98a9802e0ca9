// Jobs driven by a clock of the test. Most tests do not open the listener, and pass records as if
// they had arrived through it.
#include "aggregation/server/jobs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>

#include "aggregation/server/admission_listener.h"
#include "aggregation/service_world.h"
#include "base/clock.h"
#include "base/descriptors.h"
#include "crypto/signed_text.h"

namespace mcast::service {
namespace {

using test::eventually;
using test::Ranks;
using ::testing::HasSubstr;

constexpr LinkId kLink = 7;
constexpr IpAddress kLocalhost = IpAddress::v4(0x7f000001);

class JobsTest : public ::testing::Test {
 protected:
  JobsTest() {
    options_.config.interface = "=lo";
    jobs_.on_record(kLink, kLocalhost, encode(ranks_.ask()), now_);
  }
  Report report() const {
    Report report;
    jobs_.describe(report);
    return report;
  }
  void pass(Nanos time) {
    now_ += time;
    jobs_.advance(now_);
  }

  Options options_;
  AdmissionListener listener_;
  Ranks ranks_{2};
  Nanos now_ = monotonic_now();
  Jobs jobs_{options_, listener_, on_threads(options_, test::simple_deal(), [] {})};
};

TEST_F(JobsTest, JobWithoutAskerEndsAfterAMinuteOfSilence) {
  ASSERT_EQ(report().jobs.size(), 1u);
  pass(10 * Jobs::kSilenceLimit);
  EXPECT_TRUE(report().ended.empty()) << "its asker is there";
  jobs_.on_link_end(kLink, false);
  EXPECT_FALSE(report().jobs[0].asked_for);
  pass(Jobs::kSilenceLimit);
  ASSERT_EQ(report().ended.size(), 1u);
  EXPECT_THAT(report().ended[0].why,
              HasSubstr("the rank that requested it is gone, and nothing was received for 60"));
  EXPECT_TRUE(eventually([&] {
    pass(0);
    return jobs_.empty();
  }));
}

TEST_F(JobsTest, TheSameGroupMayAskAgainWhileItsOldJobIsStillThere) {
  jobs_.on_record(kLink + 1, kLocalhost, encode(ranks_.ask()), now_);
  ASSERT_EQ(report().jobs.size(), 2u);
  jobs_.on_record(kLink, kLocalhost, encode(wire::Bye{}), now_);
  EXPECT_TRUE(eventually([&] {
    pass(0);
    return report().jobs.size() == 1;
  }));
  EXPECT_EQ(report().jobs[0].number, 2u);
}

// Records the texts that are sent to askers.
class Said final : public Links {
 public:
  void keep(LinkId) override {}
  void send_text(LinkId, const std::string& text) override { texts.push_back(text); }
  void finish(LinkId, Nanos) override {}
  std::vector<std::string> texts;
};

class GuardedJobs : public ::testing::Test {
 protected:
  GuardedJobs() {
    options_.config.interface = "=lo";
    options_.config.security = "sealed";
    ask_.security = "sealed";
    for (size_t r = 0; r < ask_.uids.size(); r++) ask_.keys.emplace_back().fill(std::byte{9});
  }
  std::string nonce() {
    wire::Admission record;
    EXPECT_TRUE(decode_admission(said_.texts.back(), record).ok());
    return std::get<wire::Challenge>(record).nonce;
  }
  std::string signed_for(const std::string& nonce) {
    return crypto::with_mac(secret_->record(), {nonce, "ask", "", 0, 0}, encode(ask_));
  }
  uint64_t refused() {
    Report report;
    jobs_.describe(report);
    return report.refused[static_cast<size_t>(AskRefusal::security)];
  }

  Options options_;
  Said said_;
  std::shared_ptr<const crypto::JobSecret> secret_ =
      crypto::JobSecret::make(std::vector<std::byte>(32, std::byte{4}), "a test").value();
  wire::Ask ask_ = test::some_ask(2);
  Nanos now_ = monotonic_now();
  Jobs jobs_{options_, said_,
             on_threads(
                 options_, test::simple_deal(), [] {},
                 std::make_shared<AskGuard>(
                     AskGuard{"sealed", secret_, crypto::Key(std::array<std::byte, 32>{})}))};
};

// An attacker on the path forwards a request of the same group over the same connection, in another
// order or with other content. The reply to one request must not be valid for another.
TEST_F(GuardedJobs, AnAcceptBelongsToTheAskThatItAnswers) {
  jobs_.on_link(1);
  const std::string challenge = nonce(), asked = signed_for(challenge);
  jobs_.on_record(1, kLocalhost, asked, now_);
  const std::string accept = said_.texts.back();
  const auto proved = [&](const std::string& about) {
    return crypto::without_mac(secret_->record(), crypto::said_over(challenge, "accept", about),
                               accept)
        .has_value();
  };
  EXPECT_TRUE(proved(crypto::digest_text(asked))) << accept;
  ask_.name += "x";
  EXPECT_FALSE(proved(crypto::digest_text(signed_for(challenge))));
  EXPECT_FALSE(proved(""));
}

TEST_F(GuardedJobs, RequireAProofOnThisConnection) {
  jobs_.on_link(1);
  const std::string first = nonce();
  jobs_.on_link(2);
  EXPECT_NE(nonce(), first);
  jobs_.on_record(2, kLocalhost, signed_for(first), now_);
  EXPECT_THAT(said_.texts.back(), HasSubstr("the group's proof is wrong"));
  jobs_.on_record(2, kLocalhost, encode(ask_), now_);
  EXPECT_EQ(refused(), 2u);
  jobs_.on_record(1, kLocalhost, signed_for(first), now_);
  const std::string about = crypto::digest_text(signed_for(first));
  const auto accept = crypto::without_mac(
      secret_->record(), crypto::said_over(first, "accept", about), said_.texts.back());
  ASSERT_TRUE(accept) << said_.texts.back();
  wire::Admission record;
  ASSERT_TRUE(decode_admission(*accept, record).ok());
  EXPECT_NE(std::get<wire::Accept>(record).stations[0].key, wire::EndpointKey{});
}

TEST_F(GuardedJobs, AnotherSecurityIsRefusedByName) {
  jobs_.on_link(1);
  ask_.security = "auth";
  jobs_.on_record(1, kLocalhost, signed_for(nonce()), now_);
  EXPECT_THAT(said_.texts.back(), HasSubstr("security=sealed, the group with security=auth"));
  jobs_.on_record(1, kLocalhost, encode(test::some_ask(2)), now_);
  EXPECT_THAT(said_.texts.back(), HasSubstr("security=sealed, the group with security=off"));
}

TEST_F(JobsTest, GuardedGroupIsRefusedByAnUnguardedAggregator) {
  wire::Ask ask = ranks_.ask();
  ask.security = "sealed";
  for (size_t r = 0; r < ask.uids.size(); r++) ask.keys.emplace_back().fill(std::byte{9});
  jobs_.on_record(kLink + 1, kLocalhost, encode(ask), now_);
  EXPECT_EQ(report().refused[static_cast<size_t>(AskRefusal::security)], 1u);
}

TEST_F(JobsTest, RequestsFailWhileItDrains) {
  jobs_.drain();
  jobs_.on_record(kLink + 1, kLocalhost, encode(ranks_.ask()), now_);
  EXPECT_EQ(report().jobs.size(), 1u);
  EXPECT_EQ(report().refused[static_cast<size_t>(AskRefusal::draining)], 1u);
}

TEST(JobsOfAListener, JobWithoutAskerLivesWhileItsRanksSend) {
  Options options = test::loopback_options();
  AdmissionListener listener;
  ASSERT_TRUE(listener.open("127.0.0.1", 0).ok());
  Jobs jobs(options, listener, on_threads(options, test::simple_deal(), [] {}));
  Nanos now = monotonic_now();
  const auto report = [&] {
    Report told;
    jobs.describe(told);
    return told;
  };
  const auto serve_until = [&](const auto& done) {
    return eventually([&] {
      std::vector<pollfd> list;
      listener.watch(list);
      EXPECT_GE(::poll(list.data(), list.size(), 0), 0);
      listener.serve(list, now, jobs);
      return done();
    });
  };
  Ranks ranks(2);
  test::Asker asker(listener.address().port);
  ASSERT_TRUE(asker.send(ranks.ask()));
  ASSERT_TRUE(serve_until([&] { return report().jobs.size() == 1; }));
  const auto answer = asker.receive();
  ASSERT_TRUE(answer && std::holds_alternative<wire::Accept>(*answer));
  ranks.meet(std::get<wire::Accept>(*answer).stations[0]);
  asker.hang_up();
  ASSERT_TRUE(serve_until([&] { return !report().jobs[0].asked_for; }));
  for (Sequence op = 0; op < 3; op++) {
    const uint64_t before = report().jobs[0].stations[0].bytes_in;
    ASSERT_TRUE(ranks.reduce_scatter(op, 2, op));
    ASSERT_TRUE(eventually([&] { return report().jobs[0].stations[0].bytes_in > before; }));
    jobs.advance(now += Jobs::kSilenceLimit - kSecond);
    EXPECT_TRUE(report().ended.empty()) << "operation " << op;
  }
  jobs.advance(now += 2 * Jobs::kSilenceLimit);
  jobs.advance(now += Jobs::kSilenceLimit);
  EXPECT_EQ(report().ended.size(), 1u);
  EXPECT_TRUE(eventually([&] {
    jobs.advance(now);
    return jobs.empty();
  }));
}

// Runs in a process of its own with few descriptors; exits with 1 if the second job is accepted.
TEST(JobsDeathTest, DescriptorsOfOtherJobsAreTaken) {
  const auto second_is_let_in = [] {
    const Options options = test::loopback_options();
    const Ranks ranks(2);
    const auto first = admit(ranks.ask(), options, {}, UINT64_MAX);
    const uint64_t each = std::get<Grant>(first).descriptors;
    const rlim_t most = 128 + each + each / 2;  // 128: of the process
    const struct rlimit limit = {most, most};
    if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) return 2;
    AdmissionListener listener;
    Jobs jobs(options, listener, on_threads(options, test::simple_deal(), [] {}));
    for (LinkId link = 1; link <= 2; link++) {
      jobs.on_record(link, kLocalhost, encode(ranks.ask()), monotonic_now());
    }
    Report report;
    jobs.describe(report);
    const bool refused = report.refused[static_cast<size_t>(AskRefusal::descriptors)] == 1;
    return report.jobs.size() == 1 && refused ? 0 : 1;
  };
  EXPECT_EXIT(std::_Exit(second_is_let_in()), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace mcast::service
