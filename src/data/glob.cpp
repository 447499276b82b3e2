#include "src/data/glob.h"

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <unordered_set>

#include "src/base/error.h"

namespace llm {
namespace {
namespace fs = std::filesystem;

/// What one pattern has found so far.
struct Found {
  std::vector<std::string> files;
  bool any_folder = false;
};

[[noreturn]] void refuse(const std::string& field, const std::string& pattern,
                         const std::string& why) {
  throw DataError(fmt::format("{}: '{}' {}", field, pattern, why));
}

/// One set of brackets at name pattern[begin] == '[': the place after ']', and whether `c` is in
/// it.
struct Bracket {
  std::size_t end = 0;
  bool contains = false;
};

std::size_t bracket_end(std::string_view pattern, std::size_t begin) {
  std::size_t i = begin + 1;
  if (i < pattern.size() && pattern[i] == '!') ++i;
  if (i < pattern.size() && pattern[i] == ']') ++i;  // first in the brackets it stands for itself
  while (i < pattern.size() && pattern[i] != ']') ++i;
  return i < pattern.size() ? i + 1 : std::string_view::npos;
}

Bracket match_bracket(std::string_view pattern, std::size_t begin, char c) {
  const std::size_t end = bracket_end(pattern, begin);
  std::size_t i = begin + 1;
  const bool negated = pattern[i] == '!';
  if (negated) ++i;
  bool contains = false;
  const auto byte = [](char x) { return static_cast<unsigned char>(x); };
  while (i < end - 1) {
    if (i + 2 < end - 1 && pattern[i + 1] == '-') {
      contains |= byte(pattern[i]) <= byte(c) && byte(c) <= byte(pattern[i + 2]);
      i += 3;
    } else {
      contains |= pattern[i++] == c;
    }
  }
  return {end, contains != negated};
}

/// `*`, `?` and brackets against one name; a star takes as little as it can and is retried longer.
bool matches(std::string_view pattern, std::string_view name) {
  if (name.front() == '.' && pattern.front() != '.') return false;
  std::size_t p = 0;
  std::size_t n = 0;
  std::size_t star = std::string_view::npos;
  std::size_t star_name = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      star_name = n;
      continue;
    }
    if (p < pattern.size() && pattern[p] == '[') {
      const Bracket bracket = match_bracket(pattern, p, name[n]);
      if (bracket.contains) {
        p = bracket.end;
        ++n;
        continue;
      }
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == name[n])) {
      ++p;
      ++n;
      continue;
    }
    if (star == std::string_view::npos) return false;
    p = star + 1;
    n = ++star_name;
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

bool has_wildcard(std::string_view part) {
  return part.find_first_of("*?[") != std::string_view::npos;
}

/// "a{b,c{d,e}}f" -> "abf" "acdf" "acef"
void expand_braces(const std::string& pattern, std::vector<std::string>& out) {
  const std::size_t open = pattern.find('{');
  if (open == std::string::npos) {
    out.push_back(pattern);
    return;
  }
  std::vector<std::string> alternatives(1);
  std::size_t i = open + 1;
  for (int depth = 1; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c == '{') ++depth;
    if (c == '}' && --depth == 0) break;
    if (c == ',' && depth == 1) {
      alternatives.emplace_back();
    } else {
      alternatives.back().push_back(c);
    }
  }
  for (const std::string& alternative : alternatives) {
    expand_braces(pattern.substr(0, open) + alternative + pattern.substr(i + 1), out);
  }
}

void check_closed(const std::string& field, const std::string& pattern) {
  int depth = 0;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] == '{') ++depth;
    if (pattern[i] == '}' && depth > 0) --depth;
    if (pattern[i] == '[' && bracket_end(pattern, i) == std::string_view::npos) {
      refuse(field, pattern, "has an unclosed '['");
    }
  }
  if (depth > 0) refuse(field, pattern, "has an unclosed '{'");
}

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  fs::directory_iterator entries(folder.empty() ? "." : folder, error);
  for (; !error && entries != fs::directory_iterator(); entries.increment(error)) {
    names.push_back(entries->path().filename().string());
  }
  if (error) throw FileError(fmt::format("{}: cannot be listed: {}", folder, error.message()));
  return names;
}

/// Adds what `parts` (folder and file patterns) match below `folder` ("" or ending in '/').
void walk(const std::string& folder, const std::vector<std::string>& parts, std::size_t index,
          Found& found) {
  const std::string& part = parts[index];
  const bool is_last = index + 1 == parts.size();
  if (part == "**") {
    walk(folder, parts, index + 1, found);
    for (const std::string& name : names_in(folder)) {
      const fs::file_status status = fs::symlink_status(folder + name);
      if (name.front() != '.' && fs::is_directory(status)) {
        walk(folder + name + "/", parts, index, found);
      }
    }
    return;
  }
  std::vector<std::string> names{part};
  if (has_wildcard(part)) {
    names = names_in(folder);
    std::erase_if(names, [&](const std::string& name) { return !matches(part, name); });
  }
  for (const std::string& name : names) {
    std::error_code ignored;  // a dangling link or a file that has just gone matches nothing
    const fs::file_status status = fs::status(folder + name, ignored);
    if (fs::is_directory(status)) {
      found.any_folder |= is_last;
      if (!is_last) walk(folder + name + "/", parts, index + 1, found);
    } else if (is_last && fs::is_regular_file(status)) {
      found.files.push_back(folder + name);
    }
  }
}

void glob(const std::string& pattern, Found& found) {
  std::string folder = pattern.front() == '/' ? "/" : "";
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin <= pattern.size();) {
    const std::size_t end = std::min(pattern.find('/', begin), pattern.size());
    const std::string part = pattern.substr(begin, end - begin);
    const bool repeats = part == "**" && !parts.empty() && parts.back() == "**";
    if (!part.empty() && !repeats) parts.push_back(part);
    begin = end + 1;
  }
  if (parts.empty()) return;
  if (parts.back() == "**") parts.emplace_back("*");
  walk(folder, parts, 0, found);
}

Found find(const std::string& field, const std::string& pattern) {
  if (pattern.empty()) throw DataError(field + ": a path is empty; name a file or a pattern");
  std::error_code ignored;  // what cannot be looked at is not a literal path; opening it says why
  const fs::file_status status = fs::status(pattern, ignored);
  Found found;
  if (fs::is_regular_file(status)) {
    found.files.push_back(pattern);
    return found;
  }
  if (fs::is_directory(status)) {
    refuse(field, pattern,
           fmt::format("is a folder; name its files, as in '{}{}**'", pattern,
                       pattern.back() == '/' ? "" : "/"));
  }
  if (fs::exists(status)) refuse(field, pattern, "is not a regular file");
  check_closed(field, pattern);
  std::vector<std::string> alternatives;
  expand_braces(pattern, alternatives);
  for (const std::string& alternative : alternatives) {
    if (!alternative.empty()) glob(alternative, found);
  }
  std::sort(found.files.begin(), found.files.end());
  return found;
}

}  // namespace

std::vector<std::string> expand_patterns(const std::vector<std::string>& patterns,
                                         const std::string& field) {
  std::vector<std::string> files;
  std::unordered_set<std::string> seen;
  for (const std::string& pattern : patterns) {
    const Found found = find(field, pattern);
    if (found.files.empty()) {
      const bool is_pattern = has_wildcard(pattern) || pattern.find('{') != std::string::npos;
      refuse(field, pattern,
             found.any_folder ? "matches only folders; add '/**' for the files in them"
             : is_pattern     ? "matches no file"
                              : "does not exist");
    }
    for (const std::string& file : found.files) {
      if (seen.insert(file).second) files.push_back(file);
    }
  }
  return files;
}

}  // namespace llm
