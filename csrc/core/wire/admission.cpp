// A record is a map of fields; "record" names its type. Lists are numbers separated by blanks.
// Every field is checked when it is read, and the first wrong one is reported as the reason.
#include "wire/admission.h"

#include <algorithm>

#include "base/hex.h"
#include "wire/aggregation.h"
#include "wire/text_record.h"

namespace mcast::wire {
namespace {

// Reads the fields of one record and remembers the first wrong one.
class FieldReader {
 public:
  explicit FieldReader(const Fields& fields) : fields_(fields) {}

  template <typename T>
  void read(const char* key, T& out, uint64_t most = std::numeric_limits<T>::max()) {
    if (!number(fields_, key, out, most)) wrong(key);
  }
  void read(const char* key, std::string& out) {
    const auto it = fields_.find(key);
    if (it == fields_.end()) return wrong(key);
    out = it->second;
  }
  // At least one number, at most `count` of them.
  template <typename T>
  void read_list(const char* key, std::vector<T>& out, size_t count,
                 uint64_t most = std::numeric_limits<T>::max()) {
    std::string text;
    read(key, text);
    for (size_t at = 0; at <= text.size() && wrong_.empty();) {
      const size_t end = std::min(text.find(' ', at), text.size());
      T value{};
      if (out.size() == count ||
          !read_number(std::string_view(text).substr(at, end - at), value, most)) {
        return wrong(key);
      }
      out.push_back(value);
      at = end + 1;
    }
  }
  void wrong(const char* key) {
    if (wrong_.empty()) wrong_ = key;
  }
  bool has(const std::string& key) const { return fields_.find(key) != fields_.end(); }

  Status status() const {
    if (wrong_.empty()) return {};
    return Status(Code::kInvalidArgument,
                  "an admission record whose \"" + wrong_ + "\" is missing or out of range");
  }

 private:
  const Fields& fields_;
  std::string wrong_;
};

template <typename T>
std::string list_text(const std::vector<T>& numbers) {
  std::string text;
  for (const T n : numbers) text += (text.empty() ? "" : " ") + std::to_string(n);
  return text;
}

std::string key_key(size_t index) { return "key" + std::to_string(index); }
std::string station_key(size_t index) { return "station" + std::to_string(index); }

void put(std::string& out, const Ask& ask) {
  put_field(out, "record", "ask");
  put_field(out, "version", ask.version);
  put_field(out, "protocol", std::to_string(ask.protocol));
  put_field(out, "transport", ask.transport);
  put_field(out, "tag", std::to_string(ask.tag));
  put_field(out, "name", ask.name);
  put_field(out, "uids", list_text(ask.uids));
  put_field(out, "host_of", list_text(ask.host_of));
  put_field(out, "chunk", std::to_string(ask.chunk));
  put_field(out, "incast", std::to_string(ask.incast));
  put_field(out, "fold", ask.fold);
  put_field(out, "aggregate", ask.aggregate);
  put_field(out, "roster", std::to_string(ask.roster));
  put_field(out, "memory", std::to_string(ask.memory));
  put_field(out, "link_rate", std::to_string(ask.link_rate));
  put_field(out, "rack", ask.rack);
  if (!ask.security.empty()) {
    std::string keys;
    for (const EndpointKey& key : ask.keys) keys += hex_text(key);
    put_field(out, "security", ask.security);
    put_field(out, "keys", keys);
  }
  if (ask.racks.empty()) return;
  std::string names;
  for (const std::string& name : ask.racks) names += (names.empty() ? "" : " ") + name;
  put_field(out, "racks", names);
  put_field(out, "rack_of", list_text(ask.rack_of));
}

void put(std::string& out, const Accept& accept) {
  put_field(out, "record", "accept");
  put_field(out, "process", std::to_string(accept.process));
  put_field(out, "quota", std::to_string(accept.quota));
  put_field(out, "mtu", std::to_string(accept.mtu));
  for (size_t i = 0; i < accept.stations.size(); i++) {
    const Accept::Station& s = accept.stations[i];
    put_field(out, station_key(i),
              std::to_string(s.uid) + " " + std::to_string(s.port) + " " +
                  std::to_string(s.capacity) + " " + s.host);
    if (s.key != EndpointKey{}) put_field(out, key_key(i), hex_text(s.key));
  }
}

void put(std::string& out, const Refuse& refuse) {
  put_field(out, "record", "refuse");
  put_field(out, "code", refuse.code);
  put_field(out, "text", refuse.text);
}

void put(std::string& out, const Challenge& challenge) {
  put_field(out, "record", "challenge");
  put_field(out, "security", challenge.security);
  put_field(out, "nonce", challenge.nonce);
}

void put(std::string& out, const Bye&) { put_field(out, "record", "bye"); }
void put(std::string& out, const Draining&) { put_field(out, "record", "draining"); }

void read_keys(FieldReader& in, Ask& ask) {
  in.read("security", ask.security);
  std::string text;
  in.read("keys", text);
  constexpr size_t kDigits = 2 * sizeof(EndpointKey);
  if (ask.security.empty()) in.wrong("security");
  if (text.size() != kDigits * ask.uids.size()) return in.wrong("keys");
  for (size_t i = 0; i < ask.uids.size(); i++) {
    EndpointKey& key = ask.keys.emplace_back();
    if (!from_hex(text.substr(i * kDigits, kDigits), key) || key == EndpointKey{}) in.wrong("keys");
  }
}

void read_record(FieldReader& in, Ask& ask) {
  in.read("version", ask.version);
  in.read("protocol", ask.protocol);
  in.read("transport", ask.transport);
  in.read("tag", ask.tag);
  in.read("name", ask.name);
  in.read_list("uids", ask.uids, kMaxAdmissionRanks);
  in.read_list("host_of", ask.host_of, kMaxAdmissionRanks, ask.uids.size() - 1);
  if (ask.host_of.size() != ask.uids.size()) in.wrong("host_of");
  in.read("chunk", ask.chunk);
  in.read("incast", ask.incast);
  in.read("fold", ask.fold);
  in.read("aggregate", ask.aggregate);
  in.read("roster", ask.roster);
  in.read("memory", ask.memory);
  in.read("link_rate", ask.link_rate);
  in.read("rack", ask.rack);
  if (in.has("security")) read_keys(in, ask);
  if (!in.has("racks")) return;
  std::string names;
  in.read("racks", names);
  for (size_t at = 0; at <= names.size();) {
    const size_t end = std::min(names.find(' ', at), names.size());
    ask.racks.push_back(names.substr(at, end - at));
    if (ask.racks.back().empty()) in.wrong("racks");
    at = end + 1;
  }
  in.read_list("rack_of", ask.rack_of, kMaxAdmissionRanks, ask.racks.size());
  if (ask.rack_of.size() != ask.uids.size()) in.wrong("rack_of");
}

// "uid port capacity host".
bool parse_station(std::string_view text, Accept::Station& out) {
  std::string_view parts[3];
  for (std::string_view& part : parts) {
    const size_t blank = text.find(' ');
    if (blank == std::string_view::npos) return false;
    part = text.substr(0, blank);
    text.remove_prefix(blank + 1);
  }
  out.host = std::string(text);
  return !text.empty() && text.size() <= 255 && text.find(' ') == std::string_view::npos &&
         read_number(parts[0], out.uid) && read_number(parts[1], out.port) &&
         read_number(parts[2], out.capacity);
}

void read_record(FieldReader& in, Accept& accept) {
  in.read("process", accept.process);
  in.read("quota", accept.quota);
  in.read("mtu", accept.mtu);
  for (size_t i = 0; i == 0 || in.has(station_key(i)); i++) {
    std::string text;
    Accept::Station station;
    in.read(station_key(i).c_str(), text);
    if (i == kMostStations || !parse_station(text, station)) {
      in.wrong(station_key(i).c_str());
      break;
    }
    if (in.has(key_key(i))) {
      in.read(key_key(i).c_str(), text);
      if (!from_hex(text, station.key)) in.wrong(key_key(i).c_str());
    }
    accept.stations.push_back(std::move(station));
  }
}

void read_record(FieldReader& in, Refuse& refuse) {
  in.read("code", refuse.code);
  in.read("text", refuse.text);
}

void read_record(FieldReader& in, Challenge& challenge) {
  in.read("security", challenge.security);
  in.read("nonce", challenge.nonce);
}

}  // namespace

std::string encode(const Admission& record) {
  std::string out;
  std::visit([&out](const auto& r) { put(out, r); }, record);
  return out;
}

Ask ask_heading(std::string_view text) {
  Ask ask;
  Fields fields = fields_of(text.substr(0, kMaxAdmission));
  if (fields["record"] == "ask" && number(fields, "protocol", ask.protocol)) {
    ask.version = fields["version"];
    ask.security = fields["security"];
  }
  return ask;
}

Status decode_admission(std::string_view text, Admission& out) {
  if (text.size() > kMaxAdmission) {
    return Status(Code::kInvalidArgument, "an admission record of " + std::to_string(text.size()) +
                                              " bytes; at most " + std::to_string(kMaxAdmission));
  }
  const Fields fields = fields_of(text);
  FieldReader in(fields);
  std::string kind;
  in.read("record", kind);
  if (kind == "ask") {
    read_record(in, out.emplace<Ask>());
  } else if (kind == "accept") {
    read_record(in, out.emplace<Accept>());
  } else if (kind == "refuse") {
    read_record(in, out.emplace<Refuse>());
  } else if (kind == "challenge") {
    read_record(in, out.emplace<Challenge>());
  } else if (kind == "bye") {
    out.emplace<Bye>();
  } else if (kind == "draining") {
    out.emplace<Draining>();
  } else {
    in.wrong("record");
  }
  return in.status();
}

}  // namespace mcast::wire
