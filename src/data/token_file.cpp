#include "src/data/token_file.h"

#include <fmt/core.h>

#include <array>
#include <cstring>
#include <vector>

#include "src/base/check.h"
#include "src/base/error.h"

namespace llm {
namespace {

/// What llm.c writes besides training tokens, by its first word.
const char* other_llmc_file(std::int32_t magic) {
  switch (magic) {
    case 20240522:
      return "evaluation data";
    case 20240326:
      return "a model";
    case 20240327:
      return "a debug state";
    case 20240527:
      return "an optimizer state";
    case 20240328:
      return "a tokenizer";
    default:
      return nullptr;
  }
}

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
  throw DataError(path + ": " + why);
}

}  // namespace

TokenFile::TokenFile(const std::string& path) : file_(path) {
  const std::int64_t size = file_.n_bytes();
  if (size == 0) refuse(path, "is empty; a token file has at least one token");
  std::array<std::int32_t, 3> header{};
  const std::int64_t n_head = std::min<std::int64_t>(size, sizeof header);
  file_.read_at(0,
                std::as_writable_bytes(std::span(header)).first(static_cast<std::size_t>(n_head)));
  const auto [magic, version, count] = header;
  if (const char* what = other_llmc_file(magic); size >= 4 && what != nullptr) {
    refuse(path, fmt::format("is {} of llm.c (magic {}), not training tokens (magic {} or {})",
                             what, magic, TokenHeader::magic_u16, TokenHeader::magic_u32));
  }
  if (size < 4 || (magic != TokenHeader::magic_u16 && magic != TokenHeader::magic_u32)) {
    if (size % 2 != 0) {
      refuse(path,
             fmt::format("has {} bytes, an odd number; without llm.c's header (magic {} or {}) "
                         "tokens are 2 bytes each",
                         size, TokenHeader::magic_u16, TokenHeader::magic_u32));
    }
    n_tokens_ = size / 2;
    return;
  }
  if (size < TokenHeader::n_bytes) {
    refuse(path, fmt::format("has {} bytes, but llm.c's header alone has {}", size,
                             TokenHeader::n_bytes));
  }
  const bool wide = magic == TokenHeader::magic_u32;
  const std::int32_t expected_version = wide ? 7 : 1;
  if (version != expected_version) {
    refuse(path, fmt::format("has version {} of llm.c's token format with magic {}; expected {}",
                             version, magic, expected_version));
  }
  token_bytes_ = wide ? 4 : 2;
  header_bytes_ = TokenHeader::n_bytes;
  const std::int64_t expected_size = header_bytes_ + std::int64_t{count} * token_bytes_;
  if (count < 1 || size != expected_size) {
    refuse(path, fmt::format("has {} bytes, but its header says {} tokens of {} bytes: {} bytes",
                             size, count, token_bytes_, expected_size));
  }
  n_tokens_ = count;
}

void TokenFile::read(std::int64_t begin, std::int64_t n, std::int32_t* out) const {
  CHECK_CONTRACT(begin >= 0 && n >= 0 && begin + n <= n_tokens_, "tokens lie in their file");
  const std::span<std::int32_t> ids(out, static_cast<std::size_t>(n));
  std::span<std::byte> bytes = std::as_writable_bytes(ids);
  const std::int64_t offset = header_bytes_ + begin * token_bytes_;
  if (token_bytes_ == 4) {
    file_.read_at(offset, bytes);
    return;
  }
  // The u16 tokens go to the upper half of `out` and spread out from there, front to back.
  const std::span<std::byte> upper = bytes.subspan(bytes.size() / 2);
  file_.read_at(offset, upper);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    std::uint16_t id = 0;
    std::memcpy(&id, upper.data() + 2 * i, sizeof id);
    ids[i] = id;
  }
}

void check_ids(const std::string& path, std::int64_t first, std::int64_t vocab_size,
               const std::int32_t* ids, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) {
    const std::int64_t id = static_cast<std::uint32_t>(ids[i]);
    if (id >= vocab_size) {
      throw DataError(fmt::format(
          "{}: token {} has id {}, but model.vocab_size is {}; use the vocabulary of the tokenizer "
          "that wrote the file",
          path, first + i, id, vocab_size));
    }
  }
}

}  // namespace llm
