#pragma once
#include <optional>
#include <string>
#include <string_view>

namespace llm {

/// The bytes that a token of a byte-level vocabulary stands for: there, bytes 33 to 126, 161 to 172
/// and 174 to 255 are the characters of these numbers, and the others, in order, the characters
/// from 256 on. Nothing where a character is none of the 256.
///   token  well-formed UTF-8
std::optional<std::string> bytes_of_token(std::string_view token);

/// The other way round, for messages.
std::string token_of_bytes(std::string_view bytes);

}  // namespace llm
