#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace llm {

/// One rank's timeline: slices of actors and arrows of messages, kept in memory and written as
/// Chrome trace JSON (opens in Perfetto): process = rank, thread = actor, times in us since
/// `origin_ns`.
class Trace {
 public:
  /// Of what was woken by no actor: a message, a queue, a timer.
  static constexpr int outside = -1;

  /// `origin_ns` is this rank's clock at the time that all ranks call 0.
  Trace(int rank, std::int64_t origin_ns) : rank_(rank), origin_ns_(origin_ns) {}

  std::int64_t origin_ns() const { return origin_ns_; }
  /// A member of the file's "otherData"; `json` is its value.
  void describe(std::string name, std::string json);
  /// Clocks of two machines run apart. This rank's `own_ns` is `since_origin_ns` on the clock of
  /// rank 0; what lies between is stretched evenly.
  void align_end(std::int64_t own_ns, std::int64_t since_origin_ns);

  void name_actor(int actor, std::string name);
  /// A row of its own, for what is no actor (the compute queue): returns its id.
  int add_row(std::string name);
  /// [begin_ns, end_ns) on the actor's row; `category` is compute, op, actor, sum, ...
  void slice(int actor, std::string_view category, std::string_view name, std::int64_t key,
             std::int64_t begin_ns, std::int64_t end_ns);
  /// Tiles of one op on a row. Those that follow each other closely are one slice, whose key is
  /// their number.
  void op(int row, std::string_view name, std::int64_t begin_ns, std::int64_t end_ns);

  struct Waited {
    std::string_view kind;
    std::string_view peer;
    std::int64_t key;
    int by;  ///< the actor that ended the wait, or `outside`
  };
  void wait(int actor, const Waited& waited, std::int64_t begin_ns, std::int64_t end_ns);
  /// The steps of the rank, on a row of their own: each one ends where the next begins.
  void begin_steps(std::int64_t at_ns);
  void end_step(std::int64_t step, std::int64_t at_ns);

  /// One end of a message arrow; both ranks give the same id. Binds to the row's slice at that
  /// time. Control messages are of category control; their arrows end only where they wake
  /// somebody.
  void flow_begin(int actor, std::uint64_t id, std::int64_t at_ns, bool is_control = false);
  void flow_end(int actor, std::uint64_t id, std::int64_t at_ns, bool is_control = false);
  /// The control message that is being delivered; 0: none. The first wait that ends has its arrow.
  void set_arriving(std::uint64_t id) { arriving_ = id; }
  std::uint64_t take_arriving() { return std::exchange(arriving_, 0); }

  std::size_t n_slices() const { return slices_.size(); }
  /// Throws FileError.
  void write(const std::string& path) const;

 private:
  struct Slice {
    int actor;
    int by;
    std::uint16_t category;  // index into names_
    std::uint16_t name;
    std::uint16_t peer;  // of a wait
    std::int64_t key;
    std::int64_t begin_ns;
    std::int64_t end_ns;
  };
  struct Flow {
    int actor;
    bool begins;
    bool is_control;
    std::uint64_t id;
    std::int64_t at_ns;
  };
  struct Row {
    int id;
    std::string name;
  };
  std::uint16_t intern(std::string_view name);
  double microseconds(std::int64_t at_ns) const;
  std::string header() const;
  std::string text_of(const Slice& slice) const;
  std::string text_of(const Flow& flow) const;

  int rank_;
  std::int64_t origin_ns_;
  double rate_ = 1;           // of rank 0's clock to this one
  int next_row_ = 1'000'000;  // actors' ids stay below
  int step_row_ = -1;
  std::int64_t step_begin_ns_ = 0;
  std::uint64_t arriving_ = 0;
  std::vector<std::string> names_;
  std::vector<std::pair<std::string, std::string>> facts_;
  std::vector<Row> rows_;
  std::vector<Slice> slices_;
  std::vector<std::size_t> last_op_;  // by row: index into slices_
  std::vector<Flow> flows_;
};

}  // namespace llm
