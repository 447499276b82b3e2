#pragma once
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "src/data/corpus.h"
#include "src/data/sample_source.h"
#include "src/data/source_state.h"
#include "src/data/token_reader.h"
#include "src/data/tokenizer.h"

namespace llm {

/// The samples of task `stream_lm`: never holds the corpus. Samples are cut from the stream of
/// tokens (stride T, as `lm` cuts them), gathered in blocks of `shuffle_buffer`, and each block is
/// given out in the order of a Permutation keyed by (seed, epoch, block). The buffer holds one
/// block's worth of samples: a slot that is given out is filled with the next block's next sample,
/// so reading is spread evenly. Every rank reads the whole stream and takes the positions that are
/// its own. After the last sample the next epoch begins; only the last incomplete sample of an
/// epoch is dropped.
class StreamSamples final : public SampleSource {
 public:
  struct Config {
    std::int64_t seq_len = 0;
    std::int64_t vocab_size = 0;
    std::int64_t shuffle_buffer = 1;  ///< samples, >= 1; memory is 4 (T + 1) bytes for each
    std::uint64_t seed = 0;
    bool shuffle = true;  ///< false: in the order of the corpus
  };
  /// `tokenizer` outlives the source. Reads nothing yet: the first fetch refuses bad data, and with
  /// DataError (both numbers) a corpus of fewer than T + 1 tokens.
  StreamSamples(Corpus corpus, const Tokenizer& tokenizer, const Config& config);
  std::int64_t seq_len() const override { return config_.seq_len; }
  std::int64_t n_samples() const override { return n_samples_; }
  /// `position` is the last one again, or later; samples between are skipped.
  void fetch(std::int64_t position, SampleOut out) override;
  /// Where the current block begins (epoch, file, byte, tokens to skip): a few numbers. A restored
  /// source reads that block again.
  std::string state() const override;
  void restore(const std::string& state) override;
  /// The most samples held at any time, at most shuffle_buffer.
  std::int64_t n_resident_max() const { return n_resident_max_; }

 private:
  /// Where a sample's first token lies: `skip` tokens into the piece that is read at `place`.
  struct Start {
    TokenReader::Place place;
    std::int64_t skip = 0;
  };
  struct Piece {
    TokenReader::Place place;
    std::int64_t n_tokens = 0;
  };
  /// Samples [0, slots.size()) of a block in the stream's order, and where each is in the buffer.
  struct Block {
    std::int64_t epoch = 0;
    std::int64_t index = 0;  // within the epoch
    Start start;
    bool is_closed = false;  // full, or the epoch's last
    bool is_last = false;    // of its epoch
    std::vector<std::int32_t> slots{};
  };

  SourceState identity() const;
  bool read_sample(std::int32_t slot);
  void end_epoch(Block& block);
  std::int32_t take_slot();
  void fill(Block& block, std::int64_t n_samples);
  Block after(const Block& block) const;
  Start next_start() const;
  void next_block();
  void advance(bool is_wanted);

  std::uint64_t data_key_;
  Config config_;
  TokenReader reader_;
  std::vector<std::int32_t> pending_;  // tokens read, of which ...
  std::size_t pending_begin_ = 0;      // ... those from here on are not yet the start of a sample
  std::deque<Piece> pieces_;           // what pending_ from pending_begin_ on was read as
  std::int64_t skip_ = 0;              // tokens of pieces_.front() before pending_begin_

  Block current_;
  Block next_;
  std::int64_t block_begin_ = 0;  // position of the current block's first sample
  std::int64_t n_given_ = 0;      // samples of the current block given out
  std::int64_t position_ = -1;    // of sample_; before the first fetch, the one before the next
  std::int64_t n_samples_ = -1;

  std::vector<std::int32_t> buffer_;  // slots of T + 1 tokens, grown to at most shuffle_buffer
  std::vector<std::int32_t> free_slots_;
  std::vector<std::int32_t> sample_;  // the last one given out, T + 1 tokens
  std::int64_t n_resident_ = 0;
  std::int64_t n_resident_max_ = 0;
};

}  // namespace llm
