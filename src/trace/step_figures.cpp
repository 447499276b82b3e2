#include "src/trace/step_figures.h"

#include <algorithm>
#include <numeric>

#include "src/trace/flush_figures.h"

namespace llm {
namespace {

std::vector<Span> merged(std::vector<Span> spans) {
  std::sort(spans.begin(), spans.end(),
            [](const Span& a, const Span& b) { return a.begin_ns < b.begin_ns; });
  std::vector<Span> joined;
  for (const Span& span : spans) {
    if (!joined.empty() && span.begin_ns <= joined.back().end_ns) {
      joined.back().end_ns = std::max(joined.back().end_ns, span.end_ns);
    } else {
      joined.push_back(span);
    }
  }
  return joined;
}

/// All that is asked for more than once.
struct Context {
  const Timeline& timeline;
  const Messages messages;
  std::vector<Activity> activities;
  std::vector<std::vector<Span>> in_flight;  // by rank, merged

  explicit Context(const Timeline& t) : timeline(t), messages(messages_of(t)) {
    for (std::size_t rank = 0; rank < t.ranks.size(); ++rank) {
      activities.emplace_back(t, rank);
      std::vector<Span> spans;
      for (const TimelineFlow& flow : t.ranks[rank].flows) {
        const auto found = messages.find(flow.id);
        if (flow.begins || flow.is_control || found == messages.end()) continue;
        if (found->second.at_ns < flow.at_ns) spans.push_back({found->second.at_ns, flow.at_ns});
      }
      in_flight.push_back(merged(std::move(spans)));
    }
  }
};

/// Attributes a pause of the rank to what it waited for, from its end back.
void add_pause(const Timeline& timeline, const Activity& activity, Span pause, RankFigures& out) {
  while (pause.end_ns - pause.begin_ns > pause_ns) {
    const Cause cause = activity.cause(std::nullopt, pause.begin_ns, pause.end_ns);
    if (cause.wait == nullptr) break;
    if (pause.end_ns - cause.wait->end_ns > pause_ns) {
      out.other_ns += pause.end_ns - cause.wait->end_ns;
      pause.end_ns = cause.wait->end_ns;
    }
    const std::int64_t from_ns =
        std::min(pause.end_ns - 1, std::max(pause.begin_ns, cause.wait->begin_ns));
    std::int64_t& sum = cause.arrival != nullptr ? out.exposed_ns[timeline.name(cause.wait->name)]
                                                 : out.own_waits_ns;
    sum += pause.end_ns - from_ns;
    pause.end_ns = from_ns;
  }
  out.other_ns += std::max<std::int64_t>(0, pause.end_ns - pause.begin_ns);
}

RankFigures rank_figures(const Context& context, std::size_t rank, Span step) {
  const Activity& activity = context.activities[rank];
  RankFigures figures;
  figures.wall_ns = step.end_ns - step.begin_ns;
  std::int64_t at_ns = step.begin_ns;
  std::vector<Span> busy;
  const Busy* const before = activity.last_before(step.begin_ns);
  const Busy* next = before != nullptr ? before : activity.busy().data();
  for (; next != activity.busy().data() + activity.busy().size(); ++next) {
    const Span work{std::max(next->begin_ns, at_ns), std::min(next->end_ns, step.end_ns)};
    if (next->begin_ns >= step.end_ns) break;
    if (work.end_ns <= work.begin_ns) continue;
    add_pause(context.timeline, activity, {at_ns, work.begin_ns}, figures);
    const bool is_op = context.timeline.ranks[rank].row_name(next->row).ends_with("queue");
    std::int64_t& sum = next->is_model ? figures.model_ns
                        : is_op        ? figures.sums_ns
                                       : figures.actors_ns;
    sum += work.end_ns - work.begin_ns;
    busy.push_back(work);
    at_ns = work.end_ns;
  }
  add_pause(context.timeline, activity, {at_ns, step.end_ns}, figures);

  auto work = busy.begin();
  for (const Span& flight : context.in_flight[rank]) {
    const Span part{std::max(flight.begin_ns, step.begin_ns), std::min(flight.end_ns, step.end_ns)};
    if (part.end_ns <= part.begin_ns) continue;
    figures.in_flight_ns += part.end_ns - part.begin_ns;
    while (work != busy.end() && work->end_ns <= part.begin_ns) ++work;
    for (auto w = work; w != busy.end() && w->begin_ns < part.end_ns; ++w) {
      figures.overlapped_ns +=
          std::min(part.end_ns, w->end_ns) - std::max(part.begin_ns, w->begin_ns);
    }
  }
  return figures;
}

/// Of every rank. Without steps, one from the first slice to the last of all.
struct StepSpans {
  std::int64_t step;
  std::vector<Span> of_ranks;
};
std::vector<StepSpans> spans_of(const Context& context, std::int64_t first, std::int64_t last) {
  std::vector<StepSpans> all;
  for (const auto& [step, slice] : context.activities.front().steps()) {
    StepSpans spans{step, {}};
    for (const Activity& activity : context.activities) {
      const auto found = activity.steps().find(step);
      if (found == activity.steps().end()) break;
      spans.of_ranks.push_back({found->second->begin_ns, found->second->end_ns});
    }
    const bool is_wanted = first <= step && step <= last;
    if (is_wanted && spans.of_ranks.size() == context.activities.size()) all.push_back(spans);
  }
  if (!context.activities.front().steps().empty()) return all;
  Span whole{INT64_MAX, INT64_MIN};
  for (const RankTimeline& rank : context.timeline.ranks) {
    for (const TimelineSlice& slice : rank.slices) {
      if (slice.kind == SliceKind::wait) continue;  // actors wait before there is anything
      whole.begin_ns = std::min(whole.begin_ns, slice.begin_ns);
      whole.end_ns = std::max(whole.end_ns, slice.end_ns);
    }
  }
  if (whole.begin_ns >= whole.end_ns) return {};
  return {{0, std::vector<Span>(context.activities.size(), whole)}};
}

void find_straggler(StepFigures& figures) {
  std::vector<std::int64_t> work;
  for (const RankFigures& rank : figures.ranks) work.push_back(rank.model_ns + rank.actors_ns);
  figures.slowest =
      static_cast<std::size_t>(std::max_element(work.begin(), work.end()) - work.begin());
  const std::int64_t longest = work[figures.slowest];
  std::sort(work.begin(), work.end());
  figures.beyond_median_ns = longest - (work[(work.size() - 1) / 2] + work[work.size() / 2]) / 2;
}

double mean_of(const std::vector<FlushFigures>& flushes, double FlushFigures::* member) {
  double sum = 0;
  for (const FlushFigures& flush : flushes) sum += flush.*member;
  return flushes.empty() ? 0 : sum / static_cast<double>(flushes.size());
}

}  // namespace

std::int64_t RankFigures::exposed_all_ns() const {
  std::int64_t sum = 0;
  for (const auto& [kind, ns] : exposed_ns) sum += ns;
  return sum;
}

double StepFigures::bubble() const {
  return mean_of(flushes, &FlushFigures::bubble);
}

double StepFigures::planned_bubble() const {
  return mean_of(flushes, &FlushFigures::planned_bubble);
}

std::vector<StepFigures> step_figures(const Timeline& timeline, std::int64_t first,
                                      std::int64_t last) {
  const Context context(timeline);
  std::vector<StepFigures> all;
  for (const StepSpans& spans : spans_of(context, first, last)) {
    StepFigures figures;
    figures.step = spans.step;
    figures.begin_ns = INT64_MIN;
    figures.end_ns = INT64_MIN;
    std::size_t last_rank = 0;
    for (std::size_t rank = 0; rank < spans.of_ranks.size(); ++rank) {
      const Span span = spans.of_ranks[rank];
      figures.begin_ns = std::max(figures.begin_ns, span.begin_ns);
      if (span.end_ns > figures.end_ns) last_rank = rank;
      figures.end_ns = std::max(figures.end_ns, span.end_ns);
      figures.ranks.push_back(rank_figures(context, rank, span));
    }
    figures.flushes = flush_figures(timeline, context.activities, spans.of_ranks);
    find_straggler(figures);
    figures.path = critical_path(context.activities, context.messages, last_rank, figures.begin_ns,
                                 figures.end_ns);
    all.push_back(std::move(figures));
  }
  return all;
}

}  // namespace llm
