#pragma once
#include <filesystem>
#include <string>

namespace llm {

// What llm-checkpoint does. Where a checkpoint is read, a folder with a model.safetensors alone
// (the end of a run, a Hugging Face folder) is taken too, as weights.

/// Step, state and files of a checkpoint as lines of text, and with `tensors` each tensor's shape.
std::string show_checkpoint(const std::filesystem::path& checkpoint, bool tensors);

/// Writes the weights as a Hugging Face folder: model.safetensors, and what of config.json,
/// generation_config.json, config.yaml and the tokenizer's files the checkpoint has. The checkpoint
/// is verified first. Memory: one tensor. `to` appears when it is whole. Throws FileError where it
/// is there.
void export_checkpoint(const std::filesystem::path& checkpoint, const std::filesystem::path& to);

/// How two checkpoints differ.
struct Comparison {
  enum class Verdict { identical, rounding, different } verdict = Verdict::identical;
  std::string text;  ///< one line, or several where they differ
};
/// By tensor and part, whatever files they are in; weights alone where one has no more. rounding:
/// of each part (weights, exp_avg, exp_avg_sq) no tensor is further apart than `tolerance` times
/// the part's largest norm.
Comparison compare_checkpoints(const std::filesystem::path& a, const std::filesystem::path& b,
                               double tolerance);

}  // namespace llm
