// A job's store at a host engine, as strangers see it. The first byte selects any bytes, in pieces,
// for the reader of records; or a script of clients that connect, send requests, wait and leave
// while time passes, whose records are sometimes altered in transit. Every request gets one reply,
// at once or later, which a record can hold; values are those that were stored last; and when all
// clients have left, nothing remains.
#include <charconv>
#include <map>
#include <string>
#include <vector>

#include "fuzz.h"
#include "host_engine/server/store_table.h"

namespace mcast::fuzz {
namespace {

using service::StoreTable;
using wire::StoreOp;
using wire::StoreReader;
using wire::StoreRecord;

void read_any(Input in) {
  StoreReader reader;
  std::string fed;
  size_t used = 0;
  while (!in.empty() && !reader.broken()) {
    std::string piece;
    for (int n = in.byte() & 31; n > 0 && !in.empty(); n--) piece += static_cast<char>(in.byte());
    reader.feed(piece);
    fed += piece;
    while (const auto record = reader.next()) {
      const std::string again = wire::bytes_of(*record);
      require(fed.compare(used, again.size(), again) == 0, "a record stays what it is");
      used += again.size();
    }
    require(reader.broken() || reader.waiting() == fed.size() - used, "nothing is passed over");
  }
}

bool read_signed(const std::string& text, int64_t& out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc() && end == text.data() + text.size();
}

class Script {
 public:
  explicit Script(ConstBytes input) : in_(input) {}

  void run() {
    while (!in_.empty()) {
      const uint8_t what = in_.byte();
      const StoreTable::Client client = what & 3u;
      switch ((what >> 2) & 7u) {
        case 0:
          leave(client);
          break;
        case 1:
          now_ += Nanos{1} << (in_.byte() & 35u);
          if (now_ >= table_.deadline()) late();
          break;
        default:
          ask(client, what);
          break;
      }
    }
    for (StoreTable::Client client = 0; client < 4; client++) leave(client);
    require(table_.stores() == 0 && table_.bytes() == 0, "nothing is left");
    require(table_.deadline() == kNever, "nobody waits");
  }

 private:
  struct Asked {
    StoreRecord question;
    int answers = 0;
  };

  std::string part() {
    const uint8_t what = in_.byte();
    if (what < 64) return std::string(1, static_cast<char>('a' + what % 4));
    if (what < 128) return std::to_string(static_cast<int64_t>(what) - 80);
    if (what < 160) return std::to_string(INT64_MIN + (what - 128));
    if (what < 192) return std::to_string(INT64_MAX - (what - 160));
    std::string bytes;
    for (int n = what & 15; n > 0; n--) bytes += static_cast<char>(in_.byte());
    return bytes;
  }

  void ask(StoreTable::Client client, uint8_t what) {
    StoreRecord record{static_cast<StoreOp>(1 + in_.byte() % 12), {}};
    const bool known = stores_.count(client) > 0;
    if (!known && what < 240) {
      record = {StoreOp::kOpen, {"h", "1", std::string(1, static_cast<char>('x' + what % 2)), "0"}};
    } else {
      for (int n = in_.byte() & 7; n > 0; n--) record.parts.push_back(part());
    }
    std::string bytes = wire::bytes_of(record);
    if (what >= 224) bytes[in_.byte() % bytes.size()] = static_cast<char>(in_.byte());
    StoreReader reader;
    reader.feed(bytes);
    const auto read = reader.next();
    if (!read) return;  // disconnected, or more bytes are needed
    handed();
    if (!known) require(table_.admit(client, IpAddress::v4(static_cast<uint32_t>(client))), "room");
    table_.on_taken(client);
    require(table_.expect(client, bytes.size()), "room");
    const bool waited = table_.waits(client);
    if (!waited) asked_[client] = {*read, 0};
    const bool good = table_.on_record(client, *read, now_);
    require(!good || !waited, "one question at a time");
    if (!good) return leave(client);
    require((asked_[client].answers == 1) != table_.waits(client), "answered, or it waits");
  }

  void leave(StoreTable::Client client) {
    table_.on_end(client);
    require(!table_.waits(client), "who has gone does not wait");
    asked_.erase(client);
    const auto it = stores_.find(client);
    if (it == stores_.end()) return;
    const std::string name = it->second;
    stores_.erase(it);
    for (const auto& [other, its] : stores_) {
      if (its == name) return;
    }
    values_.erase(name);
  }

  void late() {
    table_.advance(now_);
    require(table_.deadline() > now_, "who has waited long enough is answered");
  }

  void on_answer(StoreTable::Client client, const StoreRecord& answer) {
    require(asked_.count(client) > 0, "nobody is answered who has not asked");
    Asked& asked = asked_[client];
    asked.answers++;
    require(asked.answers == 1, "one answer");
    require(wire::fits(answer), "an answer that can be sent");
    const auto& parts = asked.question.parts;
    if (answer.op == StoreOp::kLate) {
      require(!answer.parts.empty(), "some key is missing");
      for (const std::string& key : answer.parts) {
        require(values(client).count(key) == 0, "it is missing");
      }
    }
    if (answer.op != StoreOp::kDone) return;
    if (asked.question.op == StoreOp::kOpen) {
      stores_[client] = parts[2];
      return;
    }
    follow(values(client), asked.question, answer.parts);
  }

  // Checks the reply and updates the expected values.
  static void follow(std::map<std::string, std::string>& there, const StoreRecord& question,
                     const std::vector<std::string>& answer) {
    const auto& parts = question.parts;
    const auto all = [&](size_t from) {
      for (size_t i = from; i < parts.size(); i++) {
        if (there.count(parts[i]) == 0) return false;
      }
      return true;
    };
    switch (question.op) {
      case StoreOp::kSet:
      case StoreOp::kMultiSet:
        for (size_t i = 0; i < parts.size(); i += 2) there[parts[i]] = parts[i + 1];
        break;
      case StoreOp::kCompareSet: {
        const bool same =
            there.count(parts[0]) > 0 ? there[parts[0]] == parts[1] : parts[1].empty();
        require(!same || answer[0] == parts[2], "what was desired");
        if (same) there[parts[0]] = parts[2];
        break;
      }
      case StoreOp::kAdd: {
        int64_t before = 0, sum = 0;
        require(there.count(parts[0]) == 0 || read_signed(there[parts[0]], before), "a number");
        require(read_signed(parts[1], sum) && !__builtin_add_overflow(before, sum, &sum) &&
                    answer[0] == std::to_string(sum),
                "the sum");
        there[parts[0]] = answer[0];
        break;
      }
      case StoreOp::kAppend:
        there[parts[0]] += parts[1];
        break;
      case StoreOp::kDelete:
        require(answer[0] == (there.erase(parts[0]) > 0 ? "1" : "0"), "what was there");
        break;
      case StoreOp::kCheck:
        require(answer[0] == (all(0) ? "1" : "0"), "whether all are there");
        break;
      case StoreOp::kCount:
        require(answer[0] == std::to_string(there.size()), "how many");
        break;
      case StoreOp::kList:
        require(answer.size() == there.size(), "all keys");
        break;
      case StoreOp::kWait:
        require(all(1), "all are there");
        break;
      case StoreOp::kGet:
        require(all(1) && answer.size() == parts.size() - 1, "all values");
        for (size_t i = 0; i < answer.size(); i++) {
          require(answer[i] == there[parts[i + 1]], "the value");
        }
        break;
      default:
        break;
    }
  }

  std::map<std::string, std::string>& values(StoreTable::Client client) {
    return values_[stores_[client]];
  }

  Input in_;
  Nanos now_ = kSecond;
  std::map<StoreTable::Client, Asked> asked_;
  std::map<StoreTable::Client, std::string> stores_;
  std::map<std::string, std::map<std::string, std::string>> values_;
  StoreTable table_{
      [this](StoreTable::Client client, const StoreRecord& record) { on_answer(client, record); }};
};

}  // namespace
}  // namespace mcast::fuzz

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace mcast::fuzz;
  if (size == 0) return 0;
  const mcast::ConstBytes rest = bytes_of(data + 1, size - 1);
  if (data[0] % 4 == 0) {
    read_any(Input(rest));
  } else {
    Script(rest).run();
  }
  return 0;
}
