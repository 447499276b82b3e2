#include "src/data/token_reader.h"

#include <catch2/catch.hpp>

#include "src/base/error.h"
#include "tests/data/files.h"

namespace llm::test {

namespace {

using Ids = std::vector<std::int32_t>;

Ids read_all(const Corpus& corpus, const Tokenizer& tokenizer = ByteTokenizer(),
             std::int64_t vocab_size = 256) {
  TokenReader reader(corpus, tokenizer, vocab_size);
  Ids tokens;
  while (reader.next(tokens)) {
  }
  CHECK(reader.n_bytes_done() == corpus.n_bytes());
  return tokens;
}

std::string text_of_files(const std::vector<std::string>& paths) {
  return text_of(read_all(corpus_of(paths)));
}

std::string refusal_of_file(const std::string& path) {
  return message_of<DataError>([&] { read_all(corpus_of({path})); });
}

/// Cuts text only behind a space, as a tokenizer of words does; ids are bytes.
class SpaceTokenizer final : public Tokenizer {
 public:
  std::int64_t n_ids() const override { return 256; }
  std::int32_t end_id() const override { return 0; }
  std::string name() const override { return "space"; }
  std::size_t safe_prefix(std::string_view text) const override { return text.rfind(' ') + 1; }
  void encode(std::string_view text, Ids& ids) const override { ByteTokenizer().encode(text, ids); }
  void decode(std::span<const std::int32_t> ids, std::string& text) const override {
    ByteTokenizer().decode(ids, text);
  }
};

std::string long_text(std::size_t n) {
  std::string text;
  while (text.size() < n) text += "line " + std::to_string(text.size()) + "\r\n";
  return text;
}

/// Reading may stop and go on between any two pieces.
void check_every_place(const Corpus& corpus) {
  const SpaceTokenizer tokenizer;
  TokenReader reader(corpus, tokenizer, 256);
  std::vector<TokenReader::Place> places;
  std::vector<Ids> pieces;
  do {
    places.push_back(reader.place());
    pieces.emplace_back();
  } while (reader.next(pieces.back()));
  REQUIRE(places.size() > 8);
  for (std::size_t i = 0; i < places.size(); ++i) {
    TokenReader other(corpus, tokenizer, 256);
    other.seek(places[i]);
    Ids piece;
    CHECK(other.next(piece) == (i + 1 < places.size()));
    CHECK(piece == pieces[i]);
    if (i + 1 < places.size()) CHECK(other.place() == places[i + 1]);
  }
}

}  // namespace

TEST_CASE("documents are joined by one end token and kept byte for byte") {
  const TempFolder folder;
  const std::string odd = "\xff\xc3\x28\r\n\t end \xe2\x82";
  const std::vector<std::string> paths{folder.write("a.txt", odd), folder.write("b.md", "second"),
                                       folder.write("c", "third\n")};
  CHECK(text_of_files(paths) == odd + '\0' + "second" + '\0' + "third\n");
}

TEST_CASE("empty documents leave no end token behind") {
  const TempFolder folder;
  const std::vector<std::string> paths{
      folder.write("0.txt", ""), folder.write("1.txt", "a"), folder.write("2.txt", ""),
      folder.write("3.jsonl", "{\"text\": \"\"}\n{\"text\": \"b\"}\n"), folder.write("4.txt", "")};
  CHECK(text_of_files(paths) == std::string("a\0b", 3));
}

TEST_CASE("a JSON line is a document, whatever the line ends and blank lines") {
  const TempFolder folder;
  const std::string path = folder.write("a.jsonl",
                                        "{\"text\": \"one\\n\\u00e9\", \"id\": 1}\r\n"
                                        "\r\n   \n"
                                        "{\"id\": 2, \"text\": \"<|endoftext|>\"}\n"
                                        "{\"text\": \"last\"}");
  CHECK(text_of_files({path}) ==
        std::string("one\n\xc3\xa9") + '\0' + "<|endoftext|>" + '\0' + "last");
  Corpus corpus = find_corpus({.patterns = {path}, .text_field = "id"});
  CHECK(has(message_of<DataError>([&] { read_all(corpus); }),
            path + ":1: the field \"id\" is number and not a string"));
}

TEST_CASE("a malformed JSON line is refused with file and line") {
  const TempFolder folder;
  const auto message = [&](const std::string& line) {
    const std::string path = folder.write("bad.jsonl", "{\"text\": \"good\"}\n\n" + line + "\n");
    const std::string text = refusal_of_file(path);
    CHECK(has(text, path + ":3: "));
    return text;
  };
  CHECK(has(message("{\"text\": \"cut"), "is not valid JSON (at byte"));
  CHECK(has(message("{\"text\": \"a\"} {\"text\": \"b\"}"), "is not valid JSON"));
  CHECK(has(message("{\"text\": \"\xff\"}"), "is not valid JSON"));
  CHECK(has(message("{\"text\": \"\\ud800\"}"), "is not valid JSON"));
  CHECK(has(message("plain text"), "is not valid JSON"));
  CHECK(has(message("[1]"), "is array and not an object with the field \"text\""));
  CHECK(
      has(message("{\"body\": \"x\", \"id\": 1}"), "has no field \"text\"; its fields: body, id"));
  CHECK(has(message("{}"), "has no field \"text\"; its fields: none"));
  CHECK(has(message("{\"text\": null}"), "the field \"text\" is null and not a string"));
  CHECK(message("{\"text\": \"" + std::string(1 << 20, 'x')).size() < 500);
  CHECK(has(message(std::string(1 << 20, '[')), "is not valid JSON"));  // no stack overflow
}

TEST_CASE("lines and files far above a piece come out whole") {
  const TempFolder folder;
  const std::string text = long_text(3'000'000);
  CHECK(text_of_files({folder.write("a.txt", text)}) == text);
  const std::string words(1 << 20, 'w');
  const std::string path = folder.write(
      "a.jsonl", "{\"text\": \"x\"}\n{\"text\": \"" + words + "\"}\n{\"text\": \"y\"}\n");
  CHECK(text_of_files({path}) == std::string("x") + '\0' + words + '\0' + "y");
}

TEST_CASE("a tokenizer that cannot cut everywhere gets its words whole") {
  const TempFolder folder;
  std::string text;
  for (std::size_t i = 0; text.size() < 500'000; ++i) text += std::string(i * 97 % 5000, 'a') + " ";
  text += std::string(200'000, 'b') + " end";
  const Corpus corpus = corpus_of({folder.write("a.txt", text), folder.write("b.txt", "c d")});
  CHECK(text_of(read_all(corpus, SpaceTokenizer())) == text + '\0' + "c d");
}

TEST_CASE("reading goes on from every place with the same pieces") {
  const TempFolder folder;
  std::string lines;
  for (int i = 0; i < 300; ++i) {
    lines += "{\"text\": \"" + std::string(static_cast<std::size_t>(i * 37 % 900), 'x') + "\"}\n";
  }
  check_every_place(corpus_of({folder.write("a.txt", long_text(400'000)),
                               folder.write("b.jsonl", lines), folder.write("c.txt", "tail")}));
  const std::vector<std::uint16_t> tokens = counting(200'000, 256);
  check_every_place(corpus_of({folder.write("a.bin", bytes_of(tokens)),
                               folder.write("b.bin", llmc_bytes(20240520, 1, 200'000, tokens))}));
}

TEST_CASE("token files follow each other as they are") {
  const TempFolder folder;
  const std::vector<std::string> paths{folder.write("a.bin", bytes_of(counting(3))),
                                       folder.write("b.bin", bytes_of(counting(2)))};
  CHECK(read_all(corpus_of(paths)) == Ids{0, 1, 2, 0, 1});
  const std::string high = folder.write("c.bin", bytes_of(counting(300)));
  CHECK(has(refusal_of_file(high), high + ": token 256 has id 256, but model.vocab_size is 256"));
}

TEST_CASE("a corpus names its kinds, sizes and what does not go together") {
  const TempFolder folder;
  folder.write("a.txt", "text");
  folder.write("b.jsonl", "{}");
  folder.write("c.bin", "ab");
  const Corpus corpus = corpus_of({folder / "a.txt", folder / "b.jsonl"});
  CHECK(corpus.files[0].kind == SourceKind::text);
  CHECK(corpus.files[1].kind == SourceKind::jsonl);
  CHECK(corpus.n_bytes() == 6);
  CHECK(has(message_of<DataError>([&] { corpus_of({folder / "*"}); }),
            "data.dataset_path: " + (folder / "a.txt") + " and " + (folder / "c.bin") + " mix"));
  CHECK(message_of<DataError>([] {
          find_corpus({.patterns = {}, .text_field = "text", .field = "data.val_dataset_path"});
        }) == "data.val_dataset_path: names no file");
}

TEST_CASE("a corpus survives its way to other ranks") {
  const TempFolder folder;
  const Corpus corpus = find_corpus(
      {.patterns = {folder.write("a \"quoted\".txt", "text"), folder.write("b.jsonl", "{}")},
       .text_field = "body"});
  const Corpus copy = corpus_from_json(to_json(corpus));
  CHECK(to_json(copy) == to_json(corpus));
  CHECK(copy.files[1].kind == SourceKind::jsonl);
  CHECK(copy.files[0].modified_ns == corpus.files[0].modified_ns);
  CHECK(corpus_key(copy, "byte") == corpus_key(corpus, "byte"));
  CHECK(corpus_key(copy, "other") != corpus_key(corpus, "byte"));
}

TEST_CASE("a file that changes after it was listed is refused with both sizes") {
  const TempFolder folder;
  const std::string path = folder.write("a.txt", "four");
  const Corpus corpus = corpus_of({path});
  folder.write("a.txt", "longer");
  CHECK(has(message_of<FileError>([&] { read_all(corpus); }),
            path + ": has 6 bytes, but had 4 when the data was listed"));
}

}  // namespace llm::test
