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

struct Close {
  void operator()(std::FILE* file) const { std::fclose(file); }
};

std::string quoted(std::string_view text) {
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

void Trace::slice(int actor, std::string_view category, std::string_view name, std::int64_t key,
                  std::int64_t begin_ns, std::int64_t end_ns) {
  slices_.push_back({actor, intern(category), intern(name), key, begin_ns, end_ns});
}

void Trace::flow_begin(int actor, std::uint64_t id, std::int64_t at_ns) {
  flows_.push_back({actor, true, id, at_ns});
}

void Trace::flow_end(int actor, std::uint64_t id, std::int64_t at_ns) {
  flows_.push_back({actor, false, id, at_ns});
}

double Trace::microseconds(std::int64_t at_ns) const {
  return static_cast<double>(at_ns - origin_ns_) * 1e-3;
}

void Trace::write(const std::string& path) const {
  const std::unique_ptr<std::FILE, Close> file(std::fopen(path.c_str(), "w"));
  if (!file) throw FileError(fmt::format("cannot write trace {}: {}", path, std::strerror(errno)));
  std::string out = fmt::format(
      "{{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n"
      "{{\"ph\":\"M\",\"pid\":{0},\"name\":\"process_name\",\"args\":{{\"name\":\"rank {0}\"}}}}",
      rank_);
  for (const Row& row : rows_) {
    out += fmt::format(
        ",\n{{\"ph\":\"M\",\"pid\":{},\"tid\":{},\"name\":\"thread_name\",\"args\":{{\"name\":{}}}}"
        "}",
        rank_, row.id, quoted(row.name));
  }
  std::vector<Slice> slices = slices_;
  std::sort(slices.begin(), slices.end(), [](const Slice& a, const Slice& b) {
    return std::tuple(a.begin_ns, -a.end_ns, a.actor) < std::tuple(b.begin_ns, -b.end_ns, b.actor);
  });
  for (const Slice& s : slices) {
    out += fmt::format(
        ",\n{{\"ph\":\"X\",\"pid\":{},\"tid\":{},\"cat\":{},\"name\":{},\"ts\":{:.3f},\"dur\":{:."
        "3f},"
        "\"args\":{{\"key\":{}}}}}",
        rank_, s.actor, quoted(names_[s.category]), quoted(names_[s.name]),
        microseconds(s.begin_ns), static_cast<double>(s.end_ns - s.begin_ns) * 1e-3, s.key);
    if (out.size() > (1 << 20)) {
      std::fwrite(out.data(), 1, out.size(), file.get());
      out.clear();
    }
  }
  for (const Flow& flow : flows_) {
    out += fmt::format(
        ",\n{{\"ph\":\"{}\",\"bp\":\"e\",\"pid\":{},\"tid\":{},\"cat\":\"message\",\"name\":"
        "\"message\","
        "\"id\":\"{:x}\",\"ts\":{:.3f}}}",
        flow.begins ? 's' : 'f', rank_, flow.actor, flow.id, microseconds(flow.at_ns));
  }
  out += "\n]}\n";
  std::fwrite(out.data(), 1, out.size(), file.get());
  if (std::fflush(file.get()) != 0 || std::ferror(file.get()) != 0) {
    throw FileError(fmt::format("cannot write trace {}: {}", path, std::strerror(errno)));
  }
}

}  // namespace llm
