// Every text of the table parses back to the fields that it was written from, also inside a longer
// text.
#include "base/errors.h"

#include <gtest/gtest.h>

#include <set>

#include "support/errors.h"

namespace mcast {
namespace {

using test::is_error;

// The names of a row's fields, and a text with a value for each.
struct Sample {
  explicit Sample(ErrorId id) {
    std::string_view rest = row_of(id).text;
    for (size_t open; (open = rest.find('{')) != std::string_view::npos;) {
      text += rest.substr(0, open);
      const std::string name(rest.substr(open + 1, rest.find('}') - open - 1));
      rest.remove_prefix(rest.find('}') + 1);
      const std::string number = std::to_string(10 + fields.size());
      const bool digits = name[0] == '#';
      fields.emplace_back(digits ? name.substr(1) : name, digits ? number : "a, b " + number);
      text += fields.back().second;
    }
    text += rest;
  }
  std::string text;
  test::Fields fields;
};

TEST(Errors, EveryTextIsReadBackAsItsRowWithItsFields) {
  std::set<std::string> names, texts;
  for (size_t i = 0; i < std::size(kErrorRows); i++) {
    const auto id = static_cast<ErrorId>(i);
    const Sample sample(id);
    EXPECT_TRUE(names.insert(row_of(id).name).second) << row_of(id).name;
    EXPECT_TRUE(texts.insert(row_of(id).text).second) << row_of(id).text;
    EXPECT_NE(row_of(id).text[0], '{') << row_of(id).name;
    EXPECT_NE(row_of(id).code, Code::kOk) << row_of(id).name;
    for (const std::string before : {"", "broadcast #7 on rank 2 of 4 in group 'rank 1': x: "}) {
      for (const std::string after :
           {"", "; look at its log", " Hint: ask (rank 3 is lost)", "\n"}) {
        const auto found = find_error(before + sample.text + after);
        ASSERT_TRUE(found) << before << sample.text << after;
        EXPECT_EQ(found->id, id) << before << sample.text << after;
        EXPECT_EQ(found->fields, sample.fields) << before << sample.text << after;
      }
    }
  }
}

TEST(Errors, AreWrittenFromTheTable) {
  const Status silent = make_error<ErrorId::rank_silent>(Member{3}, "10.0 s", "5.0 s");
  EXPECT_EQ(silent.to_string(),
            "peer_lost: rank 3 has been silent for 10.0 s (liveness limit 5.0 s)");
  EXPECT_TRUE(is_error(silent, ErrorId::rank_silent, {{"rank", "3"}, {"limit", "5.0 s"}}));
  EXPECT_FALSE(is_error(silent, ErrorId::rank_silent, {{"rank", "4"}}));
  EXPECT_FALSE(is_error(silent, ErrorId::rank_silent, {{"ranks", "3"}}));
  EXPECT_FALSE(is_error(silent, ErrorId::rank_lost));
  EXPECT_FALSE(is_error(Status(Code::kTimeout, silent.message()), ErrorId::rank_silent));
  EXPECT_FALSE(is_error({}, ErrorId::rank_silent));
}

TEST(Errors, FirstErrorInATextIsTheOneFound) {
  const std::string text =
      "aborted by rank 2: operation 7 differs between ranks: rank 0 called "
      "a, rank 1 called b; group 'g' is closed";
  EXPECT_EQ(find_error(text)->id, ErrorId::aborted);
  const auto inner = find_error(text.substr(text.find("operation")));
  EXPECT_EQ(inner->id, ErrorId::operation_differs);
  EXPECT_EQ(inner->fields.back(), std::pair(std::string("other_call"), std::string("b")));
}

TEST(Errors, ATextThatOnlyBeginsLikeARowIsNone) {
  for (const char* text :
       {"", "rank", "rank 3 has been silent", "rank x has been silent for 1 s (liveness limit 1 s)",
        "rank  has been silent for 1 s (liveness limit 1 s)", "group 'a", "group 'a' 'b' is closed",
        "rank 3 has been silent for\n1 s (liveness limit 1 s)", "rank 3 is lost (why); look"}) {
    EXPECT_FALSE(find_error(text)) << text;
  }
  const auto second = find_error("group 'a' is open, group 'b' is closed");
  ASSERT_TRUE(second);
  EXPECT_EQ(second->fields, (test::Fields{{"group", "b"}}));
}

TEST(Errors, ACodeIsReadFromAText) {
  EXPECT_EQ(find_code("peer_lost: rank 1 is lost"), Code::kPeerLost);
  EXPECT_EQ(find_code("mcast all_reduce #7: timeout: rank 1: peer_lost: late"), Code::kTimeout);
  EXPECT_EQ(find_code("invalid_argument: x"), Code::kInvalidArgument);
  EXPECT_EQ(find_code("x: internal: y"), Code::kInternal);
  EXPECT_EQ(find_code("a timeout: x"), Code::kOk);
  EXPECT_EQ(find_code(""), Code::kOk);
  EXPECT_EQ(find_code("ok: x"), Code::kOk);
}

}  // namespace
}  // namespace mcast
