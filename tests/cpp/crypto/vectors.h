// Reads tests/data/security_vectors.json, the results of a second implementation.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <map>
#include <string>

#include "crypto/bytes.h"
#include "crypto/key.h"
#include "support/place.h"

namespace mcast::crypto {

class Vectors {
 public:
  Vectors() {
    std::ifstream file(std::string(test::kSourceDir) + "/tests/data/security_vectors.json");
    const std::string text(std::istreambuf_iterator<char>(file), {});
    // One object of strings: each quoted text is a name, then its value.
    std::string name;
    bool is_name = true;
    for (size_t at = text.find('"'); at != std::string::npos; at = text.find('"', at + 1)) {
      const size_t end = text.find('"', at + 1);
      if (is_name) {
        name = text.substr(at + 1, end - at - 1);
      } else {
        values_[name] = text.substr(at + 1, end - at - 1);
      }
      is_name = !is_name;
      at = end;
    }
    EXPECT_GT(values_.size(), 60u);
  }
  const std::string& hex(const std::string& name) const {
    static const std::string none = "no such vector";
    const auto at = values_.find(name);
    return at == values_.end() ? none : at->second;
  }
  std::vector<std::byte> bytes(const std::string& name) const { return unhex(hex(name)); }
  template <size_t N>
  std::array<std::byte, N> array(const std::string& name) const {
    return array_of<N>(bytes(name));
  }
  Key key(const std::string& name) const { return Key(array<kKeySize>(name)); }

 private:
  std::map<std::string, std::string> values_;
};

}  // namespace mcast::crypto
