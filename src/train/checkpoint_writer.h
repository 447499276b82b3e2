#pragma once
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/messages.h"
#include "actors/metrics.h"
#include "src/checkpoint/manifest.h"
#include "src/checkpoint/store.h"
#include "src/checkpoint/tensor_file.h"
#include "src/rt/side_thread.h"
#include "src/train/snapshot.h"

namespace llm {

/// A checkpoint is on disk.
struct SavedCheckpoint {
  std::int64_t step = 0;  ///< steps done
  std::string path;
  std::int64_t n_bytes = 0;
  double blocked_seconds = 0;  ///< that training waited, on this rank
  double seconds = 0;          ///< until it was saved
};

/// Whether rank 0 has a state written, to the writers of all ranks.
struct SaveOrder {
  std::int64_t is_saved = 0;
};

/// The file of a rank's part is on disk.
struct PartWritten {
  std::int64_t n_bytes = 0;
  std::uint32_t crc32 = 0;
};

/// Saves the run's state: copies what the rank owns at a step's end, and writes it while training
/// goes on, on a thread of its own.
///
///   receives  step_end(n)          from the optimizer; its state does not change until the answer
///             validated(step)      on rank 0 from metrics, where the plan waits for it
///             order(n)             from rank 0's writer
///             written(n * ranks + rank)  on rank 0 from the writers that have a file of their own
///   sends     state_copied(n)      to the optimizer
///             order(n)             on rank 0, to the writers of all ranks
///             written(n * ranks + rank)  to rank 0, where checkpoints are sharded
///             saved(n)             on rank 0 to whoever reports it
///   holds     a copy of what the rank owns, where states are saved before the last step
/// A full disk ends the run by FileError; checkpoints that were saved before stay as they are.
class CheckpointWriter {
 public:
  struct Plan {
    std::filesystem::path folder;
    CheckpointKind kind = CheckpointKind::full;
    KeptCheckpoints kept;
    bool copies = false;  ///< states are saved while training goes on
    std::int64_t global_batch = 1;
    std::string layout;
    std::vector<MasterPieces> sources;  ///< of the run: which rank has which elements
    /// On rank 0: files of a checkpoint beside its tensors, by name.
    std::vector<std::pair<std::string, std::string>> texts = {};
    std::function<std::string(std::int64_t step)> data_state = {};  ///< on rank 0
  };
  struct Outbox {
    Port<Ready> state_copied;
    std::vector<Port<SaveOrder>> order = {};  ///< on rank 0, by rank
    Port<PartWritten> written;
    Port<SavedCheckpoint> saved = {};
  };
  /// `fetcher` on rank 0 of a full checkpoint, `server` on others that have a part of it.
  CheckpointWriter(Transport& transport, Queue& compute, Plan plan, const ModelState& state,
                   MasterFetcher* fetcher, MasterServer* server, Outbox out);

  Inbox<StepEnd>& step_end() { return step_end_; }
  Inbox<double>& validated() { return validated_; }
  Inbox<SaveOrder>& order() { return order_; }
  Inbox<PartWritten>& written() { return written_; }
  /// Ends with the last step's end.
  Task<> run();

 private:
  bool is_first() const { return transport_.rank() == 0; }
  RunState state_of(const StepEnd& end) const;
  /// Whether this state is saved; on rank 0 it decides, and its folder is made.
  Task<bool> is_saved(std::int64_t n, const StepEnd& end, RunState& run);
  Task<> save(std::int64_t n, PieceSource pieces, RunState run);
  Task<> write_part(std::int64_t n, PieceSource pieces, std::int64_t step);
  Task<> write_full(std::filesystem::path draft, std::vector<FileRecord>& files);
  Task<FileRecord> write_tensors(std::filesystem::path path, std::vector<TensorPart> parts);
  Task<> gather_parts(std::int64_t n, std::vector<FileRecord>& files);
  Task<> commit(std::filesystem::path draft, Manifest manifest);
  Task<> remove_old();
  const MasterPieces* own_part() const;
  std::vector<BoxValues> boxes_of_part(const PieceSource& pieces) const;

  Transport& transport_;
  Queue& compute_;
  const Plan plan_;
  const ModelConfig model_;
  MasterFetcher* const fetcher_;
  MasterServer* const server_;
  const Outbox out_;
  Inbox<StepEnd> step_end_;
  Inbox<double> validated_;
  Inbox<SaveOrder> order_;
  Inbox<PartWritten> written_;
  const PieceSource now_;  // the state itself
  Snapshot snapshot_;
  std::optional<double> best_loss_;  // on rank 0, once it is known
  SideThread side_;                  // last: it reads what stands above
};

}  // namespace llm
