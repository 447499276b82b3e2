#include "src/train/checkpoint_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "src/rt/clock.h"
#include "src/rt/event.h"

namespace llm {
namespace {

const WaitName wait_copied{"state copied"};

double seconds_since(std::int64_t begin_ns) {
  return static_cast<double>(now_ns() - begin_ns) * 1e-9;
}

std::string part_file(int rank) {
  return fmt::format("rank-{:05}.safetensors", rank);
}

}  // namespace

CheckpointWriter::CheckpointWriter(Transport& transport, Queue& compute, Plan plan,
                                   const ModelState& state, MasterFetcher* fetcher,
                                   MasterServer* server, Outbox out)
    : transport_(transport),
      compute_(compute),
      plan_(std::move(plan)),
      model_(state.config()),
      fetcher_(fetcher),
      server_(server),
      out_(std::move(out)),
      step_end_(transport.loop(), WaitName("step_end", "optimizer_shard")),
      validated_(transport.loop(), WaitName("validation loss", "metrics")),
      order_(transport.loop(), WaitName("order to save", "checkpoint_writer of rank 0")),
      written_(transport.loop(), WaitName("part written", "checkpoint_writer of every rank"),
               static_cast<std::size_t>(2 * transport.n_ranks())),
      now_(pieces_of(state)),
      snapshot_(state),
      side_(transport.loop()) {}

const MasterPieces* CheckpointWriter::own_part() const {
  for (const MasterPieces& source : plan_.sources) {
    if (source.rank == transport_.rank()) return &source;
  }
  return nullptr;
}

RunState CheckpointWriter::state_of(const StepEnd& end) const {
  RunState run;
  run.step = end.step + 1;
  run.n_updates = end.n_updates;
  run.global_batch = plan_.global_batch;
  run.n_samples = run.step * plan_.global_batch;
  run.loss_scale = end.loss_scale;
  run.n_good_steps = end.n_good_steps;
  run.layout = plan_.layout;
  if (is_first() && end.save != Save::never) run.data = plan_.data_state(run.step);
  return run;
}

Task<> CheckpointWriter::run() {
  const bool is_on_device = compute_.device() != Device::cpu;
  if (is_on_device && own_part() != nullptr) {
    snapshot_.take_memory();
  } else if (plan_.copies && own_part() != nullptr) {
    const std::function<void()> work = [this] { snapshot_.take_memory(); };
    co_await side_.run(work);
  }
  for (std::int64_t n = 0;; ++n) {
    const StepEnd end = co_await step_end_.take(n);
    // Nothing changes the state after the last step; before it, and of a device, a copy is written.
    const bool copies =
        end.save != Save::never && (!end.is_last || is_on_device) && own_part() != nullptr;
    if (copies) {
      snapshot_.enqueue(compute_);
      Event copied(transport_.loop(), wait_copied, end.step);
      compute_.notify([&copied] { copied.set(); });
      co_await copied;
    }
    RunState run = state_of(end);
    const double blocked = seconds_since(end.begin_ns);
    out_.state_copied(n, Ready{});
    if (end.save != Save::never) {
      const bool saved = co_await is_saved(n, end, run);
      const PieceSource pieces = copies ? snapshot_.pieces() : now_;
      if (saved) co_await save(n, pieces, run);
      if (saved && is_first()) {
        SavedCheckpoint done;
        done.step = run.step;
        done.path = (plan_.folder / checkpoint_name(run.step)).string();
        done.blocked_seconds = blocked;
        done.seconds = seconds_since(end.begin_ns);
        for (const FileRecord& file : read_manifest(done.path).files) done.n_bytes += file.n_bytes;
        out_.saved(n, done);
        co_await remove_old();
      }
    }
    if (end.is_last) co_return;
  }
}

Task<bool> CheckpointWriter::is_saved(std::int64_t n, const StepEnd& end, RunState& run) {
  if (!is_first()) {
    const SaveOrder order = co_await order_.take(n);
    co_return order.is_saved != 0;
  }
  bool saved = end.save == Save::always;
  if (!best_loss_) {
    remove_leftovers(plan_.folder);
    best_loss_ = best_validation_loss(plan_.folder);
  }
  if (end.is_validated) {
    const double loss = co_await validated_.take(end.step);
    run.validation_loss = loss;
    saved |= loss < *best_loss_;
    best_loss_ = std::min(*best_loss_, loss);
  }
  if (saved) begin_checkpoint(plan_.folder, run.step);
  for (std::size_t rank = 1; rank < out_.order.size(); ++rank) {
    const SaveOrder order{saved ? 1 : 0};
    out_.order[rank](n, order);
  }
  co_return saved;
}

Task<> CheckpointWriter::save(std::int64_t n, PieceSource pieces, RunState run) {
  if (plan_.kind == CheckpointKind::sharded) {
    co_await write_part(n, pieces, run.step);
  } else if (server_ != nullptr) {
    co_await server_->run(pieces);
  }
  if (!is_first()) co_return;
  const std::filesystem::path draft = plan_.folder / (checkpoint_name(run.step) + ".tmp");
  Manifest manifest;
  manifest.kind = plan_.kind;
  manifest.run = std::move(run);
  if (plan_.kind == CheckpointKind::sharded) {
    co_await gather_parts(n, manifest.files);
  } else {
    fetcher_->set_source(pieces);
    co_await write_full(draft, manifest.files);
    fetcher_->end();
  }
  co_await commit(draft, manifest);
}

std::vector<BoxValues> CheckpointWriter::boxes_of_part(const PieceSource& pieces) const {
  const MasterPieces* const own = own_part();
  ModelConfig model = model_;
  model.tp = own->tp;
  model.ep = own->ep;
  const std::vector<ParameterSpec> specs = parameters(model);
  std::vector<BoxValues> boxes;
  for (const TensorPart part : tensor_parts) {
    for (const MasterPieces::Piece& piece : own->pieces) {
      const float* const values = pieces(part, piece.owned).as<float>();
      for (Box& box : boxes_of(specs[piece.canonical], piece.owned.elements)) {
        boxes.push_back({std::move(box), part, values});
      }
    }
  }
  return boxes;
}

// Work on the thread has everything that it touches, or it is this writer's: the coroutine's frame
// may be dropped meanwhile.

Task<> CheckpointWriter::write_part(std::int64_t n, PieceSource pieces, std::int64_t step) {
  if (own_part() == nullptr) co_return;
  const std::filesystem::path path =
      plan_.folder / (checkpoint_name(step) + ".tmp") / part_file(transport_.rank());
  const auto record = std::make_shared<FileRecord>();
  const std::function<void()> work = [this, boxes = boxes_of_part(pieces), path, record] {
    *record = write_boxes(path, boxes, [this] { side_.tick(); });
  };
  co_await side_.run(work);
  const PartWritten written{record->n_bytes, record->crc32};
  out_.written(n * transport_.n_ranks() + transport_.rank(), written);
}

Task<> CheckpointWriter::gather_parts(std::int64_t n, std::vector<FileRecord>& files) {
  for (const MasterPieces& source : plan_.sources) {
    const PartWritten part = co_await written_.take(n * transport_.n_ranks() + source.rank);
    files.push_back({part_file(source.rank), part.n_bytes, part.crc32});
  }
}

Task<> CheckpointWriter::write_full(std::filesystem::path draft, std::vector<FileRecord>& files) {
  const std::vector<TensorPart> weights = {TensorPart::weight};
  const FileRecord model = co_await write_tensors(draft / "model.safetensors", weights);
  const std::vector<TensorPart> moments = {TensorPart::exp_avg, TensorPart::exp_avg_sq};
  const FileRecord optimizer = co_await write_tensors(draft / "optimizer.safetensors", moments);
  files = {model, optimizer};
}

Task<FileRecord> CheckpointWriter::write_tensors(std::filesystem::path path,
                                                 std::vector<TensorPart> parts) {
  const std::vector<ParameterSpec> specs = parameters(whole_model(model_));
  std::vector<FileTensor> tensors;
  for (const ParameterSpec& spec : specs) {
    for (const TensorPart part : parts) {
      for (FileTensor& tensor : tensors_of(spec, part)) tensors.push_back(std::move(tensor));
    }
  }
  const WriteTick tick = [this] { side_.tick(); };
  const auto file = std::make_shared<TensorFile>(path, tensors, tick);
  for (std::size_t i = 0; i < specs.size(); ++i) {
    for (const TensorPart part : parts) {
      co_await fetcher_->fetch(i, part);
      const float* const values = fetcher_->parameter().as<float>();
      const std::vector<Box> boxes = boxes_of(specs[i], Range{0, specs[i].n_elements()});
      const std::function<void()> work = [file, boxes, values] {
        for (const Box& box : boxes) file->append(box, values);
      };
      co_await side_.run(work);
    }
  }
  const auto record = std::make_shared<FileRecord>();
  const std::function<void()> finish = [file, record] { *record = file->finish(); };
  co_await side_.run(finish);
  co_return *record;
}

Task<> CheckpointWriter::commit(std::filesystem::path draft, Manifest manifest) {
  const std::function<void()> work = [this, draft, manifest]() mutable {
    for (const auto& [name, text] : plan_.texts) {
      manifest.files.push_back(write_text(draft / name, text));
    }
    commit_checkpoint(plan_.folder, manifest);
  };
  co_await side_.run(work);
}

Task<> CheckpointWriter::remove_old() {
  const std::function<void()> work = [this] {
    remove_leftovers(plan_.folder);
    remove_old_checkpoints(plan_.folder, plan_.kept);
  };
  co_await side_.run(work);
}

}  // namespace llm
