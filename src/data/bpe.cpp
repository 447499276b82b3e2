#include "src/data/bpe.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <queue>

namespace llm {
namespace {

constexpr std::size_t max_short =
    48;  // bytes; above, a heap of pairs is faster than looking at all

std::uint64_t mixed(std::uint64_t key) {
  key *= 0x9E3779B97F4A7C15;  // 2^64 over the golden ratio
  return key ^ key >> 32;
}

template <class T>
std::uint64_t load(const char* from) {
  T value{};
  std::memcpy(&value, from, sizeof value);
  return value;
}

/// The first 8 bytes; of a shorter word all of it, so that words of one length differ.
std::uint64_t head_of(std::string_view word) {
  const char* const p = word.data();
  const std::size_t n = word.size();
  if (n >= 8) return load<std::uint64_t>(p);
  if (n >= 4) return load<std::uint32_t>(p) | load<std::uint32_t>(p + n - 4) << 32;
  if (n >= 2) return load<std::uint16_t>(p) | load<std::uint16_t>(p + n - 2) << 16;
  return static_cast<unsigned char>(p[0]);
}

std::uint64_t hash_of(std::string_view word, std::uint64_t head) {
  const std::uint64_t tail =
      word.size() > 8 ? load<std::uint64_t>(word.data() + word.size() - 8) : 0;
  return mixed(head ^ mixed(tail + word.size()));
}

std::uint64_t pair_of(std::int32_t left, std::int32_t right) {
  return std::uint64_t{static_cast<std::uint32_t>(left)} << 32 | static_cast<std::uint32_t>(right);
}

/// A power of two of slots, at most half of them used.
std::size_t n_slots_for(std::size_t n) {
  return std::bit_ceil(2 * n + 2);
}

}  // namespace

void WordTable::reserve(std::size_t n_words) {
  slots_.assign(n_slots_for(n_words), {});
  mask_ = slots_.size() - 1;
}

void WordTable::put(std::string_view word, std::int32_t id) {
  const std::uint64_t head = head_of(word);
  std::size_t at = hash_of(word, head) & mask_;
  while (slots_[at].id >= 0) at = (at + 1) & mask_;
  slots_[at] = {head, word, id};
}

std::int32_t WordTable::find(std::string_view word) const {
  const std::uint64_t head = head_of(word);
  for (std::size_t at = hash_of(word, head) & mask_; slots_[at].id >= 0; at = (at + 1) & mask_) {
    const Slot& slot = slots_[at];
    if (slot.head != head || slot.word.size() != word.size()) continue;
    if (word.size() <= 8 || slot.word == word) return slot.id;
  }
  return -1;
}

PairTable::PairTable(const std::vector<Merge>& merges)
    : slots_(n_slots_for(merges.size())), mask_(slots_.size() - 1) {
  for (std::size_t rank = 0; rank < merges.size(); ++rank) {
    const std::uint64_t pair = pair_of(merges[rank].left, merges[rank].right);
    std::size_t at = mixed(pair) & mask_;
    while (slots_[at].rank != none) at = (at + 1) & mask_;
    slots_[at] = {pair, static_cast<std::int32_t>(rank)};
  }
}

std::int32_t PairTable::rank_of(std::int32_t left, std::int32_t right) const {
  const std::uint64_t pair = pair_of(left, right);
  for (std::size_t at = mixed(pair) & mask_; slots_[at].rank != none; at = (at + 1) & mask_) {
    if (slots_[at].pair == pair) return slots_[at].rank;
  }
  return none;
}

Bpe::Bpe(const BpeSpec& spec) : byte_ids_(256), pairs_(spec.merges) {
  for (const BpeSpec::Token& token : spec.tokens) tokens_.push_back(token.bytes);
  for (const Merge& merge : spec.merges) merged_.push_back(merge.merged);
  std::vector<bool> is_special(tokens_.size());
  for (const AddedToken& token : spec.added) {
    if (token.is_special) is_special[static_cast<std::size_t>(token.id)] = true;
  }
  for (std::size_t id = 0; id < tokens_.size(); ++id) {
    if (spec.tokens[id].is_spelled && tokens_[id].size() == 1) {
      byte_ids_[static_cast<unsigned char>(tokens_[id][0])] = static_cast<std::int32_t>(id);
    }
  }
  whole_.reserve(tokens_.size());
  std::vector<std::int32_t> ids;
  for (std::size_t i = 0; i < tokens_.size(); ++i) {
    if (!spec.tokens[i].is_spelled || tokens_[i].empty()) continue;
    const auto id = static_cast<std::int32_t>(i);
    ids.clear();
    // Where merges are ignored a special token's spelling still is not that token.
    if (!spec.ignores_merges || is_special[i]) merge(tokens_[i], ids);
    const bool is_merged = ids.size() == 1 && ids.front() == id;
    if (ids.empty() || is_merged) whole_.put(tokens_[i], id);
  }
}

void Bpe::encode(std::string_view piece, std::vector<std::int32_t>& ids) const {
  const std::int32_t id = whole_.find(piece);
  if (id >= 0) {
    ids.push_back(id);
  } else {
    merge(piece, ids);
  }
}

void Bpe::merge(std::string_view piece, std::vector<std::int32_t>& ids) const {
  if (piece.size() <= max_short) {
    merge_short(piece, ids);
  } else {
    merge_long(piece, ids);
  }
}

void Bpe::merge_short(std::string_view piece, std::vector<std::int32_t>& ids) const {
  std::array<std::int32_t, max_short> part;
  std::array<std::int32_t, max_short> rank;  // of parts i and i + 1
  std::size_t n = piece.size();
  for (std::size_t i = 0; i < n; ++i) part[i] = byte_id(piece[i]);
  for (std::size_t i = 0; i + 1 < n; ++i) rank[i] = pairs_.rank_of(part[i], part[i + 1]);
  while (n > 1) {
    std::size_t best = 0;
    for (std::size_t i = 1; i + 1 < n; ++i) best = rank[i] < rank[best] ? i : best;
    if (rank[best] == PairTable::none) break;
    part[best] = merged_[static_cast<std::size_t>(rank[best])];
    --n;
    for (std::size_t i = best + 1; i < n; ++i) part[i] = part[i + 1];
    for (std::size_t i = best + 1; i + 1 < n; ++i) rank[i] = rank[i + 1];
    if (best + 1 < n) rank[best] = pairs_.rank_of(part[best], part[best + 1]);
    if (best > 0) rank[best - 1] = pairs_.rank_of(part[best - 1], part[best]);
  }
  ids.insert(ids.end(), part.begin(), part.begin() + static_cast<std::ptrdiff_t>(n));
}

void Bpe::merge_long(std::string_view piece, std::vector<std::int32_t>& ids) const {
  struct Part {
    std::int32_t id;
    std::size_t before;
    std::size_t after;  // piece.size(): none
  };
  struct Candidate {
    std::int32_t rank;
    std::size_t at;
    bool operator>(const Candidate& other) const {
      return rank != other.rank ? rank > other.rank : at > other.at;
    }
  };
  constexpr std::int32_t gone = -1;
  const std::size_t n = piece.size();
  std::vector<Part> parts;
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> candidates;
  const auto rank_at = [&](std::size_t at) {
    return parts[at].id == gone || parts[at].after == n
               ? PairTable::none
               : pairs_.rank_of(parts[at].id, parts[parts[at].after].id);
  };
  const auto consider = [&](std::size_t at) {
    const std::int32_t rank = rank_at(at);
    if (rank != PairTable::none) candidates.push({rank, at});
  };
  for (std::size_t i = 0; i < n; ++i) parts.push_back({byte_id(piece[i]), i - 1, i + 1});
  for (std::size_t i = 0; i < n; ++i) consider(i);
  while (!candidates.empty()) {
    const auto [rank, at] = candidates.top();
    candidates.pop();
    if (rank_at(at) != rank) continue;  // one of the two has become part of another
    Part& part = parts[at];
    Part& right = parts[part.after];
    part.id = merged_[static_cast<std::size_t>(rank)];
    part.after = right.after;
    right.id = gone;
    if (part.after < n) parts[part.after].before = at;
    consider(at);
    if (at > 0) consider(part.before);
  }
  for (std::size_t at = 0; at < n; at = parts[at].after) ids.push_back(parts[at].id);
}

}  // namespace llm
