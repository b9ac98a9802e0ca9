// The registrar of a guarded group: it proves its identity and accepts nothing without a proof.
#include <functional>

#include "aggregation/registrar_world.h"
#include "crypto/handshake.h"
#include "crypto/signed_text.h"
#include "support/until.h"

namespace mcast::test {
namespace {

// A guarded group, and the keys of an aggregator of its secret.
class GuardedRegistrar : public RegistrarTest {
 protected:
  GuardedRegistrar() {
    const std::vector<std::byte> secret(32, std::byte{3});
    job_ = offers.job({a.address()});
    job_.secret = crypto::JobSecret::make(secret, "a test").value();
    job_.ask.security = "sealed";
    for (int r = 0; r < 3; r++) job_.ask.keys.emplace_back().fill(std::byte{9});
    const crypto::Key root = crypto::root_key(secret);
    const crypto::Key role = crypto::role_key(root, static_cast<uint8_t>(crypto::Role::kAggregator),
                                              crypto::kAggregatorName);
    role_ = crypto::JobSecret::make(role.bytes(), "its role").value();
  }
  // The reply to a request.
  std::string signed_by(const crypto::Key& key, wire::Accept accept, const std::string& asked,
                        const std::string& nonce = "n1") {
    for (auto& station : accept.stations) station.key.fill(std::byte{5});
    const std::string about = crypto::digest_text(asked);
    return wire::framed(
        crypto::with_mac(key, crypto::said_over(nonce, "accept", about), wire::encode(accept)));
  }
  Registrar::Job job_;
  std::shared_ptr<const crypto::JobSecret> role_;
};

TEST_F(GuardedRegistrar, ProvesItselfAndBelievesAProof) {
  ASSERT_TRUE(registrar.enter(kGroup, job_).ok());
  const auto link = a.take();
  ASSERT_TRUE(link);
  EXPECT_FALSE(link->read(100 * kMilli)) << "nothing is said before the challenge";
  link->send(wire::Challenge{"sealed", "n1"});
  const auto asked = link->read_text();
  ASSERT_TRUE(asked);
  const crypto::RecordPlace place{"n1", "ask", "", 0, 0};
  EXPECT_TRUE(crypto::without_mac(role_->record(), place, *asked));
  EXPECT_FALSE(crypto::without_mac(role_->record(), {"n2", "ask", "", 0, 0}, *asked));
  link->raw(signed_by(role_->record(), admits({10}), *asked));
  EXPECT_EQ(offers.next(), (Uids{10}));
}

TEST_F(GuardedRegistrar, AggregatorWithoutProofIsNotUsed) {
  const wire::Accept accept = admits({10});
  using Answer = std::function<std::string(const std::string& asked)>;
  const Answer answers[] = {
      [&](const std::string&) { return wire::framed(wire::encode(accept)); },
      [&](const std::string& asked) { return signed_by(job_.secret->record(), accept, asked); },
      // The right key, but a reply to the request of another group.
      [&](const std::string& asked) { return signed_by(role_->record(), accept, asked + "\n"); },
  };
  for (const Answer& answer : answers) {
    ASSERT_TRUE(registrar.enter(kGroup, job_).ok());
    const auto link = a.take();
    ASSERT_TRUE(link);
    link->send(wire::Challenge{"sealed", "n1"});
    const auto asked = link->read_text();
    ASSERT_TRUE(asked);
    link->raw(answer(*asked));
    EXPECT_TRUE(until([&] { return contains(reason(registrar), "its proof is wrong"); },
                      "the wrong proof to be reported"))
        << reason(registrar);
    registrar.leave(kGroup);
    ASSERT_TRUE(until([&] { return registrar.stats(kGroup).empty(); }, "the job to leave"));
  }
}

TEST_F(GuardedRegistrar, NothingIsSentOrAcceptedBeforeTheChallenge) {
  ASSERT_TRUE(registrar.enter(kGroup, job_).ok());
  const auto early = a.take();
  ASSERT_TRUE(early);
  early->raw(signed_by(role_->record(), admits({10}), "", ""));
  EXPECT_TRUE(until([&] { return contains(reason(registrar), "its proof is wrong"); },
                    "the wrong proof to be reported"))
      << reason(registrar);
  Registrar::Job other = offers.job({b.address()});
  other.secret = job_.secret;
  other.ask = job_.ask;
  ASSERT_TRUE(registrar.enter(kGroup + 1, other).ok());
  const auto link = b.take();
  ASSERT_TRUE(link);
  registrar.leave(kGroup + 1);
  EXPECT_FALSE(link->read()) << "a goodbye to who has not asked would be nonsense to it";
}

TEST_F(GuardedRegistrar, AnotherSecurityIsNamed) {
  ASSERT_TRUE(registrar.enter(kGroup, job_).ok());
  const auto other = a.take();
  other->send(wire::Challenge{"auth", "n1"});
  const auto asked = other->read();
  ASSERT_TRUE(asked && std::holds_alternative<wire::Ask>(*asked)) << "so the aggregator names it";
  EXPECT_EQ(std::get<wire::Ask>(*asked).security, "sealed");
  EXPECT_FALSE(other->read()) << "no more is said";
  EXPECT_TRUE(until(
      [&] {
        return contains(reason(registrar),
                        "runs with security=auth, the group with security=sealed");
      },
      "the reason to be reported"))
      << reason(registrar);
  registrar.leave(kGroup);
  ASSERT_TRUE(registrar.enter(kGroup + 1, offers.job({b.address()})).ok());
  const auto link = b.take();
  link->send(wire::Challenge{"auth", "n1"});
  EXPECT_TRUE(until(
      [&] {
        return contains(registrar.stats(kGroup + 1)[0].reason, "the group with security=off");
      },
      "the reason to be reported"));
}

TEST_F(GuardedRegistrar, AggregatorWithoutChallengeIsNamed) {
  ASSERT_TRUE(registrar.enter(kGroup, job_).ok());
  const auto link = a.take();
  EXPECT_TRUE(until([&] { return contains(reason(registrar), "is its security off?"); },
                    "the mode to be asked for"))
      << reason(registrar);
}

}  // namespace
}  // namespace mcast::test
