// The choice of a port and its grammar; the choice of a transport from all ranks' records; and the
// codecs of the wire.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/transport_choice.h"
#include "transport/verbs/hca.h"
#include "transport/verbs/rc_wire.h"
#include "transport/verbs/verbs_transport.h"
#include "verbs/verbs_world.h"

namespace mcast::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using verbs::choose_port;
using verbs::Port;

std::vector<Port> ports() {
  std::vector<Port> out;
  for (const auto& [name, number, active] : {std::tuple{"mlx5_0", 1, true},
                                             {"mlx5_0", 2, true},
                                             {"mlx5_1", 1, false},
                                             {"mlx5_10", 1, true},
                                             {"rxe0", 1, true}}) {
    out.push_back({name, static_cast<uint8_t>(number), active, {}});
    out.back().interface.name = std::string("if-") + name;
  }
  return out;
}

std::string chosen(const std::string& pattern, size_t lane = 0) {
  const auto port = choose_port(ports(), pattern, lane);
  return port.ok() ? port->text() : port.status().message();
}

TEST(VerbsHca, NcclsGrammar) {
  EXPECT_EQ(chosen(""), "mlx5_0:1");
  EXPECT_EQ(chosen("rxe"), "rxe0:1");
  EXPECT_EQ(chosen("mlx5_1"), "mlx5_10:1") << "a prefix; mlx5_1 itself is not active";
  EXPECT_EQ(chosen("rxe,mlx5"), "rxe0:1") << "the list's order";
  EXPECT_EQ(chosen("mlx5_0:2"), "mlx5_0:2");
  EXPECT_EQ(chosen("=rxe0:1"), "rxe0:1");
  EXPECT_EQ(chosen("^mlx5"), "rxe0:1");
  EXPECT_EQ(chosen("^=mlx5_0"), "mlx5_10:1");
  EXPECT_EQ(chosen("^mlx5_0:1"), "mlx5_0:2");
}

TEST(VerbsHca, AnExactListGivesEachLaneItsPort) {
  EXPECT_EQ(chosen("=rxe0,mlx5_10", 0), "rxe0:1");
  EXPECT_EQ(chosen("=rxe0,mlx5_10", 1), "mlx5_10:1");
  EXPECT_EQ(chosen("=rxe0,mlx5_10", 2), "rxe0:1");
  EXPECT_EQ(chosen("rxe0,mlx5_10", 1), "rxe0:1") << "prefixes do not";
}

TEST(VerbsHca, NothingThatMatchesNamesWhatThereIs) {
  EXPECT_THAT(chosen("=mlx5_1"),
              AllOf(HasSubstr("=mlx5_1"), HasSubstr("mlx5_1:1 (if-mlx5_1, not active)"),
                    HasSubstr("rxe0:1 (if-rxe0)")));
  EXPECT_THAT(choose_port({}, "").status().message(), HasSubstr("none"));
}

TEST(VerbsHca, BadTextsAreRefused) {
  for (const char* bad :
       {"^", "=", "^=", ",", "mlx5_0,", "mlx5_0:", "mlx5_0:0", "mlx5_0:256", "mlx5_0:x", ":1"}) {
    EXPECT_EQ(choose_port(ports(), bad).status().code(), Code::kInvalidArgument) << bad;
  }
}

std::vector<RankRecord> records(std::initializer_list<std::pair<const char*, const char*>> rows) {
  std::vector<RankRecord> out;
  for (const auto& [host, verbs] : rows) {
    RankRecord r;
    r.host = r.host_name = host;
    r.problems["verbs"] = verbs;
    out.push_back(r);
  }
  return out;
}

TEST(VerbsChoice, AutoTakesVerbsOnlyWhereAllRanksOfSeveralHostsHaveIt) {
  const auto all = choose_transport(records({{"a", ""}, {"b", ""}}), "auto");
  ASSERT_TRUE(all.ok());
  EXPECT_EQ(all->type->name, std::string("verbs"));
  EXPECT_THAT(all->reason, HasSubstr("2 hosts"));
  const auto one = choose_transport(records({{"a", ""}, {"a", ""}}), "auto");
  EXPECT_EQ(one->type->name, std::string("udp"));
  EXPECT_THAT(one->reason, HasSubstr("one host"));
  const auto missing =
      choose_transport(records({{"a", ""}, {"b", "no device"}, {"c", ""}}), "auto");
  EXPECT_EQ(missing->type->name, std::string("udp"));
  EXPECT_THAT(missing->reason, AllOf(HasSubstr("rank 1 on host b"), HasSubstr("no device")));
}

TEST(VerbsChoice, AskingForVerbsIsAnOrder) {
  EXPECT_EQ(choose_transport(records({{"a", ""}, {"a", ""}}), "verbs")->type->name,
            std::string("verbs"));
  const auto refused = choose_transport(records({{"a", ""}, {"b", "no device"}}), "verbs");
  EXPECT_EQ(refused.status().code(), Code::kUnavailable);
  EXPECT_THAT(refused.status().message(),
              AllOf(HasSubstr("rank 1 on host b cannot use verbs: no device"),
                    HasSubstr("MCAST_TRANSPORT=auto or udp")));
  EXPECT_EQ(choose_transport(records({{"a", ""}, {"b", ""}}), "udp")->type->name,
            std::string("udp"));
}

TEST(VerbsViable, ReasonsOfAHostWithoutIt) {
  FakeVerbsWorld world;
  const auto why = [&world] {
    const auto made = verbs::make_transport(*world.fake, world.options);
    return made.ok() ? std::string("viable") : made.status().message();
  };
  EXPECT_EQ(why(), "viable");
  world.fake->devices = 0;
  EXPECT_THAT(why(), HasSubstr("this host has no RDMA device"));
  world.fake->devices = 1;
  world.fake->port_state = IBV_PORT_DOWN;
  EXPECT_THAT(why(), AllOf(HasSubstr("no active RDMA port"), HasSubstr("not active")));
  world.fake->port_state = IBV_PORT_ACTIVE;
  world.fake->address = "192.0.2.77";  // no interface here has it
  EXPECT_THAT(why(), HasSubstr("InfiniBand needs IPoIB"));
  world.fake->address = "127.0.0.1";
  world.fake->attr.max_mcast_grp = 0;
  EXPECT_THAT(why(), HasSubstr("has no multicast"));
  world.fake->attr.max_mcast_grp = 64;
  world.fake->channel_error = ENODEV;
  EXPECT_THAT(why(), HasSubstr("rdma_ucm"));
}

TEST(VerbsViable, TheMtuOfThePortBoundsDatagrams) {
  FakeVerbsWorld world;
  for (const auto& [mtu, limit, want] : {std::tuple{IBV_MTU_4096, 9000, 4096},
                                         {IBV_MTU_1024, 9000, 1024},
                                         {IBV_MTU_4096, 1500, 1024}}) {
    world.fake->mtu = mtu;
    world.options.max_mtu = static_cast<uint64_t>(limit);
    const auto made = verbs::make_transport(*world.fake, world.options);
    ASSERT_TRUE(made.ok());
    EXPECT_EQ((*made)->datagram().max_datagram({1, 1, false}), static_cast<size_t>(want));
  }
}

TEST(VerbsWire, HellosMessagesAndRefusalsComeBackAndNothingElseDoes) {
  verbs::Hello hello;
  hello.source = 0x1122334455667788;
  hello.target = 0x99aabbccddeeff00;
  hello.listen_address = IpAddress::v4(0x7f000001);
  hello.listen_port = 4711;
  auto bytes = encode(hello);
  const auto back = verbs::decode_hello(bytes);
  ASSERT_TRUE(back);
  EXPECT_EQ(back->source, hello.source);
  EXPECT_EQ(back->target, hello.target);
  EXPECT_EQ(back->listen_address, hello.listen_address);
  EXPECT_EQ(back->listen_port, hello.listen_port);
  for (size_t i = 0; i < 8; ++i) {  // magic, version, credits
    auto broken = bytes;
    broken[i] ^= std::byte{1};
    EXPECT_FALSE(verbs::decode_hello(broken)) << i;
  }
  EXPECT_FALSE(verbs::decode_hello(ConstBytes(bytes).first(31)));

  std::byte header[verbs::kMessageHeader];
  verbs::write_message(header, {verbs::Kind::kData, Channel::kReduce, true, 513, 70000});
  const auto message = verbs::parse_message(header);
  ASSERT_TRUE(message);
  EXPECT_EQ(message->channel, Channel::kReduce);
  EXPECT_TRUE(message->first);
  EXPECT_EQ(message->credits, 513);
  EXPECT_EQ(message->length, 70000u);
  for (const auto reason : {verbs::Refusal::kYield, verbs::Refusal::kStranger}) {
    EXPECT_EQ(verbs::decode_refusal(encode(reason)), reason);
  }
  EXPECT_FALSE(verbs::decode_refusal({}));
}

}  // namespace
}  // namespace mcast::testing
