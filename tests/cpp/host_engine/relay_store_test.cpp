// An engine uses a job's store through its client. Values beyond one message arrive in several, a
// single value that is too long is an error of the creation, and the link continues.
#include "host_engine/server/relay_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <functional>
#include <map>
#include <thread>

#include "host_engine/client/client_link.h"
#include "host_engine/server/tenant_link.h"
#include "support/temporary_folder.h"

namespace mcast::test {
namespace {

using testing::HasSubstr;

// The client's store.
class MapStore final : public KeyValueStore {
 public:
  Status set(const std::string& key, const std::string& value) override {
    values[key] = value;
    return {};
  }
  Result<std::vector<std::string>> multi_get(const std::vector<std::string>& keys, Nanos) override {
    questions++;
    std::vector<std::string> found;
    size_t missing = 0;
    for (const std::string& key : keys) {
      const auto it = values.find(key);
      missing += it == values.end() ? 1 : 0;
      found.push_back(it == values.end() ? "" : it->second);
    }
    if (missing == 0) return found;
    return Status(Code::kTimeout,
                  std::to_string(missing) + " of " + std::to_string(keys.size()) + " keys missing");
  }
  Result<std::string> claim(const std::string& key, const std::string& owner) override {
    if (!claims.ok()) return claims;
    return owners.emplace(key, owner).first->second;
  }

  std::map<std::string, std::string> values, owners;
  Status claims;
  int questions = 0;
};

// Runs an engine that makes no group, but uses the store of the client that requests one; the
// result of `creation` ends the request. The client's link is real.
Status create(MapStore& store, const std::function<Status(service::RelayStore&)>& creation) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/engine.sock";
  LocalListener::How how;
  how.type = SOCK_SEQPACKET;
  const auto listener = LocalListener::open(path, how);
  if (!listener.ok()) return listener.status();
  std::thread engine([&] {
    pollfd ready{listener->fd(), POLLIN, 0};
    (void)::poll(&ready, 1, 10'000);
    auto made = service::TenantLink::make(
        LocalSocket(Fd(::accept4(listener->fd(), nullptr, nullptr, SOCK_NONBLOCK))));
    ASSERT_TRUE(made.ok());
    const auto link = std::move(made).value();
    std::unique_ptr<service::RelayStore> relay;
    std::thread creating;
    for (bool over = false; !over;) {
      link->page().engine_beats.fetch_add(1);
      pollfd more{link->socket().fd(), POLLIN, 0};
      (void)::poll(&more, 1, 100);
      Packet packet;
      const auto got = link->receive(packet);
      if (got == LocalSocket::Got::kNothing) continue;
      const auto message =
          got == LocalSocket::Got::kPacket ? ipc::parse_control(packet.bytes) : std::nullopt;
      over = !message || message->type == ipc::ControlType::kBye;
      if (over) break;
      ipc::StoreAnswer answer;
      if (message->type == ipc::ControlType::kHello) {
        const int memory = link->memory().fd();
        link->tell(control_of(ipc::Welcome{}), std::span<const int>(&memory, 1));
      } else if (message->type == ipc::ControlType::kGroupAsk) {
        ipc::GroupAsk asked;
        EXPECT_TRUE(read(*message, asked));
        relay = std::make_unique<service::RelayStore>(
            message->call, [link](const ipc::Control& m) { link->tell(m); }, asked.scope,
            asked.claims);
        creating = std::thread([&creation, &relay, link, call = message->call] {
          const ipc::Verdict end = ipc::Verdict::of(creation(*relay));
          link->tell(control_of(ipc::ControlType::kGroupFailed, call, end));
        });
      } else if (relay && read(*message, answer)) {
        relay->answered(std::move(answer));
      }
    }
    if (relay) relay->give_up();
    if (creating.joinable()) creating.join();
  });
  Status end;
  if (auto link = ClientLink::connect(path, 5 * kSecond); link.ok()) {
    GroupSpec spec;
    spec.timeout = 20 * kSecond;
    end = (*link)->make_group(spec, store).status();
    EXPECT_TRUE((*link)->lost().ok()) << (*link)->lost().message();
  } else {
    end = link.status();
  }
  engine.join();
  return end;
}

// Claims the key and returns its owner.
std::string owner_of(service::RelayStore& relay, const std::string& key) {
  const Result<std::string> owner = relay.claim(key, "this");
  return owner.ok() ? *owner : owner.status().to_string();
}

constexpr char kDone[] = "done";  // status text that ends a successful creation

TEST(RelayStore, ManyValuesComeInSeveralMessages) {
  MapStore store;
  std::vector<std::string> keys;
  for (int r = 0; r < 300; r++) {
    keys.push_back("rank/" + std::to_string(r));
    store.values[keys.back()] = std::string(2048, static_cast<char>('a' + r % 26)) + keys.back();
  }
  const Status end = create(store, [&](service::RelayStore& relay) {
    const auto values = relay.multi_get(keys, 10 * kSecond);
    if (!values.ok()) return values.status();
    EXPECT_EQ(values->size(), keys.size());
    for (size_t i = 0; i < values->size(); i++) EXPECT_EQ((*values)[i], store.values[keys[i]]) << i;
    return Status(Code::kAborted, kDone);
  });
  EXPECT_EQ(end.message(), kDone) << end.to_string();
  EXPECT_LT(store.questions, 15) << "about 31 values fit a message";
}

TEST(RelayStore, TheClientsStoreSaysWhoHasAKey) {
  MapStore store;
  store.owners["port/1/20000"] = "another";
  const Status end = create(store, [&](service::RelayStore& relay) {
    EXPECT_EQ(owner_of(relay, "port/1/20000"), "another");
    EXPECT_EQ(owner_of(relay, "port/1/20002"), "this");
    return Status(Code::kAborted, kDone);
  });
  EXPECT_EQ(end.message(), kDone) << end.to_string();
  EXPECT_EQ(store.owners["port/1/20002"], "this");
}

TEST(RelayStore, AClaimThatTheStoreRefusesIsAnError) {
  MapStore store;
  store.claims = Status(Code::kUnavailable, "it compares nothing");
  const Status end = create(store, [&](service::RelayStore& relay) {
    return relay.claim("port/1/20000", "this").status();
  });
  EXPECT_EQ(end.message(), "it compares nothing") << end.to_string();
}

// A client of an earlier version would not reply.
TEST(RelayStore, OldClientGetsNoClaims) {
  int asked = 0;
  service::RelayStore relay(1, [&asked](const ipc::Control&) { asked++; });
  EXPECT_EQ(owner_of(relay, "port/1/20000"), "this");
  EXPECT_EQ(asked, 0);
}

TEST(RelayStore, MoreKeysThanAQuestionHolds) {
  MapStore store;
  std::vector<std::string> keys;
  for (int r = 0; r < 6000; r++) {
    keys.push_back("rank/" + std::to_string(r));
    store.values[keys.back()] = std::to_string(r);
  }
  const Status end = create(store, [&](service::RelayStore& relay) {
    const auto values = relay.multi_get(keys, 10 * kSecond);
    if (!values.ok()) return values.status();
    EXPECT_EQ(values->size(), keys.size());
    for (size_t i = 0; i < values->size(); i++) EXPECT_EQ((*values)[i], std::to_string(i));
    return Status(Code::kAborted, kDone);
  });
  EXPECT_EQ(end.message(), kDone) << end.to_string();
}

TEST(RelayStore, AllThatIsMissingIsNamedAtOnce) {
  MapStore store;
  std::vector<std::string> keys;
  for (int r = 0; r < 300; r++) keys.push_back("rank/" + std::to_string(r));
  store.values[keys[0]] = "there";
  const Status end = create(
      store, [&](service::RelayStore& relay) { return relay.multi_get(keys, kMilli).status(); });
  EXPECT_EQ(end.code(), Code::kTimeout);
  EXPECT_EQ(end.message(), "299 of 300 keys missing");
}

TEST(RelayStore, AValueThatIsTooLongIsAnErrorThatNamesTheLimit) {
  MapStore store;
  store.values["short"] = "x";
  store.values["long"] = std::string(70'000, 'x');
  const Status got = create(store, [&](service::RelayStore& relay) {
    return relay.multi_get({"short", "long"}, 10 * kSecond).status();
  });
  EXPECT_EQ(got.code(), Code::kResourceExhausted) << got.to_string();
  EXPECT_THAT(got.message(), HasSubstr("the store's value of long: "));
  EXPECT_THAT(got.message(), HasSubstr("(65536 bytes, "));
  const Status set = create(store, [&](service::RelayStore& relay) {
    EXPECT_TRUE(relay.set("other", std::string(65'000, 'y')).ok());
    return relay.set("mine", std::string(70'000, 'x'));
  });
  EXPECT_EQ(set.code(), Code::kResourceExhausted) << set.to_string();
  EXPECT_THAT(set.message(), HasSubstr("the request to the client's store cannot be sent: "));
  EXPECT_THAT(set.message(), HasSubstr("(65536 bytes, "));
  EXPECT_EQ(store.values.count("mine"), 0u);
  EXPECT_EQ(store.values["other"].size(), 65'000u);
}

// On both ends, a message that is too long is not sent as an empty packet, which would end the
// link.
TEST(RelayStore, AMessageThatIsTooLongDoesNotEndTheLink) {
  MapStore store;
  const Status end = create(
      store, [](service::RelayStore&) { return Status(Code::kAborted, std::string(70'000, 'x')); });
  EXPECT_EQ(end.code(), Code::kResourceExhausted) << end.to_string();
  EXPECT_THAT(end.message(), HasSubstr("a message of 70"));
}

}  // namespace
}  // namespace mcast::test
