#pragma once
#include <string>

#include "schedules/pipeline.h"

namespace llm {

/// Throws ConfigError unless the schedules can be carried out with the sums of every other one:
///   each (chunk, microbatch) has one forward, and one backward or both of its halves
///   a chunk's forwards run in microbatch order, its backwards and input halves too, and likewise
///   what gives weight gradients (backwards and weight halves): sums are added in that order
///   a backward follows its forward, a weight half its input half
///   a pair is a forward and a backward, or a half of one, of another microbatch or chunk
///   all ranks together finish
/// The message names the rank, the actions and the rule.
void check(const Pipeline& pipeline);

/// Reads a pipeline in to_string's notation, one line a rank, in order; blank lines and what
/// follows a # are left out, and a line "placement: zig_zag" (or looped) may come first:
///   # 1f1b on two ranks
///   F0 F1 B0 F2 B1 B2
///   F0 B0 F1 B1 F2 B2
/// A forward and the backward beside it are written F1|B0.
/// `name` is the file's, for messages. Throws ConfigError "name:line: ..." for what cannot be read
/// and what check() refuses.
Pipeline read_pipeline(const std::string& name, const std::string& text);

/// The text that read_pipeline reads back to an equal pipeline.
std::string pipeline_text(const Pipeline& pipeline);

}  // namespace llm
