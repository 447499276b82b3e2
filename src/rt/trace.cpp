#include "src/rt/trace.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <tuple>

#include <fmt/format.h>
#include "src/base/check.h"
#include "src/base/error.h"

namespace llm {
namespace {

constexpr int first_row = 1'000'000;
constexpr std::size_t no_slice = ~std::size_t{0};
// Between two tiles the loop polls messages, which takes a few us where there are none.
constexpr std::int64_t joined_below_ns = 20'000;

struct Close {
  void operator()(std::FILE* file) const { std::fclose(file); }
};

std::string in_quotes(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return out + '"';
}

}  // namespace

void Trace::name_actor(int actor, std::string name) {
  rows_.push_back({actor, std::move(name)});
}

int Trace::add_row(std::string name) {
  name_actor(next_row_, std::move(name));
  return next_row_++;
}

std::uint16_t Trace::intern(std::string_view name) {
  // A few dozen names: a scan from the newest is quicker than a hash.
  for (std::size_t i = names_.size(); i-- > 0;) {
    if (names_[i] == name) return static_cast<std::uint16_t>(i);
  }
  CHECK_CONTRACT(names_.size() < 65535, "a trace has a bounded set of names");
  names_.emplace_back(name);
  return static_cast<std::uint16_t>(names_.size() - 1);
}

void Trace::describe(std::string name, std::string json) {
  facts_.emplace_back(std::move(name), std::move(json));
}

void Trace::align_end(std::int64_t own_ns, std::int64_t since_origin_ns) {
  if (own_ns <= origin_ns_ || since_origin_ns <= 0) return;
  rate_ = static_cast<double>(since_origin_ns) / static_cast<double>(own_ns - origin_ns_);
}

void Trace::slice(int actor, std::string_view category, std::string_view name, std::int64_t key,
                  std::int64_t begin_ns, std::int64_t end_ns) {
  slices_.push_back({.actor = actor,
                     .by = outside,
                     .category = intern(category),
                     .name = intern(name),
                     .peer = intern(""),
                     .key = key,
                     .begin_ns = begin_ns,
                     .end_ns = end_ns});
}

void Trace::op(int row, std::string_view name, std::int64_t begin_ns, std::int64_t end_ns) {
  const auto at = static_cast<std::size_t>(row - first_row);
  if (last_op_.size() <= at) last_op_.resize(at + 1, no_slice);
  if (last_op_[at] != no_slice) {
    Slice& last = slices_[last_op_[at]];
    if (begin_ns - last.end_ns < joined_below_ns && names_[last.name] == name) {
      last.end_ns = end_ns;
      ++last.key;
      return;
    }
  }
  last_op_[at] = slices_.size();
  slice(row, "op", name, 1, begin_ns, end_ns);
}

void Trace::wait(int actor, const Waited& waited, std::int64_t begin_ns, std::int64_t end_ns) {
  slice(actor, "wait", waited.kind, waited.key, begin_ns, end_ns);
  slices_.back().peer = intern(waited.peer);
  slices_.back().by = waited.by;
}

void Trace::begin_steps(std::int64_t at_ns) {
  if (step_row_ < 0) step_row_ = add_row("steps");
  step_begin_ns_ = at_ns;
}

void Trace::end_step(std::int64_t step, std::int64_t at_ns) {
  CHECK_CONTRACT(step_row_ >= 0, "steps begin before they end");
  slice(step_row_, "step", "step", step, step_begin_ns_, at_ns);
  step_begin_ns_ = at_ns;
}

void Trace::flow_begin(int actor, std::uint64_t id, std::int64_t at_ns, bool is_control) {
  flows_.push_back({actor, true, is_control, id, at_ns});
}

void Trace::flow_end(int actor, std::uint64_t id, std::int64_t at_ns, bool is_control) {
  flows_.push_back({actor, false, is_control, id, at_ns});
}

double Trace::microseconds(std::int64_t at_ns) const {
  return static_cast<double>(at_ns - origin_ns_) * rate_ * 1e-3;
}

std::string Trace::header() const {
  std::string out = "{\"displayTimeUnit\":\"ms\",\"otherData\":{";
  for (const auto& [name, json] : facts_) {
    out += fmt::format("{}{}:{}", &name == &facts_.front().first ? "" : ",", in_quotes(name), json);
  }
  out += fmt::format(
      "}},\"traceEvents\":[\n"
      "{{\"ph\":\"M\",\"pid\":{0},\"name\":\"process_name\",\"args\":{{\"name\":\"rank {0}\"}}}}",
      rank_);
  for (const Row& row : rows_) {
    out += fmt::format(
        ",\n{{\"ph\":\"M\",\"pid\":{},\"tid\":{},\"name\":\"thread_name\",\"args\":{{\"name\":{}}}}"
        "}",
        rank_, row.id, in_quotes(row.name));
  }
  return out;
}

std::string Trace::text_of(const Slice& s) const {
  std::string out = fmt::format(
      ",\n{{\"ph\":\"X\",\"pid\":{},\"tid\":{},\"cat\":{},\"name\":{},\"ts\":{:.3f},\"dur\":{:.3f},"
      "\"args\":{{\"key\":{}",
      rank_, s.actor, in_quotes(names_[s.category]), in_quotes(names_[s.name]),
      microseconds(s.begin_ns), static_cast<double>(s.end_ns - s.begin_ns) * rate_ * 1e-3, s.key);
  if (!names_[s.peer].empty()) out += ",\"peer\":" + in_quotes(names_[s.peer]);
  if (s.by != outside) out += fmt::format(",\"by\":{}", s.by);
  return out + "}}";
}

std::string Trace::text_of(const Flow& flow) const {
  const char* const category = flow.is_control ? "control" : "message";
  return fmt::format(
      ",\n{{\"ph\":\"{}\",\"bp\":\"e\",\"pid\":{},\"tid\":{},\"cat\":\"{}\",\"name\":\"{}\","
      "\"id\":\"{:x}\",\"ts\":{:.3f}}}",
      flow.begins ? 's' : 'f', rank_, flow.actor, category, category, flow.id,
      microseconds(flow.at_ns));
}

void Trace::write(const std::string& path) const {
  const std::unique_ptr<std::FILE, Close> file(std::fopen(path.c_str(), "w"));
  if (!file) throw FileError(fmt::format("cannot write trace {}: {}", path, std::strerror(errno)));
  std::vector<Slice> slices = slices_;
  std::sort(slices.begin(), slices.end(), [](const Slice& a, const Slice& b) {
    return std::tuple(a.begin_ns, -a.end_ns, a.actor) < std::tuple(b.begin_ns, -b.end_ns, b.actor);
  });
  std::string out = header();
  const auto put = [&](const std::string& text) {
    out += text;
    if (out.size() < 1 << 20) return;
    std::fwrite(out.data(), 1, out.size(), file.get());
    out.clear();
  };
  for (const Slice& slice : slices) put(text_of(slice));
  for (const Flow& flow : flows_) put(text_of(flow));
  out += "\n]}\n";
  std::fwrite(out.data(), 1, out.size(), file.get());
  if (std::fflush(file.get()) != 0 || std::ferror(file.get()) != 0) {
    throw FileError(fmt::format("cannot write trace {}: {}", path, std::strerror(errno)));
  }
}

}  // namespace llm
