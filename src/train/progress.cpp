#include "src/train/progress.h"

#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include <fmt/format.h>
#include "src/base/error.h"
#include "src/rt/clock.h"

namespace llm {
namespace {

bool launcher_has_terminal() {
  if (const char* const told = std::getenv("LLM_TRAIN_TTY")) return std::string_view(told) == "1";
  if (std::getenv("OMPI_COMM_WORLD_RANK") == nullptr) return isatty(STDOUT_FILENO) == 1;
  std::error_code error;
  const std::string parent = fmt::format("/proc/{}/fd/1", getppid());
  const std::string target = std::filesystem::read_symlink(parent, error).string();
  return !error && (target.starts_with("/dev/pts/") || target.starts_with("/dev/tty"));
}

std::string duration(double seconds) {
  const auto s = static_cast<std::int64_t>(std::lround(seconds));
  return s < 3600 ? fmt::format("{}:{:02}", s / 60, s % 60)
                  : fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
}

/// What of a line of metrics.jsonl is a number, as "step/loss"; a norm that is not finite too.
std::vector<EventFile::Scalar> scalars_of(const nlohmann::ordered_json& json) {
  std::vector<EventFile::Scalar> scalars;
  for (const auto& [name, value] : json.items()) {
    if (name == "kind" || name == "step" || name == "path") continue;
    double number = 0;
    if (value.is_boolean()) {
      number = value.get<bool>() ? 1 : 0;
    } else {
      number = value.is_string() ? std::stod(value.get<std::string>()) : value.get<double>();
    }
    scalars.push_back({json.at("kind").get<std::string>() + "/" + name, number});
  }
  return scalars;
}

}  // namespace

ProgressStyle progress_style(std::string_view configured) {
  if (configured == "off") return ProgressStyle::off;
  if (configured == "line") return ProgressStyle::line;
  if (configured == "bar") return ProgressStyle::bar;
  return launcher_has_terminal() ? ProgressStyle::bar : ProgressStyle::line;
}

Progress::Progress(const Settings& settings, Options options, std::string path)
    : settings_(settings),
      options_(options),
      path_(std::move(path)),
      window_begin_step_(settings.first_step) {
  file_ = std::fopen(path_.c_str(), "wx");
  if (file_ == nullptr) {
    throw FileError(fmt::format("cannot write {}: {}", path_, std::strerror(errno)));
  }
  if (options_.tensorboard) {
    events_ = std::make_unique<EventFile>(std::filesystem::path(path_).parent_path(),
                                          settings.first_step + 1);
  }
}

Progress::~Progress() {
  clear_bar();
  std::fclose(file_);
}

void Progress::record(const nlohmann::ordered_json& json) {
  if (std::fputs((json.dump() + "\n").c_str(), file_) < 0 || std::fflush(file_) != 0) {
    throw FileError(fmt::format("cannot write {}: {}", path_, std::strerror(errno)));
  }
  if (events_) events_->add(json.at("step").get<std::int64_t>(), scalars_of(json));
}

void Progress::clear_bar() {
  if (std::exchange(bar_shown_, false)) std::fputs("\r\033[K", stdout);
}

void Progress::say(std::string_view text) {
  clear_bar();
  fmt::print("{}\n", text);
  std::fflush(stdout);
}

std::string Progress::line_of(const StepMetrics& metrics, double tokens_per_second) const {
  const double flops = tokens_per_second * options_.flops_per_token;
  const std::int64_t n_left = settings_.n_steps - metrics.step - 1;
  const double left =
      static_cast<double>(n_left * settings_.tokens_per_step()) / std::max(tokens_per_second, 1e-9);
  std::string text =
      fmt::format("step {}/{}  loss {:.4f}  norm {:.3f}  lr {:.2e}  {:.0f} tok/s  {:.1f} GFLOP/s",
                  metrics.step + 1, settings_.n_steps, metrics.loss, metrics.report.grad_norm,
                  metrics.report.lr, tokens_per_second, flops * 1e-9);
  if (options_.peak_flops > 0)
    text += fmt::format(" ({:.0f}% of peak)", 100 * flops / options_.peak_flops);
  return text + "  left " + duration(left);
}

void Progress::step_done(const StepMetrics& metrics) {
  last_loss_ = metrics.loss;
  window_seconds_ += metrics.seconds;
  const double step_tokens = static_cast<double>(settings_.tokens_per_step());
  nlohmann::ordered_json json;
  json["kind"] = "step";
  json["step"] = metrics.step + 1;
  json["loss"] = metrics.loss;
  // JSON has no infinity: a norm that is not finite is a string.
  if (std::isfinite(metrics.report.grad_norm)) {
    json["grad_norm"] = metrics.report.grad_norm;
  } else {
    json["grad_norm"] = fmt::format("{}", metrics.report.grad_norm);
  }
  if (settings_.model.is_mixture()) {
    json["router_balance"] = metrics.router.balance;
    json["router_z"] = metrics.router.z;
  }
  json["lr"] = metrics.report.lr;
  if (settings_.optimizer.loss_scale) json["loss_scale"] = metrics.report.loss_scale;
  json["n_valid_tokens"] = metrics.report.n_valid;
  json["n_samples"] = (metrics.step + 1) * settings_.partition.global_batch();
  json["skipped"] = metrics.report.skipped;
  json["seconds"] = metrics.seconds;
  json["tokens_per_second"] = step_tokens / metrics.seconds;
  json["gflops"] = step_tokens / metrics.seconds * options_.flops_per_token * 1e-9;
  record(json);

  if (first_step_ns_ == 0) {
    first_step_ns_ = now_ns();
    if (options_.style != ProgressStyle::off && options_.process_begin_ns > 0) {
      say(fmt::format("first step after {:.2f} s",
                      static_cast<double>(first_step_ns_ - options_.process_begin_ns) * 1e-9));
    }
  }
  if (metrics.report.skipped && options_.style != ProgressStyle::off) {
    say(fmt::format("warning: step {} skipped, weights unchanged: {}", metrics.step + 1,
                    metrics.report.n_valid == 0 ? "no valid token in the global batch"
                                                : "the gradient is not finite"));
  }
  const std::int64_t n_done = metrics.step + 1;
  const bool last = n_done == settings_.n_steps || metrics.report.stop;
  const bool shows =
      n_done == settings_.first_step + 1 || last || n_done % options_.log_interval == 0;
  if (!shows && options_.style != ProgressStyle::bar) return;
  const auto n_window = static_cast<double>(n_done - window_begin_step_);
  const std::string text = line_of(metrics, n_window * step_tokens / window_seconds_);
  if (shows) {
    window_begin_step_ = n_done;
    window_seconds_ = 0;
  }
  if (options_.style == ProgressStyle::bar) {
    constexpr std::int64_t width = 20;
    const auto filled = static_cast<std::size_t>(width * n_done / settings_.n_steps);
    clear_bar();
    fmt::print("[{}{}] {}", std::string(filled, '='), std::string(width - filled, ' '), text);
    std::fflush(stdout);
    bar_shown_ = true;
    if (last) {
      fmt::print("\n");
      bar_shown_ = false;
    }
  } else if (options_.style == ProgressStyle::line) {
    say(text);
  }
}

void Progress::validation_done(const ValidationMetrics& metrics) {
  nlohmann::ordered_json json;
  json["kind"] = "validation";
  json["step"] = metrics.step + 1;
  json["loss"] = metrics.loss;
  json["n_tokens"] = metrics.n_tokens;
  json["seconds"] = metrics.seconds;
  record(json);
  if (options_.style == ProgressStyle::off) return;
  say(fmt::format("step {}/{}  validation loss {:.4f}  perplexity {:.2f}  {} tokens in {:.1f} s",
                  metrics.step + 1, settings_.n_steps, metrics.loss, std::exp(metrics.loss),
                  metrics.n_tokens, metrics.seconds));
}

void Progress::saved(const SavedCheckpoint& checkpoint) {
  nlohmann::ordered_json json;
  json["kind"] = "checkpoint";
  json["step"] = checkpoint.step;
  json["path"] = checkpoint.path;
  json["bytes"] = checkpoint.n_bytes;
  json["blocked_seconds"] = checkpoint.blocked_seconds;
  json["seconds"] = checkpoint.seconds;
  record(json);
  if (options_.style == ProgressStyle::off) return;
  say(fmt::format("saved step {}: {}, {:.1f} MB in {:.2f} s, training waited {:.3f} s",
                  checkpoint.step, checkpoint.path, static_cast<double>(checkpoint.n_bytes) * 1e-6,
                  checkpoint.seconds, checkpoint.blocked_seconds));
}

}  // namespace llm
