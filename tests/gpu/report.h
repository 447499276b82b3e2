#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace llm::gpu {

/// What a number has to be, if anything.
struct Limit {
  enum class Kind : char { none, at_most, at_least };
  Kind kind = Kind::none;
  double value = 0;
};
inline Limit at_most(double value) {
  return {Limit::Kind::at_most, value};
}
inline Limit at_least(double value) {
  return {Limit::Kind::at_least, value};
}

/// A table of plain lines, "name figure unit (limit)", printed as they come. A line whose figure is
/// outside its limit, or no number, ends with FAILED.
class Report {
 public:
  void line(std::string_view name, double figure, std::string_view unit, Limit limit = {});
  /// A line that says something and holds no figure.
  void note(std::string_view text);
  void failure(std::string_view name, std::string_view reason);
  int n_failed() const { return static_cast<int>(failed_.size()); }
  /// Names, of lines without a limit none.
  const std::vector<std::string>& failed() const { return failed_; }
  const std::vector<std::string>& passed() const { return passed_; }

 private:
  std::vector<std::string> failed_;
  std::vector<std::string> passed_;
};

/// What all checks are told.
struct Options {
  bool is_small = false;  ///< sizes for an emulated device
};

void check_kernels(const Options& options, Report& report);
void check_parity(const Options& options, Report& report);
void check_speed(const Options& options, Report& report);
void check_training(const Options& options, Report& report);

}  // namespace llm::gpu
