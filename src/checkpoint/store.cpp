#include "src/checkpoint/store.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <limits>
#include <set>

#include "src/base/crc32.h"
#include "src/base/error.h"
#include "src/base/file.h"

namespace llm {
namespace {

namespace fs = std::filesystem;

constexpr const char* prefix = "step-";
constexpr const char* unfinished = ".tmp";
constexpr const char* removed = ".removed.tmp";
constexpr std::size_t n_digits = 8;

/// -1 where the name is not a checkpoint's.
std::int64_t step_of(const std::string& name) {
  const std::size_t n_prefix = std::strlen(prefix);
  if (name.compare(0, n_prefix, prefix) != 0) return -1;
  const std::string digits = name.substr(n_prefix);
  if (digits.size() < n_digits || digits.size() > 18) return -1;
  if (digits.find_first_not_of("0123456789") != std::string::npos) return -1;
  return std::stoll(digits);
}

void rename_or_fail(const fs::path& from, const fs::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) {
    throw FileError(fmt::format("cannot rename {} to {}: {}", from.string(), to.string(),
                                std::strerror(errno)));
  }
}

void remove_folder(const fs::path& folder) {
  std::error_code error;
  fs::remove_all(folder, error);
  if (error) {
    throw FileError(fmt::format("cannot remove {}: {}", folder.string(), error.message()));
  }
}

/// `fresh` gets the name `target`, which another folder has.
void replace(const fs::path& fresh, const fs::path& target) {
  if (::renameat2(AT_FDCWD, fresh.c_str(), AT_FDCWD, target.c_str(), RENAME_EXCHANGE) == 0) return;
  const fs::path old = target.string() + removed;
  remove_folder(old);
  rename_or_fail(target, old);
  rename_or_fail(fresh, target);
}

std::vector<fs::path> entries_of(const fs::path& folder) {
  std::vector<fs::path> entries;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    entries.push_back(at->path());
  }
  return entries;
}

}  // namespace

std::string checkpoint_name(std::int64_t step) {
  return fmt::format("{}{:08}", prefix, step);
}

fs::path begin_checkpoint(const fs::path& folder, std::int64_t step) {
  const fs::path draft = folder / (checkpoint_name(step) + unfinished);
  std::error_code error;
  fs::create_directories(folder, error);
  if (!error) {
    remove_folder(draft);
    fs::create_directory(draft, error);
  }
  if (error) {
    throw FileError(fmt::format("checkpoint.checkpoint_dir: cannot make {}: {}", draft.string(),
                                error.message()));
  }
  return draft;
}

void commit_checkpoint(const fs::path& folder, const Manifest& manifest) {
  const fs::path name = folder / checkpoint_name(manifest.run.step);
  const fs::path draft = name.string() + unfinished;
  {
    OutputFile file(draft / manifest_name);
    file.append(to_json(manifest));
    file.finish();
  }
  sync_folder(draft);
  std::error_code error;
  if (fs::exists(name, error)) {
    replace(draft, name);
  } else {
    rename_or_fail(draft, name);
  }
  sync_folder(folder);
}

std::vector<std::int64_t> list_checkpoints(const fs::path& folder) {
  std::vector<std::int64_t> steps;
  for (const fs::path& entry : entries_of(folder)) {
    const std::int64_t step = step_of(entry.filename().string());
    if (step >= 0) steps.push_back(step);
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

void verify_file(const fs::path& checkpoint, const FileRecord& record) {
  const fs::path path = checkpoint / record.name;
  const InputFile file(path);
  if (file.n_bytes() != record.n_bytes) {
    throw DataError(fmt::format("{}: damaged: it has {} bytes, but {} were written", path.string(),
                                file.n_bytes(), record.n_bytes));
  }
  constexpr std::int64_t n_at_a_time = 4 << 20;
  std::vector<char> buffer(static_cast<std::size_t>(std::min(n_at_a_time, record.n_bytes)));
  Crc32 sum;
  for (std::int64_t begin = 0; begin < record.n_bytes; begin += n_at_a_time) {
    const std::int64_t n = std::min(n_at_a_time, record.n_bytes - begin);
    file.read(begin, n, buffer.data());
    sum.add(buffer.data(), static_cast<std::size_t>(n));
  }
  if (sum.value() != record.crc32) {
    throw DataError(fmt::format("{}: damaged: its checksum is {:08x}, but {:08x} was written",
                                path.string(), sum.value(), record.crc32));
  }
}

Manifest verify_checkpoint(const fs::path& checkpoint) {
  Manifest manifest = read_manifest(checkpoint);
  for (const FileRecord& record : manifest.files) verify_file(checkpoint, record);
  return manifest;
}

Manifest verify_sizes(const fs::path& checkpoint) {
  Manifest manifest = read_manifest(checkpoint);
  for (const FileRecord& record : manifest.files) {
    const InputFile file(checkpoint / record.name);
    if (file.n_bytes() != record.n_bytes) {
      throw DataError(fmt::format("{}: damaged: it has {} bytes, but {} were written",
                                  file.path().string(), file.n_bytes(), record.n_bytes));
    }
  }
  return manifest;
}

namespace {

struct Known {
  std::int64_t step;
  double validation_loss;
};

/// The checkpoints that look whole, ascending.
std::vector<Known> known_checkpoints(const fs::path& folder) {
  std::vector<Known> known;
  for (const std::int64_t step : list_checkpoints(folder)) {
    try {
      const Manifest manifest = verify_sizes(folder / checkpoint_name(step));
      known.push_back(
          {step, manifest.run.validation_loss.value_or(std::numeric_limits<double>::infinity())});
    } catch (const Error&) {
      continue;  // damaged: for people to look at
    }
  }
  return known;
}

}  // namespace

void remove_old_checkpoints(const fs::path& folder, KeptCheckpoints kept) {
  const std::vector<Known> known = known_checkpoints(folder);
  std::set<std::int64_t> keep;
  const auto n = static_cast<std::int64_t>(known.size());
  for (std::int64_t i = std::max<std::int64_t>(0, n - kept.n_last); i < n; ++i) {
    keep.insert(known[static_cast<std::size_t>(i)].step);
  }
  const auto best = std::min_element(
      known.begin(), known.end(),
      [](const Known& a, const Known& b) { return a.validation_loss < b.validation_loss; });
  if (kept.best && best != known.end()) keep.insert(best->step);
  std::vector<fs::path> gone;
  for (const Known& one : known) {
    if (keep.contains(one.step)) continue;
    const fs::path name = folder / checkpoint_name(one.step);
    const fs::path old = name.string() + removed;
    remove_folder(old);
    rename_or_fail(name, old);
    gone.push_back(old);
  }
  if (!gone.empty()) sync_folder(folder);
  for (const fs::path& old : gone) remove_folder(old);
}

void remove_leftovers(const fs::path& folder) {
  for (const fs::path& entry : entries_of(folder)) {
    const std::string name = entry.filename().string();
    const std::size_t end = name.find('.');
    if (end == std::string::npos || step_of(name.substr(0, end)) < 0) continue;
    const std::string rest = name.substr(end);
    if (rest == unfinished || rest == removed) remove_folder(entry);
  }
}

double best_validation_loss(const fs::path& folder) {
  double best = std::numeric_limits<double>::infinity();
  for (const Known& one : known_checkpoints(folder)) best = std::min(best, one.validation_loss);
  return best;
}

}  // namespace llm
