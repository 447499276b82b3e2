#include "schedules/pipeline_file.h"

#include <catch2/catch.hpp>

#include "src/base/error.h"
#include "tests/schedules/pipelines.h"

using namespace llm;

namespace {

std::string refusal_of(const std::string& text) {
  try {
    read_pipeline("s.txt", text);
  } catch (const ConfigError& e) {
    return e.what();
  }
  return "accepted";
}

}  // namespace

TEST_CASE("every schedule is read back from its own text") {
  for (const auto& [name, shape, pipeline] : test::all_pipelines()) {
    INFO(name << "\n" << pipeline_text(pipeline));
    REQUIRE(read_pipeline("s.txt", pipeline_text(pipeline)) == pipeline);
  }
}

TEST_CASE("comments, blank lines and carriage returns are left out") {
  const Pipeline pipeline = read_pipeline("s.txt",
                                          "# two ranks\n\nplacement: looped\r\n"
                                          "F0\tF1 B0 B1   # the first\r\n\n  F0 B0 F1 B1");
  CHECK(pipeline.n_ranks == 2);
  CHECK(to_string(pipeline.schedules[0]) == "F0 F1 B0 B1");
  CHECK(to_string(pipeline.schedules[1]) == "F0 B0 F1 B1");
  const Pipeline mixed = read_pipeline("s.txt", "F0.0 F0.1 B0.1 I0.0 W0.0");
  CHECK(mixed.n_chunks == 2);
}

TEST_CASE("a text that is no schedule is refused with its line") {
  const std::string no_action =
      " is no action; write F, B, I or W with a microbatch, and a chunk where a rank has several: "
      "F0, B3.1, or as a pair F1|B0";
  for (const std::string word : {"G0", "F", "F-1", "F0.", "F0.x", "F0,", "f0", "F1000001", "rank",
                                 "placement:", "|", "F1|", "|B0", "F1||B0", "F1|x"}) {
    CHECK(refusal_of("# a\nF0 B0\nF0 " + word) == "s.txt:3: " + word + no_action);
  }
  CHECK(refusal_of("F0 " + std::string(30, 'x')) ==
        "s.txt:1: " + std::string(20, 'x') + "..." + no_action);
  CHECK(refusal_of("") == "s.txt: no schedule; write one line a rank, as F0 B0 F1 B1");
  CHECK(refusal_of("# F0 B0\n") == "s.txt: no schedule; write one line a rank, as F0 B0 F1 B1");
  CHECK(refusal_of("placement: round\nF0 B0") ==
        "s.txt:1: placement: round is not one of looped, zig_zag");
  CHECK(refusal_of("placement:\nF0 B0") == "s.txt:1: placement:  is not one of looped, zig_zag");
  CHECK(refusal_of("placement: zig_zag\nF0 B0") ==
        "s.txt: placement: zig_zag has two chunks a rank, but there are 1");
}

TEST_CASE("a schedule that breaks a rule is refused with its rank, the actions and the rule") {
  const std::string forwards = "; the forwards of a chunk run in microbatch order";
  const std::string backwards = "; the backwards of a chunk run in microbatch order";
  const std::string weights = "; the weight gradients of a chunk add up in microbatch order";
  CHECK(refusal_of("F0 F1 B0 B1\nF1 F0 B0 B1") ==
        "s.txt:2: rank 1: F1 stands before F0" + forwards);
  CHECK(refusal_of("F0 F1 B1 B0") == "s.txt:1: rank 0: B1 stands before B0" + backwards);
  CHECK(refusal_of("F0 F1 I1 I0 W0 W1") == "s.txt:1: rank 0: I1 stands before I0" + backwards);
  CHECK(refusal_of("F0 F1 I0 I1 W1 W0") == "s.txt:1: rank 0: W1 stands before W0" + weights);
  CHECK(refusal_of("F0 F1 I0 B1 W0") == "s.txt:1: rank 0: B1 stands before W0" + weights);
  CHECK(refusal_of("F0.0 F1.0 F0.1 F1.1 B1.1 B0.1 B0.0 B1.0") ==
        "s.txt:1: rank 0: B1.1 stands before B0.1" + backwards);
  CHECK(refusal_of("B0 F0") ==
        "s.txt:1: rank 0: B0 stands before F0; a backward follows its forward");
  CHECK(refusal_of("F0 W0 I0") ==
        "s.txt:1: rank 0: W0 stands before I0; a weight half follows its input half");
  CHECK(refusal_of("F0 F0 B0") == "s.txt:1: rank 0: F0 stands twice; an action stands once");
  CHECK(refusal_of("F0 B0 I0 W0") == "s.txt:1: rank 0: I0 stands twice; an action stands once");
  CHECK(refusal_of("F0 B0\nB0") ==
        "s.txt:2: rank 1: B0 stands before F0; a backward follows its forward");
  CHECK(refusal_of("F0 F1 B0 B1\nF0 B0") ==
        "s.txt:2: rank 1: F1 is missing; every chunk has a forward of each microbatch");
  CHECK(refusal_of("F0 F1 B0") ==
        "s.txt:1: rank 0: B1 is missing; every forward has a backward, or both its halves I and W");
  CHECK(refusal_of("F0 F1 I0 I1 W0") ==
        "s.txt:1: rank 0: W1 is missing; every input half has a weight half");
  CHECK(refusal_of("F0.1 B0.1") ==
        "s.txt:1: rank 0: F0 is missing; every chunk has a forward of each microbatch");
}

TEST_CASE("what is no pair of a forward and another's backward is refused") {
  const std::string no_pair =
      " is no pair; write a forward, and after it the backward, or a half of one, of another "
      "microbatch or chunk: F1|B0";
  CHECK(refusal_of("F0 F1|B0 B1") == "accepted");
  CHECK(refusal_of("F0 F1|I0 W0 F2|I1 F3|W1 B2 B3") == "accepted");
  CHECK(refusal_of("F0 F1|B0|F2 B1 B2") == "s.txt:1: rank 0: F1|B0" + no_pair);
  CHECK(refusal_of("F0|F1 B0 B1") == "s.txt:1: rank 0: F0|F1" + no_pair);
  CHECK(refusal_of("F0 B0|F1 B1") == "s.txt:1: rank 0: B0|F1" + no_pair);
  CHECK(refusal_of("F0|B0") == "s.txt:1: rank 0: F0|B0" + no_pair);
  CHECK(refusal_of("F0 F1 I0 W0|I1 W1") == "s.txt:1: rank 0: W0|I1" + no_pair);
  CHECK(refusal_of("F0 F1|B0 B1\nF0 F1|B0 B1") ==
        "s.txt: the ranks wait for ever: rank 0 waits at F1|B0 for B0 of rank 1; rank 1 waits at "
        "F1|B0 for F1 of rank 0");
}

TEST_CASE("schedules that are right alone and never end together are refused") {
  CHECK(refusal_of("F0.0 B0.0 F0.1 B0.1") ==
        "s.txt: the ranks wait for ever: rank 0 waits at B0 for B0.1 of rank 0");
  CHECK(refusal_of("F0 B0 F1 B1\nF0 F1 B0 B1") ==
        "s.txt: the ranks wait for ever: rank 0 waits at B0 for B0 of rank 1; rank 1 waits at F1 "
        "for F1 of rank 0");
}
