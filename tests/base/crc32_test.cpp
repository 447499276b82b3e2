#include "src/base/crc32.h"

#include <catch2/catch.hpp>
#include <numeric>
#include <string>
#include <vector>

using namespace llm;

TEST_CASE("both CRCs have the value that their catalogue gives for the nine digits") {
  const std::string digits = "123456789";
  CHECK(crc32(digits.data(), digits.size()) == 0xCBF43926u);
  CHECK(crc32c(digits.data(), digits.size()) == 0xE3069283u);
}

TEST_CASE("CRC-32C has the values of RFC 3720's appendix B.4") {
  std::vector<unsigned char> bytes(32, 0);
  CHECK(crc32c(bytes.data(), bytes.size()) == 0x8A9136AAu);
  bytes.assign(32, 0xFF);
  CHECK(crc32c(bytes.data(), bytes.size()) == 0x62A8AB43u);
  std::iota(bytes.begin(), bytes.end(), 0);
  CHECK(crc32c(bytes.data(), bytes.size()) == 0x46DD794Eu);
  CHECK(crc32c(bytes.data(), 0) == 0);
}
