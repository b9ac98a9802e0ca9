// Admission: each reason to refuse has a name and a text that describes both sides; and the
// parameters that are granted.
#include "aggregation/server/admission.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "aggregation/service_world.h"

namespace mcast::service {
namespace {

using test::some_ask;
using ::testing::HasSubstr;

constexpr uint64_t kPlenty = 1 << 20;

Rejection rejected(const std::variant<Grant, Rejection>& result) {
  const auto* const no = std::get_if<Rejection>(&result);
  return no != nullptr ? *no : Rejection{AskRefusal::kCount, "granted"};
}
Rejection unread(const std::string& record) {
  if (const auto no = other_version(wire::ask_heading(record))) return *no;
  const auto read = read_ask(record);
  const auto* const no = std::get_if<Rejection>(&read);
  return no != nullptr ? *no : Rejection{AskRefusal::kCount, "read"};
}

TEST(Admission, AnAskIsRead) {
  const auto read = read_ask(encode(some_ask(3)));
  ASSERT_TRUE(std::holds_alternative<wire::Ask>(read));
  EXPECT_EQ(std::get<wire::Ask>(read), some_ask(3));
}

TEST(Admission, AnotherVersionIsRefusedNamingBoth) {
  wire::Ask ask = some_ask(3);
  ask.version = "9.8.7";
  Rejection no = unread(encode(ask));
  EXPECT_EQ(no.why, AskRefusal::version);
  EXPECT_THAT(no.text, HasSubstr("9.8.7"));
  EXPECT_THAT(no.text, HasSubstr("the aggregator has torch-mcast " + some_ask(3).version));
  ask = some_ask(3);
  ask.protocol += 1;
  EXPECT_EQ(unread(encode(ask)).why, AskRefusal::version);
  // Holds also if the rest of the record cannot be read.
  EXPECT_EQ(unread("record=ask\nversion=9.8.7\nprotocol=99\n").why, AskRefusal::version);
}

TEST(Admission, ImpossibleAsksAreRefused) {
  EXPECT_EQ(unread("noise").why, AskRefusal::malformed);
  EXPECT_THAT(unread(encode(wire::Bye{})).text, HasSubstr("not a request"));
  const auto text = [](auto change) {
    wire::Ask ask = some_ask(3);
    change(ask);
    const Rejection no = unread(encode(ask));
    return no.why == AskRefusal::malformed ? no.text : "not malformed";
  };
  EXPECT_THAT(text([](wire::Ask& a) { a.uids[1] = a.uids[2]; }), HasSubstr("uids"));
  EXPECT_THAT(text([](wire::Ask& a) { a.uids[1] = 0; }), HasSubstr("uids"));
  EXPECT_THAT(text([](wire::Ask& a) {
                a.uids = {5};
                a.host_of = {0};
              }),
              HasSubstr("uids"));
  EXPECT_THAT(text([](wire::Ask& a) { a.name = std::string(300, 'n'); }), HasSubstr("name"));
  EXPECT_THAT(text([](wire::Ask& a) { a.chunk = 63; }), HasSubstr("chunk"));
  EXPECT_THAT(text([](wire::Ask& a) { a.incast = uint64_t{1} << 40; }), HasSubstr("incast"));
  EXPECT_THAT(text([](wire::Ask& a) { a.fold = "upwards"; }), HasSubstr("upwards"));
  EXPECT_THAT(text([](wire::Ask& a) { a.aggregate = "off"; }), HasSubstr("aggregate"));
}

TEST(Admission, JobsQuotaAndDescriptorsAreBounded) {
  Options options;
  const wire::Ask ask = some_ask(8);
  EXPECT_EQ(rejected(admit(ask, options, {.jobs = 16}, kPlenty)).why, AskRefusal::jobs);
  EXPECT_THAT(rejected(admit(ask, options, {.jobs = 16}, kPlenty)).text, HasSubstr("at most 16"));

  const auto granted = admit(ask, options, {}, kPlenty);
  ASSERT_TRUE(std::holds_alternative<Grant>(granted));
  const Grant& grant = std::get<Grant>(granted);
  EXPECT_EQ(grant.quota, memory_bound(grant.params));
  EXPECT_EQ(grant.capacity, 65536u);
  EXPECT_EQ(grant.params.hosts.count(), 8u);
  EXPECT_EQ(grant.params.self, 8);

  const Rejection full =
      rejected(admit(ask, options, {.jobs = 1, .quota = options.quota - 1000}, kPlenty));
  EXPECT_EQ(full.why, AskRefusal::quota);
  EXPECT_THAT(full.text, HasSubstr("quota 512M"));
  options.quota_per_job = 1 << 20;
  EXPECT_EQ(rejected(admit(ask, options, {}, kPlenty)).why, AskRefusal::quota);
  options.quota_per_job = 0;
  wire::Ask greedy = ask;
  greedy.memory = UINT64_MAX;
  EXPECT_EQ(rejected(admit(greedy, options, {}, kPlenty)).why, AskRefusal::quota);
  greedy.memory = 50 << 20;
  EXPECT_EQ(std::get<Grant>(admit(greedy, options, {}, kPlenty)).quota, 50u << 20);
  EXPECT_EQ(rejected(admit(ask, options, {.jobs = 1, .quota = 0, .descriptors = 1000}, 1024)).why,
            AskRefusal::descriptors);
}

TEST(Admission, CapacityIsAShareOfARanksLink) {
  EXPECT_EQ(station_capacity(0, 0, 1), 65536u);
  EXPECT_EQ(station_capacity(0, 1000, 4), 16384u);
  EXPECT_EQ(station_capacity(100'000, 25'000, 2), 131072u);
  EXPECT_EQ(station_capacity(1, UINT64_MAX, 256), 1u);
  EXPECT_EQ(station_capacity(1'000'000'000'000'000, 1, 1), UINT32_MAX);
  Options options;
  options.lanes = 2;
  options.rate = 1'000'000'000;
  wire::Ask ask = some_ask(4);
  ask.link_rate = 500'000'000;
  const Grant grant = std::get<Grant>(admit(ask, options, {}, kPlenty));
  EXPECT_EQ(grant.capacity, 65536u);
  EXPECT_EQ(grant.quota, 2 * memory_bound(grant.params));
}

}  // namespace
}  // namespace mcast::service
