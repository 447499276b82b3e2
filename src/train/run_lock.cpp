#include "src/train/run_lock.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <iterator>
#include <sstream>
#include <utility>

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include "src/base/error.h"
#include "src/base/rank_log.h"

namespace llm {
namespace {

namespace fs = std::filesystem;

constexpr const char* lock_name = "run.lock";
constexpr std::chrono::milliseconds beat_interval{12'000};  // a fifth of the silence
// Who looks at a lock needs milliseconds.
constexpr int n_tries = 200;
constexpr useconds_t try_us = 5'000;

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string first_word(const fs::path& path) {
  std::ifstream file(path);
  std::string word;
  file >> word;
  return word;
}

/// Of /proc/PID/stat; empty where there is no such process, or it is a zombie.
std::string began(std::int64_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  const std::string stat(std::istreambuf_iterator<char>(file), {});
  // "PID (NAME) STATE ...", and NAME may hold anything. The time is the 20th after STATE's place.
  const std::size_t name_end = stat.rfind(')');
  if (name_end == std::string::npos) return "";
  std::istringstream rest(stat.substr(name_end + 1));
  std::string word;
  rest >> word;
  if (word == "Z" || word == "X") return "";
  for (int n = 0; n < 19; ++n) rest >> word;
  return word;
}

/// An open lock file, alone with it among all that look at it, where the file system can do that.
class OpenLock {
 public:
  /// Nothing where the file is not there, or somebody else looks at it.
  static std::optional<OpenLock> look(const fs::path& path, bool makes) {
    OpenLock open;
    if (makes) open.descriptor_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    open.is_new_ = open.descriptor_ >= 0;
    if (!open.is_new_) open.descriptor_ = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (open.descriptor_ < 0) {
      if (errno == ENOENT) return std::nullopt;
      throw FileError(fmt::format("cannot open {}: {}", path.string(), std::strerror(errno)));
    }
    struct flock whole{};
    whole.l_type = F_WRLCK;
    whole.l_whence = SEEK_SET;
    open.is_alone_ = fcntl(open.descriptor_, F_OFD_SETLK, &whole) == 0;
    if (!open.is_alone_ && (errno == EAGAIN || errno == EACCES)) return std::nullopt;
    // Its name may have gone to another file between the two calls.
    struct stat by_name{};
    if (::stat(path.c_str(), &by_name) != 0 || by_name.st_ino != open.stat().st_ino) {
      return std::nullopt;
    }
    return open;
  }
  OpenLock(OpenLock&& other) noexcept
      : descriptor_(std::exchange(other.descriptor_, -1)),
        is_new_(other.is_new_),
        is_alone_(other.is_alone_) {}
  OpenLock& operator=(OpenLock&&) = delete;
  ~OpenLock() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }

  /// Nobody has written into it, nor is about to.
  bool is_free() const { return stat().st_size == 0 && (is_new_ || is_alone_); }
  struct stat stat() const {
    struct stat found{};
    fstat(descriptor_, &found);
    return found;
  }
  std::string read() const {
    std::array<char, 4096> bytes;
    const ssize_t n = pread(descriptor_, bytes.data(), bytes.size(), 0);
    return n > 0 ? std::string(bytes.data(), static_cast<std::size_t>(n)) : std::string();
  }
  bool write(const std::string& text) const {
    const ssize_t n = pwrite(descriptor_, text.data(), text.size(), 0);
    return n == static_cast<ssize_t>(text.size()) &&
           ftruncate(descriptor_, static_cast<off_t>(text.size())) == 0;
  }

 private:
  OpenLock() = default;
  int descriptor_ = -1;
  bool is_new_ = false;
  bool is_alone_ = false;
};

double seconds_of(const timespec& time) {
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

/// By the clock of the folder's file system.
double now_in(const fs::path& folder) {
  std::string name = (folder / ".clock-XXXXXX").string();
  const int descriptor = mkstemp(name.data());
  if (descriptor < 0) {
    throw FileError(fmt::format("cannot write in {}: {}", folder.string(), std::strerror(errno)));
  }
  struct stat found{};
  const bool is_read = ::write(descriptor, "\n", 1) == 1 && fstat(descriptor, &found) == 0;
  ::close(descriptor);
  ::unlink(name.c_str());
  return is_read ? seconds_of(found.st_mtim) : static_cast<double>(std::time(nullptr));
}

LockHolder holder_of(const std::string& text) {
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  LockHolder holder;
  if (!json.is_object()) return holder;
  const auto read = [&json](const char* name) {
    const auto found = json.find(name);
    return found != json.end() && found->is_string() ? found->get<std::string>() : std::string();
  };
  holder = {.host = read("host"),
            .pid = std::strtoll(read("pid").c_str(), nullptr, 10),
            .began = read("began"),
            .processes = read("processes"),
            .job = read("job"),
            .restarts = read("restarts")};
  return holder;
}

}  // namespace

LockHolder this_process() {
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  std::error_code ignored;
  return {.host = host.data(),
          .pid = getpid(),
          .began = began(getpid()),
          .processes = first_word("/proc/sys/kernel/random/boot_id") + " " +
                       fs::read_symlink("/proc/self/ns/pid", ignored).string(),
          .job = variable("SLURM_JOB_ID"),
          .restarts = variable("SLURM_RESTART_COUNT")};
}

std::optional<bool> is_running(const LockHolder& holder) {
  if (holder.processes != this_process().processes) return std::nullopt;
  return !holder.began.empty() && began(holder.pid) == holder.began;
}

std::string text_of(const LockHolder& holder) {
  if (holder.host.empty()) return "a process that it does not name";
  return fmt::format("process {} on {}{}", holder.pid, holder.host,
                     holder.job.empty() ? "" : fmt::format(" (job {})", holder.job));
}

LockVerdict judge_lock(const LockHolder& holder, const LockHolder& own, double age_seconds,
                       std::optional<bool> runs) {
  if (!own.job.empty() && holder.job == own.job && holder.restarts != own.restarts) {
    return {true, "it is this job before it was requeued"};
  }
  if (runs == false) return {true, "its process has ended"};
  if (age_seconds > lock_silence_seconds) {
    return {true, fmt::format("its last sign of life was {:.0f} s ago", age_seconds)};
  }
  return {false, ""};
}

RunLock::RunLock(std::string field, fs::path folder)
    : field_(std::move(field)), folder_(std::move(folder)), own_(this_process()) {
  std::error_code error;
  made_folder_ = fs::create_directories(folder_, error);
  if (error || !fs::is_directory(folder_)) {
    throw FileError(fmt::format("{}: cannot make {}: {}", field_, folder_.string(),
                                error ? error.message() : "it is a file"));
  }
  const fs::path path = folder_ / lock_name;
  for (int n = 0;; ++n) {
    if (n == n_tries) {
      throw ConfigError(
          fmt::format("{}: {} is being taken by another run; name another folder, or remove {}",
                      field_, folder_.string(), path.string()));
    }
    if (n > 0) usleep(try_us);
    const std::optional<OpenLock> open = OpenLock::look(path, true);
    if (!open) continue;
    if (!open->is_free()) {
      const LockHolder holder = holder_of(open->read());
      const double age_seconds = now_in(folder_) - seconds_of(open->stat().st_mtim);
      const LockVerdict verdict = judge_lock(holder, own_, age_seconds, is_running(holder));
      if (!verdict.may_take) {
        throw ConfigError(fmt::format(
            "{}: {} is in use by {}, alive {:.0f} s ago ({}); name another folder, or end that "
            "run; a dead run's lock is taken over {:.0f} s after its last sign of life",
            field_, folder_.string(), text_of(holder), age_seconds, lock_name,
            lock_silence_seconds));
      }
      say_aside(fmt::format("warning: {}: {} is taken over from {}: {}\n", field_, path.string(),
                            text_of(holder), verdict.reason));
    }
    if (!open->write(contents())) {
      throw FileError(fmt::format("cannot write {}: {}", path.string(), std::strerror(errno)));
    }
    break;
  }
  ticker_ = std::make_unique<Ticker>(beat_interval, [this] { beat(); });
}

RunLock::~RunLock() {
  if (!ticker_) return;
  ticker_.reset();
  std::error_code ignored;
  try {
    const std::optional<OpenLock> open = OpenLock::look(folder_ / lock_name, false);
    if (open && holder_of(open->read()) == own_) fs::remove(folder_ / lock_name, ignored);
  } catch (const FileError&) {
    return;  // what cannot be read cannot be given back; it is taken over in time
  }
  if (made_folder_) fs::remove(folder_, ignored);  // fails where something is in it
}

std::string RunLock::contents() const {
  // All texts, of one length each time: a sign of life overwrites the one before.
  return nlohmann::ordered_json{
             {"host", own_.host},
             {"pid", std::to_string(own_.pid)},
             {"job", own_.job},
             {"alive", fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)))},
             {"began", own_.began},
             {"processes", own_.processes},
             {"restarts", own_.restarts}}
             .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) +
         "\n";
}

void RunLock::beat() {
  try {
    const std::optional<OpenLock> open = OpenLock::look(folder_ / lock_name, false);
    if (!open) return;  // looked at by a start that finds it alive, or removed by hand
    if (holder_of(open->read()) == own_) {
      static_cast<void>(open->write(contents()));
    } else {
      is_lost_ = true;
    }
  } catch (const FileError&) {
    return;  // a file system that is away for a while: the next sign of life may get through
  }
}

void RunLock::check() const {
  if (!is_lost_) return;
  throw ConfigError(fmt::format(
      "{}: another run has taken {} over, because this one gave no sign of life for {:.0f} s; it "
      "ends so that the two do not mix",
      field_, folder_.string(), lock_silence_seconds));
}

}  // namespace llm
