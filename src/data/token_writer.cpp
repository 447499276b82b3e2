#include "src/data/token_writer.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "src/base/check.h"
#include "src/data/token_file.h"

namespace llm {
namespace {

constexpr std::size_t block_bytes = std::size_t{1} << 20;

/// Four independent lanes of multiply and rotate, so that the sum runs at the speed of memory.
std::uint64_t add_block(std::uint64_t checksum, std::span<const std::byte> block) {
  constexpr std::uint64_t prime = 0x9E3779B185EBCA87;  // xxHash64's first
  const auto step = [](std::uint64_t lane, std::uint64_t word) {
    lane = (lane ^ word) * prime;
    return (lane << 31) | (lane >> 33);
  };
  std::array<std::uint64_t, 4> lanes{checksum, block.size(), prime, 1};
  std::array<std::uint64_t, 4> words{};
  for (std::size_t i = 0; i < block.size(); i += sizeof words) {
    words = {};
    std::memcpy(words.data(), block.data() + i, std::min(sizeof words, block.size() - i));
    for (std::size_t k = 0; k < lanes.size(); ++k) lanes[k] = step(lanes[k], words[k]);
  }
  return step(step(step(lanes[0], lanes[1]), lanes[2]), lanes[3]);
}

}  // namespace

TokenWriter::TokenWriter(const Config& config)
    : file_(config.path),
      wide_(config.n_ids > (1 << 16)),
      has_header_(config.format == TokenFormat::llmc) {
  CHECK_CONTRACT(has_header_ || !wide_, "nanoGPT's ids have two bytes");
  block_.reserve(block_bytes);
  const std::array<std::byte, TokenHeader::n_bytes> unwritten{};
  if (has_header_) file_.write(unwritten);
}

void TokenWriter::write(const std::int32_t* ids, std::int64_t n) {
  n_tokens_ += n;
  const std::int64_t token_bytes = wide_ ? 4 : 2;
  while (n > 0) {
    const std::size_t used = block_.size();
    const std::int64_t room = static_cast<std::int64_t>(block_bytes - used) / token_bytes;
    const std::int64_t n_here = std::min(n, room);
    block_.resize(used + static_cast<std::size_t>(n_here * token_bytes));
    std::byte* out = block_.data() + used;
    if (wide_) {
      std::memcpy(out, ids, static_cast<std::size_t>(n_here * token_bytes));
    } else {
      for (std::int64_t i = 0; i < n_here; ++i) {
        const auto id = static_cast<std::uint16_t>(ids[i]);
        std::memcpy(out + 2 * i, &id, sizeof id);
      }
    }
    if (block_.size() == block_bytes) flush();
    ids += n_here;
    n -= n_here;
  }
}

void TokenWriter::flush() {
  checksum_ = add_block(checksum_, block_);
  file_.write(block_);
  block_.clear();
}

std::uint64_t TokenWriter::finish() {
  if (!block_.empty()) flush();
  if (!has_header_) {
    file_.finish();
    return checksum_;
  }
  CHECK_CONTRACT(n_tokens_ < (std::int64_t{1} << 31), "llm.c's header counts tokens in 31 bits");
  std::array<std::int32_t, TokenHeader::n_words> header{};
  header[0] = wide_ ? TokenHeader::magic_u32 : TokenHeader::magic_u16;
  header[1] = wide_ ? 7 : 1;
  header[2] = static_cast<std::int32_t>(n_tokens_);
  file_.write_at(0, std::as_bytes(std::span(header)));
  file_.finish();
  return checksum_;
}

std::uint64_t checksum_tokens(const std::string& path) {
  const InputFile file(path);
  std::vector<std::byte> block(block_bytes);
  std::uint64_t checksum = 0;
  for (std::int64_t at = TokenHeader::n_bytes; at < file.n_bytes();) {
    const auto n = std::min(block.size(), static_cast<std::size_t>(file.n_bytes() - at));
    file.read_at(at, std::span(block).first(n));
    checksum = add_block(checksum, std::span(block).first(n));
    at += static_cast<std::int64_t>(n);
  }
  return checksum;
}

}  // namespace llm
