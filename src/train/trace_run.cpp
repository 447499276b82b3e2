#include "src/train/trace_run.h"

#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>

#include <fmt/format.h>
#include "schedules/pipeline_file.h"
#include "src/train/rank_plan.h"

namespace llm {

TraceFacts trace_facts(const Settings& s, const std::string& run_dir) {
  return {.layout = layout_text(s),
          .grid = s.grid,
          .pipeline = s.pipeline,
          .n_flushes = static_cast<int>(s.partition.n_microbatches() / s.pipeline.n_microbatches),
          .run_dir = std::filesystem::absolute(run_dir).string()};
}

Trace begin_trace(const MpiSession& session, const TraceFacts& facts) {
  const auto started = std::chrono::system_clock::now().time_since_epoch();
  const std::string run =
      session.broadcast(fmt::format("{:x}-{:x}", started / std::chrono::microseconds(1), getpid()));
  const ClockAlignment clock = session.align_clocks();
  Trace trace(session.rank(), clock.origin_ns);
  nlohmann::ordered_json json;
  json["version"] = 1;
  json["run"] = run;
  json["rank"] = session.rank();
  json["n_ranks"] = session.n_ranks();
  json["clock_uncertainty_us"] = static_cast<double>(clock.uncertainty_ns) * 1e-3;
  json["started"] = std::chrono::duration<double>(started).count();
  json["layout"] = facts.layout;
  json["grid"] = {{"dp", facts.grid.dp}, {"pp", facts.grid.pp}, {"tp", facts.grid.tp}};
  json["pipeline"] = pipeline_text(facts.pipeline);
  json["n_flushes"] = facts.n_flushes;
  json["run_dir"] = facts.run_dir;
  trace.describe("llm_train", json.dump());
  return trace;
}

void end_trace(const MpiSession& session, Trace& trace, const std::string& folder) {
  const std::int64_t end_ns = session.align_clocks().origin_ns;
  const std::string since_begin = session.broadcast(std::to_string(end_ns - trace.origin_ns()));
  trace.align_end(end_ns, std::stoll(since_begin));
  trace.write(fmt::format("{}/rank-{}.json", folder, session.rank()));
}

}  // namespace llm
