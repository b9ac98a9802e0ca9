// Guarded groups and aggregators, each facing a peer that breaks the protocol. The input's first
// byte selects the side that asks (RegistrarCore), the side that is asked (Jobs), or the splitting
// of bytes into records. The input determines which records arrive when, with which proof,
// well-formed or not. A station is only offered if a holder of the role's secret has named it over
// that connection; an aggregator is not asked before it requests a proof; and a station only runs
// for a request that was proved over its connection.
#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "aggregation/member/registrar_core.h"
#include "aggregation/server/jobs.h"
#include "base/log.h"
#include "base/version.h"
#include "crypto/signed_text.h"
#include "fuzz.h"
#include "runtime/rendezvous.h"
#include "wire/protocol_version.h"
#include "wire/record_stream.h"

using namespace mcast;
using fuzz::require;

namespace {

std::shared_ptr<const crypto::JobSecret> secret_of(unsigned number) {
  const std::vector<std::byte> bytes(32, static_cast<std::byte>(number));
  auto made = crypto::JobSecret::make(bytes, "the input's");
  require(made.ok(), "a secret");
  return std::move(made).value();
}

// Keys that a peer may use for a proof; kRole is the right one.
enum Proof : unsigned { kNone, kRole, kJob, kOther };

struct Secrets {
  std::shared_ptr<const crypto::JobSecret> job = secret_of(7), other = secret_of(8);
  // A proof as an aggregator makes it, with a secret that follows from the job's.
  std::string prove(unsigned proof, const std::string& nonce, const char* what,
                    const std::string& text, const std::string& about = "") const {
    if (proof == kNone) return text;
    const crypto::Key& key = proof == kRole  ? job->aggregators().record
                             : proof == kJob ? job->record()
                                             : other->aggregators().record;
    return crypto::with_mac(key, crypto::said_over(nonce, what, about), text);
  }
};

const Secrets& secrets() {
  static const Secrets all;
  return all;
}

wire::Ask make_ask() {
  wire::Ask ask;
  ask.version = version();
  ask.protocol = kProtocolVersion;
  ask.transport = "udp";
  ask.tag = 77;
  ask.name = "g";
  ask.uids = {1, 2};
  ask.host_of = {0, 1};
  ask.chunk = 1408;
  ask.incast = 1u << 20;
  ask.fold = "rank";
  ask.aggregate = "careful";
  ask.roster = 1;
  ask.security = "sealed";
  ask.keys.resize(2);
  for (auto& key : ask.keys) key.fill(std::byte{9});
  return ask;
}

std::string rest_of(fuzz::Input& in) {
  std::string text;
  for (unsigned i = in.byte(); i > 0 && !in.empty(); i--) text += static_cast<char>(in.byte());
  return text;
}

// The records that arrived over one connection to an aggregator, for the asking side.
struct Wire {
  std::vector<std::string> coming;
  std::string nonce;        // from its Challenge; empty: no valid one arrived
  bool challenged = false;  // by any Challenge
  std::string asked;        // digest of the proved request
};

class AskersLink final : public RecordLink {
 public:
  explicit AskersLink(Wire& wire) : wire_(wire) { wire_ = {}; }
  void send_text(const std::string& text) override {
    require(wire_.challenged, "nothing is said before a proof is asked for");
    wire::Admission record;
    require(wire::decode_admission(text, record).ok(), "what is said can be read");
    if (!std::holds_alternative<wire::Ask>(record) || wire_.nonce.empty()) return;
    require(crypto::without_mac(secrets().job->aggregators().record,
                                crypto::said_over(wire_.nonce, "ask"), text)
                .has_value(),
            "an ask is proved for its connection");
    wire_.asked = crypto::digest_text(text);
  }
  Result<bool> next(wire::Admission& record, std::string& text) override {
    if (wire_.coming.empty()) return false;
    text = wire_.coming.front();
    wire_.coming.erase(wire_.coming.begin());
    const Status status = wire::decode_admission(text, record);
    if (!status.ok()) return status;
    return true;
  }
  Status begun() const override { return {}; }

 private:
  Wire& wire_;
};

class Asking {
 public:
  explicit Asking(fuzz::Input in)
      : in_(in), core_([this](uint64_t, size_t row, const NetAddress&) {
          return std::make_unique<AskersLink>(wires_.at(row));
        }) {
    Registrar::Job job;
    job.aggregators = {{"a", 1}, {"b", 2}};
    job.ask = make_ask();
    job.secret = secrets().job;
    job.offer = [this](const std::vector<wire::StationEntry>& stations) {
      for (const auto& s : stations) require(proved_.count(s.uid) != 0, "a station of who has it");
    };
    core_.enter(kGroup, std::move(job), now_);
  }

  void run() {
    core_.turn(now_);
    while (!in_.empty()) {
      step();
      core_.turn(now_);
    }
    core_.leave(kGroup);
    core_.turn(now_);
    require(core_.stats(kGroup).empty() && core_.next() == kNever, "nothing is left");
  }

 private:
  static constexpr uint64_t kGroup = 77;

  void step() {
    const uint8_t what = in_.byte();
    const size_t row = what >> 7;
    Wire& wire = wires_.at(row);
    const uint64_t uid = uids_ > 100 ? 100 + in_.byte() % (uids_ - 100) : 0;
    switch (what & 7u) {
      case 0:
        now_ += Nanos{in_.byte()} * 50 * kMilli;
        return;
      case 1:
        wire.coming.push_back(challenge(wire));
        break;
      case 2:
      case 3:
        wire.coming.push_back(accept(wire, what >> 3 & 15u));
        break;
      case 4:
        wire.coming.push_back(wire::encode(wire::Admission(wire::Draining{})));
        break;
      case 5:
        wire.coming.push_back((what & 8u) != 0
                                  ? wire::encode(wire::Admission(wire::Refuse{"quota", "full"}))
                                  : rest_of(in_));
        break;
      case 6:
        if ((what & 8u) != 0) return (void)core_.lost(kGroup, uid, "gone", now_);
        return (void)core_.parted(kGroup, uid, now_);
      default:
        core_.settled(kGroup, {uid});
    }
    if (!has_link(row)) return wire.coming.clear();
    fuzz::handed();
    core_.arrived(kGroup, row, (what & 64u) != 0 ? Status(Code::kPeerLost, "over") : Status(),
                  now_);
  }

  bool has_link(size_t row) const {
    bool found = false;
    core_.for_each_link([&](uint64_t, size_t at, const RecordLink&) { found |= at == row; });
    return found;
  }

  std::string challenge(Wire& wire) {
    const uint8_t how = in_.byte();
    wire::Challenge challenge{(how & 3u) != 3 ? "sealed" : "auth",
                              (how & 12u) != 12 ? "n" + std::to_string(how) : ""};
    wire.challenged = true;
    const bool fits = challenge.security == "sealed" && !challenge.nonce.empty();
    if (fits && wire.nonce.empty()) wire.nonce = challenge.nonce;
    return wire::encode(wire::Admission(challenge));
  }

  std::string accept(const Wire& wire, unsigned how) {
    const unsigned proof = how & 3u;
    const bool here = (how & 4u) == 0, keyed = (how & 8u) == 0;
    wire::Accept accept;
    accept.process = 50;
    accept.quota = 1u << 20;
    accept.mtu = 1500;
    const uint64_t uid = uids_++;
    accept.stations.push_back({uid, "10.0.0.9", 7, 65536, {}});
    if (keyed) accept.stations[0].key.fill(std::byte{3});
    const std::string nonce = here ? wire.nonce : "n of another connection";
    if (proof == kRole && here && keyed && !wire.nonce.empty()) proved_.insert(uid);
    return secrets().prove(proof, nonce, "accept", wire::encode(wire::Admission(accept)),
                           wire.asked);
  }

  fuzz::Input in_;
  std::array<Wire, 2> wires_;
  std::set<uint64_t> proved_;
  uint64_t uids_ = 100;
  Nanos now_ = kSecond;
  RegistrarCore core_;
};

// Occupies a place and does nothing.
class Idle final : public service::StationRunner {
 public:
  explicit Idle(int& running) : running_(running) { running_++; }
  ~Idle() override { running_--; }
  wire::Accept::Station where() const override {
    wire::Accept::Station station{5, "10.0.0.9", 7, 0, {}};
    station.key.fill(std::byte{3});
    return station;
  }
  uint32_t largest_datagram() const override { return 1500; }
  void end(Nanos) override { ended_ = true; }
  std::optional<std::string> ended() const override { return std::nullopt; }
  bool finished() const override { return ended_; }
  service::StationReport report() const override { return {}; }

 private:
  int& running_;
  bool ended_ = false;
};

class Asked final : public service::Links {
 public:
  explicit Asked(fuzz::Input in) : in_(in) {
    options_.config.security = "sealed";
    options_.jobs = 3;
    options_.lanes = 1;
    service::JobSurroundings here;
    here.wake = [] {};
    here.run = [this](const service::StationSpec&) {
      require(proved_, "nothing runs for who has not proved its ask");
      return Result<std::unique_ptr<service::StationRunner>>(std::make_unique<Idle>(running_));
    };
    here.process = 50;
    here.guard = std::make_shared<service::AskGuard>(
        service::AskGuard{"sealed", role(), crypto::Key(std::array<std::byte, 32>{})});
    here.most_descriptors = [] { return uint64_t{100'000}; };
    here.make_room = [](uint64_t) {};
    jobs_ = std::make_unique<service::Jobs>(options_, *this, std::move(here));
  }

  void run() {
    while (!in_.empty()) {
      step();
      require(running_ <= 3, "so many jobs");
    }
    jobs_->end_all("the input is over", now_);
    jobs_->advance(now_);
    require(jobs_->empty() && running_ == 0, "nothing is left");
  }

 private:
  // The output of `torch-mcast secret aggregator`: a secret of its own, whose record key proves
  // requests.
  static const std::shared_ptr<const crypto::JobSecret>& role() {
    static const auto it = secret_of(9);
    return it;
  }

  void keep(service::LinkId) override {}
  void finish(service::LinkId link, Nanos) override { nonces_.erase(link); }
  void send_text(service::LinkId link, const std::string& text) override {
    wire::Admission record;
    require(wire::decode_admission(text, record).ok(), "what is said can be read");
    if (const auto* const c = std::get_if<wire::Challenge>(&record)) nonces_[link] = c->nonce;
    if (!std::holds_alternative<wire::Accept>(record)) return;
    require(crypto::without_mac(role()->record(),
                                crypto::said_over(nonces_.at(link), "accept", asked_), text)
                .has_value(),
            "an acceptance is proved for its connection and its ask");
  }

  void step() {
    const uint8_t what = in_.byte();
    if ((what & 7u) == 0) {
      now_ += Nanos{in_.byte()} * kSecond;
      return jobs_->advance(now_);
    }
    if ((what & 7u) == 1 && nonces_.size() < 8) return jobs_->on_link(next_++);
    if (nonces_.empty()) return;
    auto at = nonces_.begin();
    std::advance(at, in_.byte() % nonces_.size());
    const service::LinkId link = at->first;
    if ((what & 7u) == 2) {
      nonces_.erase(at);
      return jobs_->on_link_end(link, (what & 8u) != 0);
    }
    const std::string record = (what & 7u) == 3   ? rest_of(in_)
                               : (what & 7u) == 4 ? wire::encode(wire::Admission(wire::Bye{}))
                                                  : ask(at->second, what >> 3);
    fuzz::handed();
    asked_ = crypto::digest_text(record);
    jobs_->on_record(link, IpAddress::v4(0x0a000001), record, now_);
    proved_ = false;
  }

  // A request with a proof: a correct one, that of another connection, one with another key, one
  // that is changed afterwards, or none.
  std::string ask(const std::string& nonce, unsigned how) {
    wire::Ask ask = make_ask();
    if ((how & 3u) == 3) ask.security = "auth";
    const bool other = (how & 12u) == 4, unsaid = (how & 12u) == 8;
    if (unsaid) return wire::encode(wire::Admission(ask));
    std::string text =
        crypto::with_mac((how & 12u) == 12 ? secrets().job->record() : role()->record(),
                         crypto::said_over(other ? nonces_.begin()->second : nonce, "ask"),
                         wire::encode(wire::Admission(ask)));
    const std::string whole = text;
    if ((how & 16u) != 0) text[in_.byte() * 4u % text.size()] = static_cast<char>(in_.byte());
    const bool right = (how & 12u) == 0 || (other && nonces_.begin()->second == nonce);
    proved_ = right && text == whole;
    return text;
  }

  fuzz::Input in_;
  service::Options options_;
  std::map<service::LinkId, std::string> nonces_;  // of open links
  service::LinkId next_ = 1;
  int running_ = 0;
  bool proved_ = false;  // whether the current record is proved
  std::string asked_;    // its digest
  Nanos now_ = kSecond;
  std::unique_ptr<service::Jobs> jobs_;
};

// The records do not depend on how the bytes are split.
void cut(ConstBytes bytes, size_t at) {
  constexpr size_t kMost = 200;
  const std::string_view all =
      fuzz::text_of(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
  wire::RecordReader whole(kMost), pieces(kMost);
  std::vector<std::string> read, again;
  const auto take = [](wire::RecordReader& from, std::vector<std::string>& into) {
    for (std::string text; from.next(text);) {
      require(!text.empty() && text.size() <= kMost, "a record of a length that is allowed");
      into.push_back(text);
    }
  };
  whole.append(all);
  take(whole, read);
  for (size_t from = 0; from < all.size(); from += at) {
    pieces.append(all.substr(from, at));
    take(pieces, again);
  }
  require(read == again && whole.broken() == pieces.broken(), "the same records, the same end");
  std::string sent;
  for (const std::string& text : read) sent += wire::framed(text);
  require(all.substr(0, sent.size()) == sent, "written as they were read");
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  set_log_level(LogLevel::kOff);
  const ConstBytes rest = fuzz::bytes_of(data + 1, size - 1);
  if (data[0] % 3 == 0) Asking(fuzz::Input(rest)).run();
  if (data[0] % 3 == 1) Asked(fuzz::Input(rest)).run();
  if (data[0] % 3 == 2) cut(rest, 1u + data[0] / 3u);
  return 0;
}
