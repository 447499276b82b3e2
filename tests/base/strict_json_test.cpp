#include "src/base/strict_json.h"

#include <catch2/catch.hpp>
#include <string>

#include "src/base/error.h"

using namespace llm;

namespace {

std::string refusal_of(std::string_view text) {
  try {
    parse_strict_json(text, "a.json", 3);
  } catch (const DataError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("a list of 300,000 objects is read in time linear in its length") {
  // Where each object's end looks at all of the list's elements this is hours of work.
  std::string text = "[{}";
  for (int i = 1; i < 300'000; ++i) text += ",{}";
  CHECK(parse_strict_json(text + "]", "a.json", 3).size() == 300'000);
}

TEST_CASE("JSON that readers take differently, or cannot take, is refused with the file's name") {
  CHECK(refusal_of("[{\"a\":[]}]").empty());
  CHECK(refusal_of("[{\"a\":[[]]}]") == "a.json: JSON is nested 4 deep; 3 levels are the most");
  CHECK(refusal_of("{\"a\":1,\"b\":{\"a\":2},\"a\":3}") ==
        "a.json: the name \"a\" stands twice in one object");
  CHECK(refusal_of("{\"a\":1}{").starts_with("a.json: is not valid JSON: "));
  CHECK(refusal_of(std::string_view("{}\0{}", 5)) ==
        "a.json: is not valid JSON: it holds a NUL byte");
  CHECK(refusal_of("{\"a\":\"\xff\"}").starts_with("a.json: is not valid JSON: "));
}
