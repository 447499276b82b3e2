#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "src/data/tokenizer_json.h"

namespace llm {

/// A table from short byte strings to ids: open addressing, the first 8 bytes beside the id.
class WordTable {
 public:
  /// Keeps views of the words: they outlive the table.
  void reserve(std::size_t n_words);
  void put(std::string_view word, std::int32_t id);
  std::int32_t find(std::string_view word) const;  ///< -1: none

 private:
  struct Slot {
    std::uint64_t head = 0;
    std::string_view word;
    std::int32_t id = -1;
  };
  std::vector<Slot> slots_;
  std::size_t mask_ = 0;
};

/// Pairs of ids to the rank of their merge.
class PairTable {
 public:
  static constexpr std::int32_t none = INT32_MAX;
  explicit PairTable(const std::vector<Merge>& merges);
  std::int32_t rank_of(std::int32_t left, std::int32_t right) const;  ///< or none

 private:
  struct Slot {
    std::uint64_t pair = 0;
    std::int32_t rank = none;
  };
  std::vector<Slot> slots_;
  std::size_t mask_ = 0;
};

/// Byte pair encoding of one piece: from its bytes, the pair of neighbours whose merge has the
/// lowest rank becomes one token, the leftmost of equals first, until no pair has a merge.
class Bpe {
 public:
  explicit Bpe(const BpeSpec& spec);
  Bpe(const Bpe&) = delete;
  Bpe& operator=(const Bpe&) = delete;
  /// Appends the ids of `piece`, in at most n log n steps of its bytes.
  void encode(std::string_view piece, std::vector<std::int32_t>& ids) const;
  const std::string& bytes_of(std::int32_t id) const {
    return tokens_[static_cast<std::size_t>(id)];
  }
  std::int64_t n_ids() const { return static_cast<std::int64_t>(tokens_.size()); }

 private:
  void merge(std::string_view piece, std::vector<std::int32_t>& ids) const;
  void merge_short(std::string_view piece, std::vector<std::int32_t>& ids) const;
  void merge_long(std::string_view piece, std::vector<std::int32_t>& ids) const;
  std::int32_t byte_id(char byte) const { return byte_ids_[static_cast<unsigned char>(byte)]; }

  std::vector<std::string> tokens_;
  std::vector<std::int32_t> byte_ids_;
  std::vector<std::int32_t> merged_;  // by rank
  PairTable pairs_;
  WordTable whole_;  // pieces that are one token in the end
};

}  // namespace llm
