#include "src/data/stream_samples.h"

#include <fmt/core.h>

#include <algorithm>

#include "src/base/check.h"
#include "src/base/error.h"
#include "src/base/philox.h"
#include "src/data/sample_order.h"

namespace llm {
namespace {

/// Where the sample that is given out as number `index` of a block stands in the stream's order.
std::int64_t place_in_block(const StreamSamples::Config& config, std::int64_t epoch,
                            std::int64_t block, std::int64_t index, std::int64_t n) {
  if (!config.shuffle) return index;
  std::uint64_t key = mix_key(config.seed, "stream_order");
  key = mix_key(key, static_cast<std::uint64_t>(epoch));
  key = mix_key(key, static_cast<std::uint64_t>(block));
  return Permutation(key, n)(index);
}

/// Without shuffling a longer buffer would only delay the first sample.
StreamSamples::Config effective(StreamSamples::Config config) {
  if (!config.shuffle) config.shuffle_buffer = 1;
  return config;
}

}  // namespace

StreamSamples::StreamSamples(Corpus corpus, const Tokenizer& tokenizer, const Config& config)
    : data_key_(corpus_key(corpus, tokenizer.name())),
      config_(effective(config)),
      reader_(std::move(corpus), tokenizer, config.vocab_size),
      sample_(static_cast<std::size_t>(config.seq_len + 1)) {
  CHECK_CONTRACT(config.seq_len >= 1, "a sample has tokens");
  CHECK_CONTRACT(config.shuffle_buffer >= 1 && config.shuffle_buffer < (std::int64_t{1} << 31),
                 "a shuffle buffer holds samples, and slots are numbered in 31 bits");
}

void StreamSamples::fetch(std::int64_t position, SampleOut out) {
  CHECK_CONTRACT(position >= position_ && position >= 0, "a stream's positions do not decrease");
  CHECK_CONTRACT(position > position_ || n_given_ > 0, "a position lies after the restored state");
  while (position_ < position) advance(position_ + 1 == position);
  if (out.tokens != nullptr) std::copy(sample_.begin(), sample_.end() - 1, out.tokens);
  if (out.labels != nullptr) std::copy(sample_.begin() + 1, sample_.end(), out.labels);
}

void StreamSamples::advance(bool is_wanted) {
  const auto n_block = [this] { return static_cast<std::int64_t>(current_.slots.size()); };
  if (n_given_ == n_block()) next_block();
  const std::int64_t place =
      place_in_block(config_, current_.epoch, current_.index, n_given_, n_block());
  const std::int32_t slot = current_.slots[static_cast<std::size_t>(place)];
  if (is_wanted) {
    const auto n = static_cast<std::int64_t>(sample_.size());
    std::copy_n(buffer_.begin() + slot * n, n, sample_.begin());
  }
  free_slots_.push_back(slot);
  --n_resident_;
  ++n_given_;
  ++position_;
  // A short block at the end of an epoch makes room for more than it gives out.
  fill(next_, (config_.shuffle_buffer + n_block() - 1) / n_block());
}

void StreamSamples::next_block() {
  block_begin_ += n_given_;
  n_given_ = 0;
  do {
    current_ = std::move(next_);
    fill(current_, config_.shuffle_buffer);
    next_ = after(current_);
  } while (current_.slots.empty());  // an epoch that ended with a full block
}

void StreamSamples::fill(Block& block, std::int64_t n_samples) {
  for (; n_samples > 0 && !block.is_closed; --n_samples) {
    const std::int32_t slot = take_slot();
    if (slot < 0) return;
    if (!read_sample(slot)) {
      free_slots_.push_back(slot);
      end_epoch(block);
      return;
    }
    n_resident_max_ = std::max(n_resident_max_, ++n_resident_);
    block.slots.push_back(slot);
    block.is_closed = static_cast<std::int64_t>(block.slots.size()) == config_.shuffle_buffer;
  }
}

/// A slot of the buffer that holds nothing, or -1.
std::int32_t StreamSamples::take_slot() {
  if (!free_slots_.empty()) {
    const std::int32_t slot = free_slots_.back();
    free_slots_.pop_back();
    return slot;
  }
  const std::size_t n_slots = buffer_.size() / sample_.size();
  if (static_cast<std::int64_t>(n_slots) == config_.shuffle_buffer) return -1;
  buffer_.resize(buffer_.size() + sample_.size());
  return static_cast<std::int32_t>(n_slots);
}

/// Cuts the stream's next sample into `slot`; false when the epoch has no further whole sample.
bool StreamSamples::read_sample(std::int32_t slot) {
  while (pending_.size() - pending_begin_ < sample_.size()) {
    pending_.erase(pending_.begin(),
                   pending_.begin() + static_cast<std::ptrdiff_t>(pending_begin_));
    pending_begin_ = 0;
    const TokenReader::Place place = reader_.place();
    const std::size_t n_before = pending_.size();
    if (!reader_.next(pending_)) return false;
    const auto n = static_cast<std::int64_t>(pending_.size() - n_before);
    if (n > 0) pieces_.push_back({place, n});
  }
  const auto from = pending_.begin() + static_cast<std::ptrdiff_t>(pending_begin_);
  std::copy_n(from, sample_.size(),
              buffer_.begin() + slot * static_cast<std::int64_t>(sample_.size()));
  pending_begin_ += static_cast<std::size_t>(config_.seq_len);
  skip_ += config_.seq_len;
  // The last token is the next sample's first, so a piece is always left.
  for (; skip_ >= pieces_.front().n_tokens; pieces_.pop_front()) skip_ -= pieces_.front().n_tokens;
  return true;
}

void StreamSamples::end_epoch(Block& block) {
  n_samples_ = block.index * config_.shuffle_buffer + static_cast<std::int64_t>(block.slots.size());
  if (n_samples_ == 0) {
    count_samples(static_cast<std::int64_t>(pending_.size()), config_.seq_len);  // refuses
  }
  block.is_closed = true;
  block.is_last = true;
  pending_.clear();
  pending_begin_ = 0;
  pieces_.clear();
  skip_ = 0;
  reader_.seek({});
}

StreamSamples::Block StreamSamples::after(const Block& block) const {
  return {.epoch = block.epoch + (block.is_last ? 1 : 0),
          .index = block.is_last ? 0 : block.index + 1,
          .start = next_start()};
}

StreamSamples::Start StreamSamples::next_start() const {
  if (pieces_.empty()) return {.place = reader_.place(), .skip = 0};
  return {.place = pieces_.front().place, .skip = skip_};
}

SourceState StreamSamples::identity() const {
  return {.kind = "stream",
          .source = {{data_key_field, static_cast<std::int64_t>(data_key_)},
                     {"data.max_seq_len", config_.seq_len},
                     {"data.shuffle_buffer", config_.shuffle_buffer},
                     {"training.seed", static_cast<std::int64_t>(config_.seed)},
                     {"data.shuffle", config_.shuffle}},
          .place = {}};
}

std::string StreamSamples::state() const {
  const Block& block = current_.slots.empty() ? next_ : current_;
  const TokenReader::Place& place = block.start.place;
  SourceState state = identity();
  state.place = {{"position", block_begin_},
                 {"epoch", block.epoch},
                 {"block", block.index},
                 {"file", place.file},
                 {"byte", place.byte},
                 {"line", place.line},
                 {"in_document", place.in_document},
                 {"after_document", place.after_document},
                 {"skip", block.start.skip},
                 {"n_samples", n_samples_}};
  return to_json(state);
}

void StreamSamples::restore(const std::string& state) {
  const SourceState saved = read_state(state, identity());
  const auto number = [&saved](const char* name) {
    const auto found = saved.place.find(name);
    if (found == saved.place.end()) {
      throw DataError(fmt::format("the checkpoint's data position has no \"{}\"", name));
    }
    return found->second;
  };
  const Start start{.place = {.file = number("file"),
                              .byte = number("byte"),
                              .line = number("line"),
                              .in_document = number("in_document") != 0,
                              .after_document = number("after_document") != 0},
                    .skip = number("skip")};
  reader_.seek(start.place);
  pending_.clear();
  pieces_.clear();
  if (start.skip > 0) {
    reader_.next(pending_);
    pieces_.push_back({start.place, static_cast<std::int64_t>(pending_.size())});
    if (start.skip >= pieces_.front().n_tokens) {
      throw DataError(
          fmt::format("the data has changed since the checkpoint: at file {}, byte {} it has {} "
                      "tokens, but the "
                      "stream stopped after {}",
                      start.place.file, start.place.byte, pending_.size(), start.skip));
    }
  }
  skip_ = start.skip;
  pending_begin_ = static_cast<std::size_t>(start.skip);
  current_ = {};
  next_ = {.epoch = number("epoch"), .index = number("block"), .start = start};
  block_begin_ = number("position");
  n_given_ = 0;
  position_ = block_begin_ - 1;
  n_samples_ = number("n_samples");
  buffer_.clear();
  free_slots_.clear();
  n_resident_ = 0;
}

}  // namespace llm
