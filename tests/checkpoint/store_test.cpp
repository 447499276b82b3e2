#include "src/checkpoint/store.h"

#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <thread>

#include "src/base/error.h"
#include "src/base/file.h"
#include "src/checkpoint/reader.h"
#include "src/checkpoint/tensor_file.h"
#include "tests/io/temporary_folder.h"
#include "tests/parity/world.h"

using namespace llm;

namespace {

/// Two tensors whose values are the step.
Manifest save(const std::filesystem::path& folder, std::int64_t step, std::int64_t n_rows = 5,
              std::optional<double> validation_loss = {}) {
  const std::filesystem::path draft = begin_checkpoint(folder, step);
  const std::vector<float> values(static_cast<std::size_t>(n_rows * 7), static_cast<float>(step));
  TensorFile file(draft / "model.safetensors", {{"a.weight", {n_rows, 7}}, {"b.bias", {7}}});
  file.append(Box{.tensor = "a.weight",
                  .rows = {0, n_rows},
                  .columns = {0, 7},
                  .row_stride = 7,
                  .column_stride = 1},
              values.data());
  file.append(Box{.tensor = "b.bias",
                  .is_vector = true,
                  .rows = {0, 7},
                  .columns = {0, 1},
                  .row_stride = 1,
                  .column_stride = 1},
              values.data());
  Manifest manifest;
  manifest.run = {.step = step,
                  .n_updates = step - 1,
                  .n_samples = 8 * step,
                  .global_batch = 8,
                  .loss_scale = 1024,
                  .n_good_steps = 3,
                  .data = R"({"kind":"tokens"})",
                  .layout = "dp 1",
                  .validation_loss = validation_loss};
  manifest.files = {file.finish(), write_text(draft / "config.yaml", "model:\n  hidden_size: 7\n")};
  commit_checkpoint(folder, manifest);
  return manifest;
}

/// Whether the checkpoint of `step` verifies and holds its own values.
void check_whole(const std::filesystem::path& folder, std::int64_t step) {
  const std::filesystem::path checkpoint = folder / checkpoint_name(step);
  CHECK(verify_checkpoint(checkpoint).run.step == step);
  const CheckpointReader reader(checkpoint);
  std::vector<float> row(7);
  reader.read_rows("a.weight", {2, 3}, row.data());
  CHECK(row == std::vector<float>(7, static_cast<float>(step)));
}

bool is_refused(const std::filesystem::path& checkpoint) {
  try {
    verify_checkpoint(checkpoint);
  } catch (const Error&) {
    return true;
  }
  return false;
}

/// A child process does `work`; returns its status.
template <typename Work>
pid_t start(const Work& work) {
  const pid_t child = ::fork();
  if (child != 0) return child;
  int code = 0;
  try {
    work();
  } catch (const FileError&) {
    code = 74;
  } catch (const std::exception&) {
    code = 1;
  }
  ::_exit(code);
}

int code_of(pid_t child) {
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/// What was acknowledged is there and whole, and so is everything that has a checkpoint's name.
void check_all(const std::filesystem::path& folder, std::int64_t acknowledged) {
  const std::vector<std::int64_t> steps = list_checkpoints(folder);
  if (acknowledged > 0) {
    REQUIRE(!steps.empty());
    REQUIRE(steps.back() >= acknowledged);
  }
  for (const std::int64_t step : steps) check_whole(folder, step);
}

}  // namespace

TEST_CASE("a manifest is read back as it was written") {
  Manifest manifest;
  manifest.kind = CheckpointKind::sharded;
  manifest.run = {.step = 12,
                  .n_updates = 11,
                  .n_samples = 96,
                  .global_batch = 8,
                  .loss_scale = 0.1,
                  .n_good_steps = 2,
                  .data = "{\"a\":\"\\u00e9\n\"}",
                  .layout = "dp 2",
                  .validation_loss = 1.0 / 3};
  manifest.files = {{"rank-00000.safetensors", 1234, 0xDEADBEEF}, {"config.yaml", 0, 0}};
  CHECK(manifest_from_json("m", to_json(manifest)) == manifest);
  manifest.run.validation_loss.reset();
  CHECK(manifest_from_json("m", to_json(manifest)) == manifest);
}

TEST_CASE("every truncation and every changed bit of a checkpoint is refused") {
  const TemporaryFolder folder;
  save(folder.path(), 1);
  const std::filesystem::path checkpoint = folder / "step-00000001";
  CHECK_FALSE(is_refused(checkpoint));
  for (const char* const name : {"manifest.json", "model.safetensors", "config.yaml"}) {
    const std::filesystem::path path = checkpoint / name;
    const std::string whole = read_file(path);
    // A number that shares no factor with 8, so that each bit of a byte has its turn.
    const std::size_t stride = full_counts() ? 1 : 7;
    for (std::size_t n = 0; n < whole.size(); n += stride) {
      INFO(name << " cut to " << n << " bytes");
      write_plainly(path, whole.substr(0, n));
      REQUIRE(is_refused(checkpoint));
    }
    write_plainly(path, whole + "x");
    CHECK(is_refused(checkpoint));
    for (std::size_t bit = 0; bit < 8 * whole.size(); bit += stride) {
      INFO(name << ", bit " << bit);
      std::string changed = whole;
      changed[bit / 8] = static_cast<char>(changed[bit / 8] ^ (1 << (bit % 8)));
      write_plainly(path, changed);
      REQUIRE(is_refused(checkpoint));
    }
    std::filesystem::remove(path);
    CHECK(is_refused(checkpoint));
    write_plainly(path, whole);
  }
  check_whole(folder.path(), 1);
}

TEST_CASE("a refusal names the file that is damaged") {
  const TemporaryFolder folder;
  save(folder.path(), 1);
  const std::filesystem::path path = folder / "step-00000001" / "model.safetensors";
  std::string bytes = read_file(path);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  write_plainly(path, bytes);
  CHECK_THROWS_WITH(verify_checkpoint(folder / "step-00000001"),
                    Catch::Contains("step-00000001/model.safetensors: damaged: its checksum is "));
  write_plainly(path, bytes.substr(1));
  CHECK_THROWS_WITH(
      verify_sizes(folder / "step-00000001"),
      Catch::Contains("model.safetensors: damaged: it has ") && Catch::Contains(" were written"));
}

TEST_CASE("the newest and the best are kept, and what is damaged is left alone") {
  const TemporaryFolder folder;
  const double losses[] = {3, 1, 2, 2.5, 4};
  for (int i = 0; i < 5; ++i) save(folder.path(), 10 * (i + 1), 5, losses[i]);
  std::filesystem::create_directory(folder / "step-00000007.tmp");
  std::filesystem::create_directory(folder / "other");
  write_plainly(folder / "step-00000030" / "manifest.json", "{}");
  CHECK(best_validation_loss(folder.path()) == 1);
  remove_old_checkpoints(folder.path(), {.n_last = 2, .best = true});
  CHECK(list_checkpoints(folder.path()) == std::vector<std::int64_t>{20, 30, 40, 50});
  remove_old_checkpoints(folder.path(), {.n_last = 1});
  CHECK(list_checkpoints(folder.path()) == std::vector<std::int64_t>{30, 50});
  remove_leftovers(folder.path());
  CHECK_FALSE(std::filesystem::exists(folder / "step-00000007.tmp"));
  CHECK(std::filesystem::exists(folder / "other"));
  CHECK(best_validation_loss(folder.path()) == 4);
}

TEST_CASE("a checkpoint of a step that is there takes its place") {
  const TemporaryFolder folder;
  save(folder.path(), 3);
  save(folder.path(), 3, 9);
  remove_leftovers(folder.path());
  check_whole(folder.path(), 3);
  CHECK(CheckpointReader(folder / "step-00000003").tensors().at("a.weight").n_rows == 9);
  CHECK(std::distance(std::filesystem::directory_iterator(folder.path()), {}) == 1);
}

TEST_CASE("a process killed while it saves and removes leaves what it had acknowledged") {
  const TemporaryFolder folder;
  const int n_kills = full_counts() ? 1000 : 30;
  std::int64_t step = 0;
  std::int64_t acknowledged = 0;
  for (int kill = 0; kill < n_kills; ++kill) {
    int pipe[2];
    REQUIRE(::pipe(pipe) == 0);
    const pid_t child = start([&] {
      for (std::int64_t next = step + 1;; ++next) {
        remove_leftovers(folder.path());
        save(folder.path(), next, 3000);
        if (::write(pipe[1], &next, sizeof next) != sizeof next) return;
        remove_old_checkpoints(folder.path(), {.n_last = 2, .best = true});
      }
    });
    ::close(pipe[1]);
    std::int64_t told = 0;
    // Each fourth has told of a save, however slow the machine is.
    if (kill % 4 == 3 && ::read(pipe[0], &told, sizeof told) == sizeof told) acknowledged = told;
    // A different moment each time; a save takes some milliseconds.
    ::usleep(static_cast<useconds_t>(2000 + kill * 7919 % 30000));
    ::kill(child, SIGKILL);
    while (::read(pipe[0], &told, sizeof told) == sizeof told) acknowledged = told;
    ::close(pipe[0]);
    code_of(child);
    INFO("kill " << kill << ", acknowledged " << acknowledged);
    check_all(folder.path(), acknowledged);
    const std::vector<std::int64_t> steps = list_checkpoints(folder.path());
    if (!steps.empty()) step = steps.back();
  }
  CHECK(acknowledged > 0);
}

TEST_CASE("a full disk ends a save with its reason and leaves the checkpoints before it") {
  const TemporaryFolder folder;
  const std::filesystem::path small = folder / "small";
  std::filesystem::create_directory(small);
  const bool is_mounted = ::mount("tmpfs", small.c_str(), "tmpfs", 0, "size=1m") == 0;
  save(small, 1, 3000);
  save(small, 2, 3000);
  const pid_t child = start([&] {
    if (!is_mounted) {  // no right to mount: a limit on files gives the same kind of error
      ::signal(SIGXFSZ, SIG_IGN);
      const rlimit limit{600000, 600000};
      ::setrlimit(RLIMIT_FSIZE, &limit);
    }
    save(small, 3, 40000);
  });
  CHECK(code_of(child) == 74);
  CHECK(list_checkpoints(small) == std::vector<std::int64_t>{1, 2});
  check_all(small, 2);
  remove_leftovers(small);
  save(small, 3, 3000);
  check_all(small, 3);
  if (is_mounted) ::umount2(small.c_str(), MNT_DETACH);
}
