#include "src/train/run_lock.h"

#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "src/base/error.h"

using namespace llm;
namespace fs = std::filesystem;

namespace {

class Folder {
 public:
  Folder() {
    std::string name = (fs::temp_directory_path() / "run-lock-XXXXXX").string();
    path = mkdtemp(name.data());
  }
  ~Folder() { fs::remove_all(path); }
  std::string lock() const {
    std::ifstream file(path / "run.lock");
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void write_lock(const std::string& text) const { std::ofstream(path / "run.lock") << text; }
  void grow_older(int seconds) const {
    fs::last_write_time(path / "run.lock",
                        fs::file_time_type::clock::now() - std::chrono::seconds(seconds));
  }
  fs::path path;
};

const char* const elsewhere =
    R"({"host":"other","pid":"7","job":"12","alive":"","began":"3","processes":"x","restarts":""})";

LockHolder holder(const std::string& job = "", const std::string& restarts = "") {
  return {.host = "n0", .pid = 7, .began = "3", .processes = "x", .job = job, .restarts = restarts};
}

std::string refusal(const fs::path& folder) {
  try {
    const RunLock lock("logging.run_dir", folder);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "taken";
}

/// Of a process that has ended and was waited for.
pid_t ended_process() {
  const pid_t child = fork();
  if (child == 0) _exit(0);
  int status = 0;
  waitpid(child, &status, 0);
  return child;
}

}  // namespace

TEST_CASE(
    "a lock is taken over from an ended process, a silent one and this job before its requeue") {
  const LockHolder other = holder("12");
  CHECK_FALSE(judge_lock(other, holder("13"), 5, std::nullopt).may_take);
  CHECK_FALSE(judge_lock(other, holder("13"), 5, true).may_take);
  CHECK_FALSE(judge_lock(other, holder(), 60, std::nullopt).may_take);
  CHECK_FALSE(judge_lock(holder(), holder(), 5, std::nullopt).may_take);
  CHECK_FALSE(judge_lock(other, holder("12"), 5, true).may_take);  // two steps of one job
  CHECK(judge_lock(other, holder("13"), 5, false).reason == "its process has ended");
  CHECK(judge_lock(other, holder("13"), 61, true).reason == "its last sign of life was 61 s ago");
  CHECK(judge_lock(other, holder("12", "1"), 0, std::nullopt).reason ==
        "it is this job before it was requeued");
  CHECK(judge_lock(holder("12", "1"), holder("12", "2"), 0, true).may_take);
  CHECK_FALSE(judge_lock(holder("", "1"), holder("", "2"), 0, true).may_take);
}

TEST_CASE("a clock that ran back does not make a lock old") {
  CHECK_FALSE(judge_lock(holder("12"), holder("13"), -1000, std::nullopt).may_take);
}

TEST_CASE("a process knows whether another one of its kernel runs, by number and beginning") {
  LockHolder one = this_process();
  CHECK(is_running(one) == true);
  one.began += "1";
  CHECK(is_running(one) == false);  // the number has come again
  one.pid = ended_process();
  CHECK(is_running(one) == false);
  one.processes = "another kernel";
  CHECK_FALSE(is_running(one).has_value());
}

TEST_CASE("a folder's lock is one run's, and free again when that one ends") {
  const Folder folder;
  {
    const RunLock lock("logging.run_dir", folder.path);
    CHECK(folder.lock().find("\"pid\":\"" + std::to_string(getpid()) + "\"") != std::string::npos);
    const std::string text = refusal(folder.path);
    CHECK_THAT(text, Catch::StartsWith("logging.run_dir: ") &&
                         Catch::Contains("is in use by process") &&
                         Catch::Contains(std::to_string(getpid())) &&
                         Catch::Contains("name another folder"));
    CHECK_NOTHROW(lock.check());
  }
  CHECK_FALSE(fs::exists(folder.path / "run.lock"));
  CHECK(refusal(folder.path) == "taken");
  CHECK(fs::is_empty(folder.path));
}

TEST_CASE("a folder that a run made and left empty goes with its lock, one with files stays") {
  const Folder folder;
  const fs::path inner = folder.path / "a/b";
  CHECK(refusal(inner) == "taken");
  CHECK_FALSE(fs::exists(inner));
  {
    const RunLock lock("logging.run_dir", inner);
    std::ofstream(inner / "metrics.jsonl") << "{}\n";
  }
  CHECK(fs::exists(inner / "metrics.jsonl"));
}

TEST_CASE("another host's lock holds for 60 s after its last sign of life") {
  const Folder folder;
  folder.write_lock(elsewhere);
  CHECK_THAT(refusal(folder.path), Catch::Contains("in use by process 7 on other (job 12)"));
  CHECK(folder.lock() == elsewhere);
  folder.grow_older(50);
  CHECK_THAT(refusal(folder.path), Catch::Contains("alive 50 s ago"));
  folder.grow_older(70);
  CHECK(refusal(folder.path) == "taken");
}

TEST_CASE("what is no lock's text holds as long, and names nobody") {
  for (const char* text : {"{", "[1,2]", "null", R"({"pid":7})"}) {
    const Folder folder;
    folder.write_lock(text);
    CHECK_THAT(refusal(folder.path), Catch::Contains("in use by a process that it does not name"));
    folder.grow_older(70);
    CHECK(refusal(folder.path) == "taken");
  }
}

TEST_CASE("a run whose lock another has taken over learns it and leaves the other's alone") {
  const Folder folder;
  {
    RunLock lock("logging.run_dir", folder.path);
    folder.grow_older(100);
    lock.beat();
    CHECK_THAT(refusal(folder.path), Catch::Contains("is in use"));  // young again
    CHECK_NOTHROW(lock.check());
    folder.write_lock(elsewhere);
    lock.beat();
    CHECK_THROWS_WITH(lock.check(), Catch::Contains("another run has taken"));
    CHECK_THROWS_AS(lock.check(), ConfigError);
  }
  CHECK(folder.lock() == elsewhere);
}

TEST_CASE("of several processes that find a dead run's lock at once one takes it") {
  for (int round = 0; round < 10; ++round) {
    const Folder folder;
    folder.write_lock(elsewhere);
    folder.grow_older(100);
    constexpr int n_processes = 4;
    int gate[2], done[2];
    REQUIRE(pipe(gate) == 0);
    REQUIRE(pipe(done) == 0);
    std::vector<pid_t> children;
    for (int i = 0; i < n_processes; ++i) {
      children.push_back(fork());
      if (children.back() != 0) continue;
      close(gate[1]);
      close(done[1]);
      char byte = 0;
      static_cast<void>(!read(gate[0], &byte, 1));  // until the parent opens the gate for all
      int code = 1;
      try {
        const RunLock lock("logging.run_dir", folder.path);
        code = 0;
        // Every process has tried before one gives up what it has.
        static_cast<void>(!read(done[0], &byte, 1));
      } catch (const ConfigError&) {
        code = 78;
      }
      _exit(code);
    }
    close(gate[0]);
    close(gate[1]);
    int n_refused = 0;
    for (int i = 0; i < n_processes - 1; ++i) {
      int status = 0;
      waitpid(-1, &status, 0);
      n_refused += WIFEXITED(status) && WEXITSTATUS(status) == 78 ? 1 : 0;
    }
    close(done[1]);
    int status = 0;
    waitpid(-1, &status, 0);
    close(done[0]);
    CHECK(n_refused == n_processes - 1);
    CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 0));
  }
}

TEST_CASE("a folder that cannot be made is a file error that names it") {
  const Folder folder;
  std::ofstream(folder.path / "file") << "x";
  CHECK_THROWS_AS(RunLock("logging.run_dir", folder.path / "file"), FileError);
  CHECK_THROWS_AS(RunLock("logging.run_dir", folder.path / "file/inner"), FileError);
}
