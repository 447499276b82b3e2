#include <catch2/catch.hpp>
#include <deque>
#include <string>
#include <vector>

#include "src/comm/loopback/loopback.h"
#include "src/comm/stall_diagnosis.h"
#include "src/comm/stall_monitor.h"
#include "src/comm/stall_table.h"

using namespace llm;

namespace {

using Kind = Diagnosis::Kind;
using Wait = StallTable::Wait;
using Lane = StallTable::Lane;
using Channel = StallTable::Channel;

Wait wait_for(std::string actor, std::string kind, std::string peer, int peer_rank = -1,
              double seconds = 3) {
  return {.actor = std::move(actor),
          .kind = std::move(kind),
          .what = "step 3, bucket 2",
          .peer = std::move(peer),
          .peer_rank = peer_rank,
          .seconds = seconds};
}

Wait service(Wait wait) {
  wait.background = true;
  return wait;
}

/// A rank of a data-parallel run that waits for a piece of `peer`'s.
StallTable reducing(int rank, int peer) {
  StallTable table;
  table.rank = rank;
  table.process = 100 + rank;
  table.host = "node";
  table.idle_seconds = table.known_seconds = 3;
  table.waits = {
      wait_for("stage", "parameters_updated", "optimizer_shard"),
      wait_for("optimizer_shard", "reduced", "gradient_reducer"),
      service(wait_for("gradient_reducer 0", "piece", "rank " + std::to_string(peer), peer)),
      service(wait_for("gradient_reducer 1", "grads_ready", "stage"))};
  return table;
}

Lane receives(int peer, int tag, std::int64_t awaited, std::int64_t arrived, std::string next) {
  return {.peer = peer, .tag = tag, .awaited = awaited, .arrived = arrived, .next = next};
}

Lane sends(int peer, int tag, std::int64_t sent, std::string last) {
  return {.peer = peer, .tag = tag, .sent = sent, .last_sent = last};
}

Diagnosis diagnosis_of(const std::vector<StallTable>& tables, std::vector<RankReport> others = {}) {
  std::vector<RankReport> reports;
  for (const StallTable& table : tables) reports.push_back({table.rank, table, ""});
  for (RankReport& other : others) reports.push_back(std::move(other));
  return diagnose(reports);
}

const std::string piece = "partial_sum step 3 index 2 part 0: 100 f32";

Task<> receives_piece(Transport& transport, std::vector<float>& into, const WaitName& name) {
  Event received(transport.loop(), name, 2);
  transport.receive(1, 17, Header(MessageKind::partial_sum, 3, 2, 0),
                    MutView(into.data(), {static_cast<std::int64_t>(into.size())}), received);
  co_await received;
}

}  // namespace

TEST_CASE("a stall table is read back as it was written, from among other lines") {
  StallTable table = reducing(3, 1);
  table.stuck_seconds = 2.5;
  table.place = "in op linear";
  table.lanes = {receives(1, 17, 5, 4, piece), sends(2, 0, 7, "gathered step 1 index 0 part 0")};
  table.channels = {{.peer = 2, .channel = 3, .kind = "step_facts", .sent = 4, .arrived = 5}};
  const std::string text = "what it means\n\n" + to_text(table) + "more\n";
  const auto read = parse_stall_table(text);
  REQUIRE(read);
  CHECK(*read == table);
}

TEST_CASE("a table that was cut short, or is none, is not read") {
  StallTable table = reducing(0, 1);
  table.channels = {{.peer = 2, .channel = 3, .kind = "step_facts", .sent = 4, .arrived = 5}};
  const std::string text = to_text(table);
  for (std::size_t n = 0; n < text.size(); ++n) {
    INFO(n);
    const bool is_whole = n + 1 == text.size();  // but for the last newline
    CHECK(parse_stall_table(text.substr(0, n)).has_value() == is_whole);
  }
  CHECK_FALSE(parse_stall_table("stall table\nend of the stall table\n"));
  CHECK_FALSE(parse_stall_table("stall table | rank x\nwait | a\nend of the stall table\n"));
}

TEST_CASE("a rank's table has its waits by name, its open receives and its channels") {
  Loop loop;
  LoopbackNetwork network(loop, 2, 1);
  Inbox<int> inbox(loop, WaitName("step_facts", "data_feed of every rank"));
  KeyForms forms;
  forms["piece"] = {{{"bucket"}}};
  forms["step_facts"] = {{{"step"}, {"rank", 2}}};
  forms["step_facts"].rank_of = [](std::int64_t key) { return static_cast<int>(key % 2); };
  const WaitName name("piece", "rank 1");
  std::vector<float> into(100);
  loop.spawn("reducer", receives_piece(network.rank(0), into, name));
  CHECK_FALSE(loop.run_until_idle());
  network.rank(1).on_control([](int, const ControlHeader&, std::span<const std::byte>) {});
  network.rank(0).send_control(1, ControlHeader(3, 0, 7), {});
  const auto name_of_channel = [](int channel) { return "channel " + std::to_string(channel); };
  const StallTable table = stall_table(network.rank(0), loop, forms, name_of_channel);
  REQUIRE(table.waits.size() == 1);
  CHECK(
      to_text(table.waits[0]).starts_with("reducer waits for piece(bucket 2) from rank 1 since "));
  CHECK(table.waits[0].peer_rank == 1);
  REQUIRE(table.lanes.size() == 1);
  CHECK(table.lanes[0] == receives(1, 17, 1, 0, piece));
  REQUIRE(table.channels.size() == 1);
  CHECK(table.channels[0] == Channel{.peer = 1, .channel = 3, .kind = "channel 3", .sent = 1});
  CHECK(forms["step_facts"].text(7) == "step 3, rank 1");
}

TEST_CASE("a rank that nobody hears from is named, with who waits for it") {
  const Diagnosis found = diagnosis_of({reducing(0, 1), reducing(2, 0)}, {{.rank = 1}});
  CHECK(found.kind == Kind::silent);
  CHECK(found.ranks == std::vector<int>{1});
  CHECK(found.text ==
        "nobody hears from rank 1; rank 0's gradient_reducer 0 waits for piece(step 3, bucket 2) "
        "from rank 1 since 3.0 s");
}

TEST_CASE("a stopped or ended process is said to be one") {
  for (const auto& [state, kind] :
       {std::pair{"stopped", Kind::stopped}, std::pair{"ended", Kind::ended}}) {
    const Diagnosis found =
        diagnosis_of({reducing(0, 1)}, {{.rank = 1, .table = {}, .process_state = state}});
    CHECK(found.kind == kind);
    CHECK(found.ranks == std::vector<int>{1});
  }
}

TEST_CASE("a rank that writes its table and is not heard has no network") {
  std::vector<RankReport> reports = {{.rank = 0, .table = reducing(0, 1)},
                                     {.rank = 1, .table = reducing(1, 0), .is_from_file = true}};
  reports[1].table->host = "far";
  const Diagnosis found = diagnose(reports);
  CHECK(found.kind == Kind::unreachable);
  CHECK(found.ranks == std::vector<int>{1});
  CHECK_THAT(found.text,
             Catch::StartsWith("rank 1 on far runs, and its messages do not arrive: the "
                               "network is down between it and node; rank 0's"));
}

TEST_CASE("a loop that does not turn is the cause, whoever else waits in a circle") {
  StallTable stuck = reducing(1, 0);
  stuck.stuck_seconds = 3;
  stuck.place = "in op linear";
  const Diagnosis found = diagnosis_of({reducing(0, 1), stuck});
  CHECK(found.kind == Kind::stuck);
  CHECK(found.ranks == std::vector<int>{1});
  CHECK_THAT(found.text,
             Catch::Contains("rank 1's loop has not turned for 3.0 s: it is in op linear"));
}

TEST_CASE("ranks that wait for each other are named in their order") {
  const Diagnosis found =
      diagnosis_of({reducing(0, 2), reducing(1, 0), reducing(2, 1), reducing(3, 0)});
  CHECK(found.kind == Kind::cycle);
  CHECK(found.ranks == std::vector<int>{0, 2, 1});
}

TEST_CASE("services that wait for what nobody owes them make no cycle") {
  // Rank 1's disk keeps its writer, which rank 0 waits for; rank 1 is ready to serve rank 0.
  StallTable first = reducing(0, 1);
  StallTable second;
  second.rank = 1;
  second.waits = {wait_for("checkpoint_writer", "work beside the loop", "disk"),
                  wait_for("optimizer_shard", "state copied", "checkpoint_writer"),
                  service(wait_for("master_server", "request for a parameter", "rank 0", 0, 9))};
  const Diagnosis found = diagnosis_of({first, second});
  CHECK(found.kind == Kind::local);
  CHECK(found.ranks == std::vector<int>{1});
  CHECK_THAT(found.text,
             Catch::StartsWith("rank 1's checkpoint_writer waits for work beside the "
                               "loop(step 3, bucket 2) from disk since 3.0 s; rank 0's"));
}

TEST_CASE(
    "a stage's wait leads to the rank that its receiver waits for, an op's to a layer's sum") {
  StallTable stage;
  stage.rank = 1;
  stage.waits = {wait_for("stage", "activation", "stage 0"),
                 service(wait_for("activation_receiver", "activation", "rank 0", 0))};
  StallTable layers;
  layers.rank = 0;
  layers.waits = {wait_for("stage", "computed", ""),
                  service(wait_for("tensor_sums", "piece", "rank 1", 1))};
  CHECK(diagnosis_of({layers, stage}).kind == Kind::cycle);
}

TEST_CASE("a message that was sent and did not arrive is lost, one that nobody sent is not") {
  StallTable receiver = reducing(0, 1);
  receiver.lanes = {receives(1, 17, 5, 4, piece)};
  StallTable sender = reducing(1, 0);
  sender.lanes = {sends(0, 17, 5, piece)};
  const Diagnosis found = diagnosis_of({receiver, sender});
  CHECK(found.kind == Kind::lost);
  CHECK_THAT(found.text, Catch::Contains("message 5 from rank 1 to rank 0 on tag 17, [" + piece));
  sender.lanes = {sends(0, 17, 4, piece)};
  CHECK(diagnosis_of({receiver, sender}).kind == Kind::cycle);
}

TEST_CASE("a message that was sent on another tag is named with both") {
  StallTable receiver = reducing(0, 1);
  receiver.lanes = {receives(1, 17, 5, 4, piece)};
  StallTable sender = reducing(1, 0);
  sender.lanes = {sends(0, 17, 4, "another"), sends(0, 18, 1, piece)};
  const Diagnosis found = diagnosis_of({receiver, sender});
  CHECK(found.kind == Kind::mis_tagged);
  CHECK_THAT(found.text, Catch::Contains("on tag 17, and rank 1 sent it on tag 18"));
}

TEST_CASE("control messages are counted: lost, twice, on another channel") {
  StallTable sender = reducing(1, 0);
  StallTable receiver = reducing(0, 1);
  receiver.waits.push_back(wait_for("optimizer_shard", "step_facts", "data_feed", 1));
  sender.channels = {{.peer = 0, .channel = 3, .kind = "channel 3", .sent = 5}};
  receiver.channels = {{.peer = 1, .channel = 3, .kind = "step_facts", .arrived = 4}};
  const Diagnosis lost = diagnosis_of({receiver, sender});
  CHECK(lost.kind == Kind::lost);
  CHECK_THAT(lost.text,
             Catch::StartsWith("4 of 5 messages step_facts from rank 1 to rank 0 have "
                               "arrived; rank 0's optimizer_shard waits for step_facts"));
  receiver.channels[0].arrived = 6;
  CHECK(diagnosis_of({receiver, sender}).kind == Kind::duplicated);
  receiver.channels[0].arrived = 4;
  receiver.channels.push_back({.peer = 1, .channel = 4, .kind = "loss", .arrived = 1});
  const Diagnosis moved = diagnosis_of({receiver, sender});
  CHECK(moved.kind == Kind::mis_tagged);
  CHECK_THAT(moved.text,
             Catch::Contains("a message step_facts from rank 1 to rank 0 arrived as loss"));
}

TEST_CASE("a rank that is done with its steps while others wait for it is named") {
  StallTable done;
  done.rank = 1;
  done.waits = {wait_for("end_of_run", end_of_run, "", 0),
                service(wait_for("gradient_reducer 0", "grads_ready", "stage"))};
  const Diagnosis found = diagnosis_of({reducing(0, 1), done});
  CHECK(found.kind == Kind::finished);
  CHECK(found.ranks.front() == 1);
}

TEST_CASE("ranks that are done wait for the one that is not, and are no cause") {
  StallTable done;
  done.rank = 1;
  done.waits = {wait_for("end_of_run", end_of_run, "", 0)};
  StallTable slow;
  slow.rank = 0;
  slow.waits = {wait_for("checkpoint_writer", "work beside the loop", "disk")};
  const Diagnosis found = diagnosis_of({slow, done});
  CHECK(found.kind == Kind::local);
  CHECK(found.ranks == std::vector<int>{0});
}

TEST_CASE("up to 64 ranks ask all others; of more, rank 0 does and the others ask rank 0") {
  CHECK(ranks_to_ask(2, 4) == std::vector<int>{0, 1, 3});
  CHECK(ranks_to_ask(5, 1000) == std::vector<int>{0});
  CHECK(ranks_to_ask(0, 1000).size() == 999);
  CHECK(ranks_to_ask(0, 1).empty());
}
