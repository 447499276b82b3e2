#include "src/base/rank_log.h"

#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <string>

#include "src/base/file.h"

using namespace llm;

namespace {

struct LogFolder {
  LogFolder()
      : path(std::filesystem::temp_directory_path() /
             ("llm-rank-log-" + std::to_string(getpid()))) {
    std::filesystem::create_directories(path);
  }
  ~LogFolder() {
    close_rank_log();
    std::filesystem::remove_all(path);
  }
  std::filesystem::path path;
};

}  // namespace

TEST_CASE("a rank's log has what was said before it was opened and what came after, in order") {
  const LogFolder folder;
  const std::filesystem::path path = folder.path / "logs" / "rank-3.log";
  close_rank_log();
  log_aside("early\n");
  open_rank_log(path);
  log_aside("two\nlines\n\n");
  std::string text = read_file(path);
  CHECK_THAT(text, Catch::Matches("\\d{4}-\\d\\d-\\d\\d \\d\\d:\\d\\d:\\d\\d early\n"
                                  "\\d{4}-\\d\\d-\\d\\d \\d\\d:\\d\\d:\\d\\d two\n {20}lines\n"));
  open_rank_log(path);  // of a run that goes on in the same folder
  log_aside("again");
  CHECK(read_file(path).starts_with(text));
  text = read_file(path);
  close_rank_log();
  log_aside("nowhere");
  CHECK(read_file(path) == text);
}

TEST_CASE("a log that cannot be written is no error") {
  const LogFolder folder;
  open_rank_log(folder.path / "file" / "rank-0.log");
  close_rank_log();
  open_rank_log(folder.path / "file" / "rank-0.log" / "rank-0.log");
  log_aside("kept");
  CHECK(read_file(folder.path / "file" / "rank-0.log").find("kept") == std::string::npos);
}
