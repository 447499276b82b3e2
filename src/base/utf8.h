#pragma once
#include <string>
#include <string_view>

namespace llm {

/// How many bytes the UTF-8 character that begins at `at` takes, by the Unicode standard's table of
/// well-formed sequences; 0 where the bytes are none (an overlong form, half of a surrogate, a
/// value above U+10FFFF, a sequence cut short).
std::size_t utf8_length(std::string_view text, std::size_t at);

/// Text that a terminal shows as it is meant: each line indented by two spaces, without control
/// characters; what is no UTF-8 becomes U+FFFD.
std::string shown_text(std::string_view text);

/// Text that comes in pieces of bytes, for a terminal: whole characters alone leave, the beginning
/// of one waits for the rest. Control characters but newline and tab become spaces, what is no
/// UTF-8 becomes U+FFFD, byte by byte.
class TextStream {
 public:
  /// What can be shown with `bytes` after all that came before.
  std::string add(std::string_view bytes);
  /// The rest, of a text that ends here.
  std::string finish();

 private:
  std::string take(bool is_end);
  std::string waiting_;
};

}  // namespace llm
