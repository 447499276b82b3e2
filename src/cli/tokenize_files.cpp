#include "src/cli/tokenize_files.h"

#include <fmt/core.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <filesystem>
#include <memory>
#include <mutex>
#include <thread>

#include "src/base/error.h"
#include "src/data/token_reader.h"

namespace llm {
namespace {
namespace fs = std::filesystem;

constexpr std::size_t batch_bytes = 256 * 1024;  // of text, encoded by one thread in about 10 ms

/// Pieces of text that one thread encodes, one after the other.
struct Batch {
  std::vector<TextPiece> pieces;
  std::vector<std::int32_t> tokens;
  std::exception_ptr failure;
  bool is_done = false;
};

/// Threads that encode batches; those are given and taken back in one order.
class Encoders {
 public:
  Encoders(const Tokenizer& tokenizer, int n_threads) : tokenizer_(tokenizer) {
    for (int i = 0; i < n_threads; ++i) threads_.emplace_back([this] { work(); });
  }
  Encoders(const Encoders&) = delete;
  Encoders& operator=(const Encoders&) = delete;
  ~Encoders() {
    {
      const std::lock_guard lock(mutex_);
      stops_ = true;
    }
    given_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  std::size_t n_given() const { return order_.size(); }

  void give(std::unique_ptr<Batch> batch) {
    {
      const std::lock_guard lock(mutex_);
      waiting_.push_back(batch.get());
    }
    order_.push_back(std::move(batch));
    given_.notify_one();
  }

  /// The oldest batch, encoded.
  std::unique_ptr<Batch> take() {
    std::unique_ptr<Batch> batch = std::move(order_.front());
    order_.pop_front();
    std::unique_lock lock(mutex_);
    done_.wait(lock, [&] { return batch->is_done; });
    if (batch->failure) std::rethrow_exception(batch->failure);
    return batch;
  }

 private:
  void work() {
    std::unique_lock lock(mutex_);
    while (true) {
      given_.wait(lock, [this] { return stops_ || !waiting_.empty(); });
      if (stops_) return;
      Batch& batch = *waiting_.front();
      waiting_.pop_front();
      lock.unlock();
      encode(batch);
      lock.lock();
      batch.is_done = true;
      done_.notify_one();
    }
  }

  void encode(Batch& batch) const {
    try {
      for (const TextPiece& piece : batch.pieces) {
        if (piece.follows_document) batch.tokens.push_back(tokenizer_.end_id());
        tokenizer_.encode(piece.text, batch.tokens);
      }
    } catch (...) {  // goes on in the thread that takes the batch
      batch.failure = std::current_exception();
    }
  }

  const Tokenizer& tokenizer_;
  std::vector<std::thread> threads_;
  std::deque<std::unique_ptr<Batch>> order_;  // of the giving thread alone
  std::mutex mutex_;
  std::condition_variable given_;
  std::condition_variable done_;
  std::deque<Batch*> waiting_;  // under mutex_, as Batch::is_done and stops_
  bool stops_ = false;
};

/// Shards under names that readers do not take for finished ones, until all are written.
class Shards {
 public:
  Shards(const TokenizeOptions& options, std::int64_t n_ids) : options_(options), n_ids_(n_ids) {
    const fs::path folder = fs::absolute(options.output).parent_path();
    std::error_code error;
    fs::create_directories(folder, error);
    if (error)
      throw FileError(fmt::format("{}: cannot be made: {}", folder.string(), error.message()));
    const std::string prefix = fs::path(options.output).filename().string() + "-";
    for (const auto& entry : fs::directory_iterator(folder)) {
      const std::string name = entry.path().filename().string();
      if (!name.starts_with(prefix) || !name.ends_with(".bin")) continue;
      throw UsageError(
          fmt::format("--output {}: {} is there already; remove it or give another name",
                      options.output, entry.path().string()));
    }
  }
  Shards(const Shards&) = delete;
  Shards& operator=(const Shards&) = delete;
  ~Shards() {
    writer_.reset();
    std::error_code gone;
    for (const std::string& path : paths_) fs::remove(unfinished(path), gone);
  }

  void write(const std::vector<std::int32_t>& tokens) {
    for (std::size_t begin = 0; begin < tokens.size();) {
      if (!writer_) open();
      const std::int64_t n = std::min(static_cast<std::int64_t>(tokens.size() - begin),
                                      options_.shard_tokens - writer_->n_tokens());
      writer_->write(tokens.data() + begin, n);
      begin += static_cast<std::size_t>(n);
      n_tokens_ += n;
      if (writer_->n_tokens() == options_.shard_tokens) close();
    }
  }

  Tokenized finish() {
    if (writer_) close();
    for (const std::string& path : paths_) {
      std::error_code error;
      fs::rename(unfinished(path), path, error);
      if (error) throw FileError(fmt::format("{}: cannot be named: {}", path, error.message()));
    }
    return {.paths = paths_, .n_tokens = n_tokens_};
  }

 private:
  static std::string unfinished(const std::string& path) { return path + ".unfinished"; }
  void open() {
    paths_.push_back(fmt::format("{}-{:05}.bin", options_.output, paths_.size()));
    writer_ = std::make_unique<TokenWriter>(TokenWriter::Config{
        .path = unfinished(paths_.back()), .n_ids = n_ids_, .format = options_.format});
  }
  void close() {
    writer_->finish();
    writer_.reset();
  }

  const TokenizeOptions& options_;
  const std::int64_t n_ids_;
  std::unique_ptr<TokenWriter> writer_;
  std::vector<std::string> paths_;
  std::int64_t n_tokens_ = 0;
};

/// The next batch_bytes of text, or less at the end: nullptr behind it.
std::unique_ptr<Batch> read_batch(TokenReader& reader) {
  auto batch = std::make_unique<Batch>();
  TextPiece piece;
  for (std::size_t n_bytes = 0; n_bytes < batch_bytes && reader.next_text(piece);) {
    n_bytes += piece.text.size();
    if (!piece.text.empty()) batch->pieces.push_back(std::move(piece));
  }
  return batch->pieces.empty() ? nullptr : std::move(batch);
}

}  // namespace

Tokenized tokenize_files(const Corpus& corpus, const Tokenizer& tokenizer,
                         const TokenizeOptions& options) {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::milliseconds between_reports{100};
  TokenReader reader(corpus, tokenizer, tokenizer.n_ids());
  Shards shards(options, tokenizer.n_ids());
  Encoders encoders(tokenizer, options.n_threads);
  const std::size_t n_ahead = 4 * static_cast<std::size_t>(options.n_threads);
  Clock::time_point reported = Clock::now();
  for (bool more = true; more || encoders.n_given() > 0;) {
    while (more && encoders.n_given() < n_ahead) {
      std::unique_ptr<Batch> batch = read_batch(reader);
      more = batch != nullptr;
      if (more) encoders.give(std::move(batch));
    }
    if (encoders.n_given() > 0) shards.write(encoders.take()->tokens);
    if (options.on_progress && Clock::now() - reported >= between_reports) {
      reported = Clock::now();
      options.on_progress(reader.n_bytes_done());
    }
  }
  Tokenized done = shards.finish();
  if (done.paths.empty()) {
    throw DataError(fmt::format("the data has no text: {} files, {} bytes, the first is {}",
                                corpus.files.size(), corpus.n_bytes(), corpus.files.front().path));
  }
  return done;
}

}  // namespace llm
