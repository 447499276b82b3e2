#pragma once
#include <string_view>

namespace llm {

/// True for the first caller among this job's ranks on this node, until it has ended. Local and
/// without files: nothing is left behind however the ranks end.
bool claim_cause_line();

/// "error: rank R: message" on stderr, in one write.
void print_cause_line(int rank, std::string_view message);

}  // namespace llm
