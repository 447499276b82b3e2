#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "src/config/load.h"
#include "src/data/sample_source.h"
#include "src/data/tokenizer.h"

namespace llm {

/// What a run reads, the same on every rank.
struct DataSet {
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<SampleSource> train;
  std::unique_ptr<SampleSource> validation;  ///< nullptr: none
  std::int64_t n_epoch_samples = 0;          ///< of training
  std::int64_t n_validation_samples = 0;
  std::string summary;               ///< for the start line
  std::string sample_prompt = "\n";  ///< what the text at the end of a run goes on from
  std::int32_t sample_end_id = -1;   ///< with which it ends early; -1: with none
};

struct DataSetup {
  std::string task;          ///< lm, stream_lm or sft
  std::string cache_folder;  ///< token files of `lm`
  int rank = 0;
  /// Every rank gets rank 0's text; collective.
  std::function<std::string(std::string)> broadcast;
  /// Progress of tokenizing, on rank 0.
  std::function<void(std::string_view)> say;
};

/// Opens the data of `loaded` on every rank; rank 0 lists and tokenizes, the others read what it
/// wrote. Throws ConfigError, DataError, FileError.
DataSet open_data(const LoadedConfig& loaded, const DataSetup& setup);

/// Training samples of one epoch without tokenizing (--plan): exact for token files and bytes of
/// text, a little too many for JSON lines, whose markup counts as text here; with another tokenizer
/// by what the first MiB gives. Task sft reads its examples. 0 where no data is named.
std::int64_t estimate_samples(const LoadedConfig& loaded, const std::string& task);

}  // namespace llm
