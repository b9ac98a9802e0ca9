// A refused value of the store costs no more than a valid one: sizes are checked before anything
// else, and errors show only a part of unproved text.
#include "security/creation.h"

namespace mcast::test {
namespace {

TEST_F(Creation, ARecordOfMoreBytesThanAnyRankWritesIsRefused) {
  board_.tamper = [](Member reader, const std::string& key, std::string& value) {
    if (reader == 0 && key == "rank/1") value.insert(0, std::string(kMostRecordBytes, 'x') + "\n");
  };
  expect_all(make({sealed(), sealed()}), "more than any rank writes");
}

// It is not even searched for a reported mistake.
TEST_F(Creation, ValuesThatAreTooLongAreNotRead) {
  board_.tamper = [](Member reader, const std::string& key, std::string& value) {
    if (reader != 0 || key != "rank/1") return;
    value.replace(value.find("security=sealed"), 15, "security=off");
    value += "\n" + std::string(kMostRecordBytes, 'x');
  };
  expect_all(make({sealed(), sealed()}), "more than any rank writes");
}

TEST_F(Creation, AConclusionOfMoreBytesThanAllRecordsIsRefused) {
  board_.tamper = [](Member reader, const std::string& key, std::string& value) {
    if (reader == 2 && key == "rank/all") value.append(4 * kMostRecordBytes, 'x');
  };
  const auto outcomes = make({sealed(), sealed(), sealed()});
  EXPECT_TRUE(outcomes[1].status.ok()) << outcomes[1].status.to_string();
  EXPECT_EQ(outcomes[2].status.code(), Code::kMismatch);
  EXPECT_NE(
      outcomes[2].status.message().find("the value that rank 0 has published (rank/all) has "),
      std::string::npos)
      << outcomes[2].status.message();
  EXPECT_TRUE(outcomes[2].root.empty());
}

// A rank without a secret cannot prove the reason that it gives.
TEST_F(Creation, AReasonIsShownInPart) {
  const std::string reason = "why\x1b[2J" + std::string(4000, 'y');
  board_.tamper = [&reason](Member reader, const std::string& key, std::string& value) {
    if (reader != 0 || key != "rank/1") return;
    const size_t id = value.find("\nsecret_check=");
    ASSERT_NE(id, std::string::npos);
    value.replace(id, value.find('\n', id + 1) - id, "\nproblem=" + reason);
  };
  for (const Outcome& o : make({sealed(), sealed()})) {
    const std::string& message = o.status.message();
    EXPECT_NE(message.find("rank 1 cannot guard its traffic: why?[2Jyyy"), std::string::npos)
        << message;
    EXPECT_LT(message.size(), kMostProblem + 200);
  }
  const std::string off = "problem=" + reason + "\n";
  const Status status = takes_part(off, 1);
  EXPECT_EQ(status.code(), Code::kUnavailable);
  EXPECT_LT(status.message().size(), kMostProblem + 100);
  Config config;
  EXPECT_LT(same_mode("security=" + reason + "\n", 1, config, 0).message().size(), 200u);
}

}  // namespace
}  // namespace mcast::test
