// The text of fault rules: accepted rules, and errors that point at the place of a mistake.
#include "transport/fault_spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace mcast {
namespace {

using ::testing::HasSubstr;

class Classifier final : public FaultClassifier {
 public:
  bool knows(std::string_view predicate, std::string_view value) const override {
    return predicate == "type" && (value == "data" || value == "fetch");
  }
  bool matches(std::string_view, std::string_view, ConstBytes, bool) const override { return true; }
  std::string grammar() const override { return "type=data|fetch"; }
};

TEST(FaultSpec, EmptyTextHasNoRules) {
  auto rules = parse_faults("", nullptr);
  ASSERT_TRUE(rules.ok());
  EXPECT_TRUE(rules->empty());
}

TEST(FaultSpec, ReadsEveryKey) {
  const Classifier classifier;
  auto rules = parse_faults(
      "drop:rate=0.25,burst=4,seed=7,after=3,count=9,type=data;duplicate;"
      "delay:time=2.5,dir=out;reorder:hold=3,dir=in;corrupt:rate=1e-3;"
      "refuse:rate=0.5,burst=20,after=7",
      &classifier);
  ASSERT_TRUE(rules.ok()) << rules.status().to_string();
  ASSERT_EQ(rules->size(), 6u);
  const FaultRule& drop = (*rules)[0];
  EXPECT_EQ(drop.action, FaultAction::kDrop);
  EXPECT_EQ(drop.rate, 0.25);
  EXPECT_EQ(drop.burst, 4);
  EXPECT_EQ(drop.seed, 7u);
  EXPECT_EQ(drop.after, 3u);
  EXPECT_EQ(drop.count, 9u);
  EXPECT_FALSE(drop.outgoing);
  EXPECT_TRUE(drop.names_type());
  const FaultRule& duplicate = (*rules)[1];
  EXPECT_EQ(duplicate.action, FaultAction::kDuplicate);
  EXPECT_EQ(duplicate.rate, 1);
  EXPECT_EQ(duplicate.count, UINT64_MAX);
  EXPECT_FALSE(duplicate.names_type());
  EXPECT_NE(duplicate.seed, (*rules)[2].seed);  // by default, rules do not repeat each other
  EXPECT_EQ((*rules)[2].time, 2'500'000);
  EXPECT_TRUE((*rules)[2].outgoing);
  EXPECT_EQ((*rules)[3].hold, 3u);
  EXPECT_EQ((*rules)[4].action, FaultAction::kCorrupt);
  EXPECT_EQ((*rules)[4].rate, 1e-3);
  EXPECT_EQ((*rules)[5].action, FaultAction::kRefuse);
  EXPECT_EQ((*rules)[5].burst, 20);
  EXPECT_EQ((*rules)[5].after, 7u);
}

TEST(FaultSpec, ErrorsShowPositionAndGrammar) {
  const Classifier classifier;
  const struct {
    const char* text;
    int position;
  } bad[] = {
      {"lose", 0},
      {"drop;", 5},
      {";drop", 0},
      {"drop:", 5},
      {"drop:rate", 5},
      {"drop:=1", 5},
      {"drop:rate=", 10},
      {"drop:rate=2", 10},
      {"drop:rate=-0.1", 10},
      {"drop:rate=0.1x", 10},
      {"drop:rate=nan", 10},
      {"drop:burst=0.5", 11},
      {"drop:seed=-1", 10},
      {"drop:count=1.5", 11},
      {"drop:count=99999999999999999999", 11},
      {"drop:dir=up", 9},
      {"drop:time=1", 5},
      {"drop:hold=1", 5},
      {"delay:hold=1", 6},
      {"reorder:hold=0", 13},
      {"refuse:dir=in", 7},
      {"refuse:type=data", 7},
      {"refuse:time=1", 7},
      {"drop:type=other", 5},
      {"drop:colour=red", 5},
      {"drop:rate=1,,seed=1", 12},
      {"drop:rate=0.5;duplicate:rate=x", 29},
  };
  for (const auto& [text, position] : bad) {
    auto rules = parse_faults(text, &classifier);
    ASSERT_FALSE(rules.ok()) << text;
    EXPECT_EQ(rules.status().code(), Code::kInvalidArgument);
    EXPECT_THAT(rules.status().message(), HasSubstr("position " + std::to_string(position) + ":"))
        << text;
    EXPECT_THAT(rules.status().message(), HasSubstr("action:key=value"));
    EXPECT_THAT(rules.status().message(), HasSubstr("type=data|fetch"));
  }
}

TEST(FaultSpec, PredicatesNeedAClassifier) {
  EXPECT_FALSE(parse_faults("drop:type=data", nullptr).ok());
}

}  // namespace
}  // namespace mcast
