#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "src/data/sample_order.h"
#include "src/data/sample_source.h"
#include "src/data/sft_index.h"
#include "src/data/source_state.h"

namespace llm {

/// The samples of task `sft`: a sample is a row of T tokens and labels that holds one example, or
/// as many as fit where they are packed. A label is the next token where that is of an answer, and
/// `ignored_label` elsewhere: in prompts, between examples, and in what is left of a row, whose
/// tokens are 0.
///
/// Packed examples follow one another in a row, in an order drawn from the seed, with the end token
/// between them: a row is closed when the next example does not fit. Attention and positions go on
/// over the whole row, as they do over documents in pre-training.
class SftSamples final : public SampleSource {
 public:
  struct Config {
    Range examples;  ///< of the reader's index; not empty
    std::int32_t ignored_label = 0;
    bool packing = false;
    std::uint64_t seed = 0;
    bool shuffle = true;
  };
  SftSamples(std::shared_ptr<SftReader> reader, const Config& config);
  std::int64_t seq_len() const override { return reader_->index().seq_len; }
  /// Rows.
  std::int64_t n_samples() const override;
  void fetch(std::int64_t position, SampleOut out) override;
  std::string state() const override;
  void restore(const std::string& state) override;

 private:
  void pack();
  SourceState identity() const;

  std::shared_ptr<SftReader> reader_;
  Config config_;
  // Where examples are packed: those of row r are packed_[row_begin_[r]] to packed_[row_begin_[r +
  // 1]].
  std::vector<std::int64_t> packed_;
  std::vector<std::int64_t> row_begin_;
  std::unique_ptr<SampleOrder> order_;
};

}  // namespace llm
