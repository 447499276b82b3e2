#pragma once
#include <string>
#include <vector>

namespace llm {

/// The files that `patterns` name: pattern after pattern as given, the files of one pattern sorted
/// by their bytes, a file named twice taken once (at its first place). A pattern is the path of an
/// existing file, or is made of
///   *  ?  [a-z]  [!a-z]   within one folder or file name
///   **                    any number of folders, none included (links to folders are not followed)
///   {a,b}                 alternatives, which may contain everything above and nest
/// Names that begin with a dot are matched only by a pattern part that begins with a dot.
/// Throws DataError naming `field` (where the patterns come from) and the pattern: it matches
/// nothing, names a folder or a thing that is no regular file, or has an unclosed brace or bracket;
/// FileError for a folder that cannot be listed.
std::vector<std::string> expand_patterns(const std::vector<std::string>& patterns,
                                         const std::string& field);

}  // namespace llm
