// The creation of a guarded group. Ranks that agree get a key that no one else has; a rank that
// does not match, or a changed value, is named on all ranks.
#include "security/creation.h"
#include "support/errors.h"

namespace mcast::test {
namespace {

TEST_F(Creation, AllRanksGetOneKeyThatNoOtherGroupHas) {
  const auto first = make({sealed(), sealed(), sealed(), sealed()});
  std::string all;
  for (const auto& [key, value] : board_.values) all += value;
  scope_ = "mcast/2/";
  const auto second = make({sealed(), sealed(), sealed(), sealed()});
  for (const auto& group : {first, second}) {
    for (const Outcome& o : group) {
      ASSERT_TRUE(o.status.ok()) << o.status.to_string();
      EXPECT_EQ(o.root.size(), 64u);
      EXPECT_EQ(o.root, group[0].root);
      EXPECT_EQ(o.suite, group[0].suite);
    }
  }
  EXPECT_NE(first[0].root, second[0].root);
  EXPECT_EQ(all.find(std::string(32, 'a')), std::string::npos) << "the secret is in the store";
  EXPECT_EQ(all.find(first[0].root), std::string::npos);
}

// With a choice of transports, the keys belong to the endpoints that are used in the end.
TEST_F(Creation, KeysAreThoseOfTheTransportThatIsTaken) {
  devices_ = true;
  for (const Member without : {kNoMember, Member{0}, Member{2}}) {
    without_lanes_ = without;
    scope_ = "mcast/" + std::to_string(without) + "/";
    const auto outcomes = make({sealed(), sealed(), sealed()});
    for (size_t r = 0; r < outcomes.size(); r++) {
      const Outcome& o = outcomes[r];
      ASSERT_TRUE(o.status.ok()) << o.status.to_string();
      EXPECT_EQ(o.transport, without == kNoMember ? "verbs" : "udp");
      EXPECT_EQ(o.uid, 100 + r + (without == kNoMember ? 1000 : 0));
      EXPECT_EQ(o.root, outcomes[0].root);
      EXPECT_EQ(o.keys, outcomes[0].keys);
    }
  }
}

TEST_F(Creation, TheSuiteIsTheOneThatWasAskedFor) {
  Settings s = sealed();
  s["security_suite"] = "chacha20poly1305";
  for (const Outcome& o : make({s, s})) EXPECT_EQ(o.suite, "chacha20poly1305");
  scope_ = "mcast/2/";
  s["security_suite"] = "aes256gcm";
  s["security"] = "auth";
  for (const Outcome& o : make({s, s})) EXPECT_EQ(o.suite, "aes256gcm");
}

TEST_F(Creation, MixedModesAreNamedWhoeverDiffers) {
  const Settings off{{"security", "off"}};
  Settings auth = sealed();
  auth["security"] = "auth";
  int scope = 0;
  for (const auto& [settings, odd] : {std::pair{std::vector{sealed(), off, sealed()}, 1},
                                      {std::vector{off, sealed(), off}, 1},
                                      {std::vector{sealed(), sealed(), auth}, 2}}) {
    scope_ = "mcast/" + std::to_string(++scope) + "/";
    const auto outcomes = make(settings);
    for (const Outcome& o : outcomes) {
      EXPECT_TRUE(is_error(o.status, ErrorId::security_differs));
    }
    EXPECT_TRUE(is_error(outcomes[0].status, ErrorId::security_differs,
                         {{"rank", std::to_string(odd)},
                          {"security", settings[odd].at("security")},
                          {"other", "0"},
                          {"other_security", settings[0].at("security")}}));
  }
}

TEST_F(Creation, AnotherSecretIsNamedWithoutItsDigits) {
  Settings other = sealed();
  other["secret_file"] = secret_file("b", 'b');
  const auto outcomes = make({sealed(), sealed(), other});
  for (const Outcome& o : outcomes) {
    EXPECT_TRUE(is_error(o.status, ErrorId::secret_differs));
    EXPECT_EQ(o.status.message().find("bbbbbbbb"), std::string::npos);
  }
  EXPECT_TRUE(
      is_error(outcomes[0].status, ErrorId::secret_differs, {{"rank", "2"}, {"other", "0"}}));
}

// Ranks of a host read each other's records again to find their memory. A record of an earlier run
// of the job has a correct MAC.
TEST_F(Creation, RecordsThatAreReadAgainAreThoseThatAllAgreedOn) {
  for (const bool devices : {false, true}) {
    devices_ = devices;  // with two rounds
    const std::string round = devices ? "verbs/0" : "rank/0";
    std::string earlier;
    board_.values.clear();
    board_.tamper = [&](Member, const std::string& key, std::string& value) {
      if (key == round) earlier = value;
    };
    for (const Outcome& o : make({sealed(), sealed()})) {
      EXPECT_EQ(o.known, std::vector<bool>({true, true})) << o.status.to_string();
    }
    board_.values.clear();
    board_.tamper = [&](Member reader, const std::string& key, std::string& value) {
      if (reader == 1 && key == round) value = earlier;
    };
    const auto outcomes = make({sealed(), sealed()});
    EXPECT_TRUE(outcomes[0].status.ok() && outcomes[1].status.ok());
    EXPECT_EQ(outcomes[0].known, std::vector<bool>({true, true}));
    EXPECT_EQ(outcomes[1].known, std::vector<bool>({false, true}));
  }
}

// An attacker redirects a rank to the store of another job with the same secret, and makes the
// records there look alike.
TEST_F(Creation, RanksOfTwoJobsWithOneSecretAreNotExchanged) {
  Settings other = sealed();
  other["job"] = "b job";
  auto outcomes = make({sealed(), other, sealed()});
  for (const Outcome& o : outcomes) EXPECT_EQ(o.status.code(), Code::kMismatch);
  EXPECT_NE(outcomes[0].status.message().find("rank 1 is of job 'b job', rank 0 of job 'a job'"),
            std::string::npos)
      << outcomes[0].status.message();
  scope_ = "mcast/2/";
  board_.tamper = [](Member reader, const std::string&, std::string& value) {
    const std::string from = reader == 1 ? "job=a job" : "job=b job";
    if (const size_t at = value.find(from); at != std::string::npos) {
      value[at + 4] = reader == 1 ? 'b' : 'a';
    }
  };
  outcomes = make({sealed(), other, sealed()});
  for (const Outcome& o : outcomes) {
    EXPECT_EQ(o.status.code(), Code::kMismatch);
    EXPECT_EQ(o.root, "");
  }
  // Its keys belong to another job.
  EXPECT_TRUE(
      is_error(outcomes[0].status, ErrorId::secret_differs, {{"rank", "1"}, {"other", "0"}}));
}

TEST_F(Creation, AJobWithoutANameIsRefused) {
  Settings none = sealed();
  none.erase("job");
  const auto outcomes = make({none, none});
  for (const Outcome& o : outcomes) {
    EXPECT_EQ(o.status.code(), Code::kInvalidArgument);
    EXPECT_NE(o.status.message().find("set MCAST_JOB"), std::string::npos);
  }
}

TEST_F(Creation, ARankWithoutASecretSaysSoToAll) {
  const auto outcomes = make({sealed(), {{"security", "sealed"}, {"job", "a job"}}});
  EXPECT_EQ(outcomes[1].status.code(), Code::kUnavailable);
  EXPECT_NE(outcomes[1].status.message().find("security needs a secret"), std::string::npos);
  EXPECT_NE(outcomes[0].status.message().find("rank 1 cannot guard its traffic: security needs"),
            std::string::npos)
      << outcomes[0].status.message();
}

TEST_F(Creation, AChangedRecordIsRefusedByAll) {
  for (const char* field : {"external=", "nonce=", "x25519=", "budget=", "rack=", "suites="}) {
    scope_ = std::string("mcast/") + field + "/";
    // Changes the last character of its line.
    board_.tamper = [field](Member reader, const std::string& key, std::string& value) {
      if (reader != 0 || key != "rank/1") return;
      const size_t line = value.find(std::string("\n") + field);
      ASSERT_NE(line, std::string::npos) << field;
      value[value.find('\n', line + 1) - 1] ^= 1;
    };
    const auto outcomes = make({sealed(), sealed(), sealed()});
    expect_all(outcomes, "the record of rank 1 was changed in the store, or is of another run");
  }
}

TEST_F(Creation, ARecordFitsNowhereElse) {
  // Stores it under another rank's key.
  board_.tamper = [this](Member, const std::string& key, std::string& value) {
    if (key == "rank/1" && board_.values.count(scope_ + "rank/2") > 0) {
      value = board_.values[scope_ + "rank/2"];
    }
  };
  expect_all(make({sealed(), sealed(), sealed()}), "the record of rank 1 was changed");
  // A value of an earlier incarnation.
  board_.tamper = nullptr;
  scope_ = "mcast/2/";
  for (const Outcome& o : make({sealed(), sealed()})) ASSERT_TRUE(o.status.ok());
  const std::string old = board_.values["mcast/2/rank/1"];
  scope_ = "mcast/3/";
  board_.tamper = [old](Member, const std::string& key, std::string& value) {
    if (key == "rank/1") value = old;
  };
  expect_all(make({sealed(), sealed()}), "the record of rank 1 was changed");
}

TEST_F(Creation, ADowngradeIsNoticed) {
  board_.tamper = [](Member reader, const std::string& key, std::string& value) {
    if (reader == 0 && key == "rank/1") value = value.substr(0, value.find("security=sealed\n"));
  };
  for (const Outcome& o : make({sealed(), sealed(), sealed()})) {
    EXPECT_TRUE(is_error(
        o.status, ErrorId::security_differs,
        {{"rank", "1"}, {"security", "off"}, {"other", "0"}, {"other_security", "sealed"}}));
    EXPECT_TRUE(o.root.empty());
  }
}

TEST_F(Creation, ConclusionChangedInTheStoreIsNamed) {
  board_.tamper = [](Member reader, const std::string& key, std::string& value) {
    if (reader == 2 && key == "rank/all") value[value.size() / 2] ^= 1;
  };
  const auto outcomes = make({sealed(), sealed(), sealed()});
  EXPECT_TRUE(outcomes[0].status.ok()) << outcomes[0].status.to_string();
  EXPECT_NE(outcomes[2].status.message().find(
                "the value that rank 0 has published (rank/all) was changed"),
            std::string::npos)
      << outcomes[2].status.message();
  EXPECT_TRUE(outcomes[2].root.empty());
}

// An attacker keeps an authentic record of this incarnation and shows it to rank 0 only: all MACs
// are correct, but the transcript differs from rank 1's.
TEST_F(Creation, RanksThatSawDifferentRecordsDoNotAgree) {
  auto thread_safe_first = std::make_shared<std::string>();
  {
    const auto outcomes = make({sealed(), sealed()});
    ASSERT_TRUE(outcomes[1].status.ok());
    *thread_safe_first = board_.values[scope_ + "rank/1"];
    board_.values.clear();
  }
  board_.tamper = [first = *thread_safe_first](Member reader, const std::string& key,
                                               std::string& value) {
    if (reader == 0 && key == "rank/1") value = first;
  };
  const auto outcomes = make({sealed(), sealed()});
  EXPECT_EQ(outcomes[1].status.code(), Code::kMismatch);
  EXPECT_NE(outcomes[1].status.message().find("rank 0 and rank 1 saw different records"),
            std::string::npos)
      << outcomes[1].status.message();
  EXPECT_TRUE(outcomes[1].root.empty());
}

// With the same secret, name, size and incarnation number, but from a new store.
TEST_F(Creation, ValuesOfAnEarlierRunAreNamed) {
  shared_ = "slots";
  for (const Outcome& o : make({sealed(), sealed(), sealed()})) {
    ASSERT_TRUE(o.later.ok()) << o.later.to_string();
  }
  const Values before = std::exchange(board_.values, {});
  shared_ = "direct";
  for (const char* key : {"shared/all", "shared/1"}) {
    board_.values.clear();
    const Member victim = std::string(key) == "shared/all" ? 2 : 0;
    board_.tamper = [&](Member reader, const std::string& asked, std::string& value) {
      if (reader == victim && asked == key) value = before.at(scope_ + key);
    };
    const auto outcomes = make({sealed(), sealed(), sealed()});
    for (const Outcome& o : outcomes) EXPECT_TRUE(o.status.ok()) << o.status.to_string();
    const Status& later = outcomes[victim].later;
    EXPECT_EQ(later.code(), Code::kMismatch) << key;
    EXPECT_NE(later.message().find("was changed in the store, or is of another run"),
              std::string::npos)
        << later.message();
    EXPECT_EQ(outcomes[1].later.ok(), victim != 0) << outcomes[1].later.to_string();
  }
}

// Attack 7, passive: the attacker has the job's secret, everything that was ever in the store, and
// a key pair.
TEST_F(Creation, TheSecretAndTheStoreOpenNoGroup) {
  const auto outcomes = make({sealed(), sealed(), sealed()});
  for (const Outcome& o : outcomes) ASSERT_TRUE(o.status.ok()) << o.status.to_string();
  auto secret = crypto::JobSecret::make(std::vector<std::byte>(32, std::byte{0xaa}),
                                        "a launcher that leaked");
  ASSERT_TRUE(secret.ok());
  secret = (*secret)->for_job("a job");
  ASSERT_TRUE(secret.ok());
  const auto said = crypto::without_mac((*secret)->record(), {scope_, "rank/all", "g", 0, 3},
                                        board_.values[scope_ + "rank/all"]);
  ASSERT_TRUE(said) << "it is the secret";
  // The first character says that there is a conclusion.
  const Conclusion all = Conclusion::read(crypto::bytes_of(*said).subspan(1));
  ASSERT_EQ(all.ranks.size(), 3u);
  // Returns whether a pair's shared key with some rank opens the key that is wrapped for rank r.
  const auto opens = [&](const Result<crypto::Key>& shared, Member r) {
    if (!shared.ok()) return std::string();
    const auto key = crypto::wrap_key(all.transcript, *shared, (*secret)->mix(), r);
    const auto group = crypto::unwrap(key, all.ranks[r].wrapped);
    return group ? hex_text(crypto::group_root(all.transcript, *group).bytes()) : std::string();
  };
  Config config = *Config::resolve(sealed(), {});
  const auto own = LaneIdentity::make(config, **secret);
  ASSERT_TRUE(own.ok());
  for (Member r = 1; r < 3; r++) {
    EXPECT_EQ(opens(outcomes[r].identity->shared(all.ranks[0].key), r), outcomes[r].root)
        << "with the rank's own pair this is how it is opened";
    for (const Conclusion::Rank& rank : all.ranks) {
      EXPECT_EQ(opens((*own)->shared(rank.key), r), "");
      EXPECT_EQ(opens(crypto::Key(rank.key), r), "") << "public keys are no shared ones";
    }
    EXPECT_EQ(opens(crypto::Key(), r), "");
    EXPECT_EQ(opens(outcomes[3 - r].identity->shared(all.ranks[0].key), r), "")
        << "nor is it another rank's to open";
  }
}

TEST_F(Creation, TrustInTheStoreNeedsNoSecretAndIsVisible) {
  const Settings trusting{{"security", "sealed"}, {"trust_store", "1"}, {"job", "a job"}};
  const auto outcomes = make({trusting, trusting, trusting});
  for (const Outcome& o : outcomes) {
    ASSERT_TRUE(o.status.ok()) << o.status.to_string();
    EXPECT_EQ(o.root, outcomes[0].root);
  }
  EXPECT_NE(board_.values[scope_ + "rank/0"].find("shared_secret="), std::string::npos);
  EXPECT_EQ(board_.values[scope_ + "rank/1"].find("shared_secret="), std::string::npos);
  // One rank does not trust the store: it has its own secret, or none.
  scope_ = "mcast/2/";
  const auto mixed = make({trusting, sealed()});
  EXPECT_FALSE(mixed[0].status.ok());
  EXPECT_FALSE(mixed[1].status.ok());
}

TEST_F(Creation, AFileThatOthersMayWriteIsRefused) {
  Settings s = sealed();
  s["secret_file"] = secret_file("w", 'a', 0620);
  const auto outcomes = make({s, sealed()});
  EXPECT_EQ(outcomes[0].status.code(), Code::kInvalidArgument);
  EXPECT_NE(outcomes[0].status.message().find("can be written by others"), std::string::npos);
  EXPECT_NE(outcomes[1].status.message().find("rank 0 cannot guard its traffic"), std::string::npos)
      << outcomes[1].status.message();
}

TEST(SealRate, IsARateInEveryModeAndSuite) {
  for (const auto mode : {crypto::Mode::kAuth, crypto::Mode::kSealed}) {
    for (const auto suite :
         {crypto::Suite::kAes128Gcm, crypto::Suite::kAes256Gcm, crypto::Suite::kChaCha20Poly1305}) {
      const auto rate = seal_rate(mode, suite, 1408, 5 * kMilli);
      ASSERT_TRUE(rate.ok()) << rate.status().to_string();
      EXPECT_GE(*rate, 1408.0 * 64) << "a batch in a second";
    }
  }
}

}  // namespace
}  // namespace mcast::test
