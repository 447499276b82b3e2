#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace llm {

/// One rank's timeline: slices of actors and arrows of messages, kept in memory and written as
/// Chrome trace JSON (opens in Perfetto): process = rank, thread = actor, times in us since
/// `origin_ns`.
class Trace {
 public:
  /// `origin_ns` is this rank's clock at the time that all ranks call 0.
  Trace(int rank, std::int64_t origin_ns) : rank_(rank), origin_ns_(origin_ns) {}

  void name_actor(int actor, std::string name);
  /// A row of its own, for what is no actor (the compute queue): returns its id.
  int add_row(std::string name);
  /// [begin_ns, end_ns) on the actor's row; `category` is compute, wait or message.
  void slice(int actor, std::string_view category, std::string_view name, std::int64_t key,
             std::int64_t begin_ns, std::int64_t end_ns);
  /// One end of a message arrow; both ranks give the same id. Binds to the row's slice at that
  /// time.
  void flow_begin(int actor, std::uint64_t id, std::int64_t at_ns);
  void flow_end(int actor, std::uint64_t id, std::int64_t at_ns);

  std::size_t n_slices() const { return slices_.size(); }
  /// Throws FileError.
  void write(const std::string& path) const;

 private:
  struct Slice {
    int actor;
    std::uint16_t category;  // index into names_
    std::uint16_t name;
    std::int64_t key;
    std::int64_t begin_ns;
    std::int64_t end_ns;
  };
  struct Flow {
    int actor;
    bool begins;
    std::uint64_t id;
    std::int64_t at_ns;
  };
  struct Row {
    int id;
    std::string name;
  };
  std::uint16_t intern(std::string_view name);
  double microseconds(std::int64_t at_ns) const;

  int rank_;
  std::int64_t origin_ns_;
  int next_row_ = 1'000'000;  // actors' ids stay below
  std::vector<std::string> names_;
  std::vector<Row> rows_;
  std::vector<Slice> slices_;
  std::vector<Flow> flows_;
};

}  // namespace llm
