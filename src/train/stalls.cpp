#include "src/train/stalls.h"

#include <cstdio>
#include <initializer_list>
#include <utility>

#include "schedules/grid.h"
#include "src/base/rank_log.h"
#include "src/comm/stall_diagnosis.h"
#include "src/train/rank_plan.h"

namespace llm {
namespace {

// A disk that does not answer must not keep a stall from being told.
constexpr double log_seconds = 0.5;

/// By data-parallel rank: the rank that tells its losses.
std::vector<int> losses_from(const Settings& settings) {
  std::vector<int> ranks(static_cast<std::size_t>(settings.grid.dp), -1);
  for (int rank = 0; rank < settings.grid.n_ranks(); ++rank) {
    if (!tells_loss(settings, rank)) continue;
    ranks[static_cast<std::size_t>(place_of(settings.grid, rank).dp)] = rank;
  }
  return ranks;
}

/// Of messages that every rank sends, with the rank as the last part of the key.
KeyForm of_ranks(const char* first, int n_ranks) {
  KeyForm form{{{first}, {"rank", n_ranks}}};
  form.rank_of = [n_ranks](std::int64_t key) { return static_cast<int>(key % n_ranks); };
  return form;
}

}  // namespace

KeyForms key_forms(const Settings& settings, int rank) {
  const std::int64_t a = settings.partition.n_microbatches();
  const std::int64_t n_global = settings.partition.n_global_microbatches();
  const auto n_buckets = static_cast<std::int64_t>(layout_of(settings, rank).buckets.size());
  const int n_ranks = settings.grid.n_ranks();
  KeyForms forms;
  const auto add = [&forms](std::initializer_list<const char*> kinds, const KeyForm& form) {
    for (const char* kind : kinds) forms.emplace(kind, form);
  };
  add({"microbatch", "activation", "input_grad", "embedding_grad", "embedding gradient"},
      {{{"step"}, {"microbatch", a}}});
  add({"grads_ready", "reduced", "updated", "gathered"}, {{{"step"}, {"bucket", n_buckets}}});
  add({"piece", "sent piece", "collective sum", "announced sum", "announcement sent",
       "library's sum"},
      {{{"bucket or call"}}});
  add({"parameters_updated", "step_report", "sums of squares", "weights updated", "validation loss",
       "table received", "embedding"},
      {{{"step"}}});
  add({"computed", "activation sent", "input_grad sent"}, {{{"microbatch"}}});
  add({"sum of a layer", "part of a sum", "rows for experts"}, {{{"call"}}});
  add({"validation_loss"},
      {{{"validation"}, {"microbatch", settings.validation.n_microbatches()}}});
  add({"parameter"}, {{{"parameter"}}});
  add({"step_end", "state copied"}, {{{"save"}}});
  add({"step_facts", "router_losses"}, of_ranks("step", n_ranks));
  add({"part written"}, of_ranks("save", n_ranks));
  KeyForm loss{{{"step"}, {"microbatch", n_global}}};
  loss.rank_of = [a, n_global, from = losses_from(settings)](std::int64_t key) {
    return from[static_cast<std::size_t>(key % n_global / a)];
  };
  add({"loss"}, loss);
  KeyForm order{{{"save"}}};
  order.rank_of = [](std::int64_t) { return 0; };
  add({"order to save"}, order);
  KeyForm end{{{"rank"}}};
  end.rank_of = [](std::int64_t key) { return static_cast<int>(key); };
  add({end_of_run}, end);
  return forms;
}

StallMonitor::Options stall_options(const MpiSession& session, const Trainer& trainer,
                                    const Settings& settings, double timeout_seconds,
                                    const std::string& folder) {
  StallMonitor::Options options;
  options.timeout_seconds = timeout_seconds;
  options.folder = folder;
  options.forms = key_forms(settings, session.rank());
  options.kind_of_channel = [&trainer](int channel) { return trainer.kind_of_channel(channel); };
  options.process_state = [&session](int rank) { return session.process_state(rank); };
  options.print = [](const std::string& text) {
    std::fputs(text.c_str(), stderr);
    run_at_most(log_seconds, [text] { log_aside(text); });
  };
  options.fail = [&session](const std::string& message) { session.end_stalled(message); };
  return options;
}

}  // namespace llm
