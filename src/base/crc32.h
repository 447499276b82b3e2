#pragma once
#include <cstddef>
#include <cstdint>

namespace llm {

/// The CRC-32 of zlib, gzip and PNG (polynomial 0xEDB88320, reflected): every change of up to 32
/// neighbouring bits gives another value. Python's zlib.crc32 computes the same.
class Crc32 {
 public:
  void add(const void* bytes, std::size_t n);
  std::uint32_t value() const { return ~state_; }

 private:
  std::uint32_t state_ = 0xFFFFFFFFu;
};

std::uint32_t crc32(const void* bytes, std::size_t n);
/// Castagnoli's (polynomial 0x82F63B78, reflected), as iSCSI and TensorFlow's records have it.
std::uint32_t crc32c(const void* bytes, std::size_t n);

}  // namespace llm
