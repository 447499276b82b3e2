#include <algorithm>
#include <catch2/catch.hpp>
#include <set>

#include "src/base/error.h"
#include "src/data/sft_samples.h"
#include "tests/data/files.h"
#include "tests/data/tokenizers.h"

namespace llm::test {

namespace {

constexpr std::int32_t ignored = -100;
const ByteTokenizer bytes;

std::string json_of(const std::string& instruction, const std::string& output) {
  return Json{{"instruction", instruction}, {"output", output}}.dump() + "\n";
}

std::string chat_of(const std::vector<std::pair<std::string, std::string>>& messages) {
  Json list = Json::array();
  for (const auto& [role, content] : messages) {
    list.push_back({{"role", role}, {"content", content}});
  }
  return Json{{"messages", list}}.dump() + "\n";
}

std::shared_ptr<SftReader> reader_of(const std::vector<std::string>& paths, std::int64_t seq_len,
                                     const Tokenizer& tokenizer = bytes) {
  const SftIndex index =
      index_examples(corpus_of(paths), tokenizer, {.seq_len = seq_len, .on_progress = {}});
  return std::make_shared<SftReader>(sft_index_from_bytes(to_bytes(index)), tokenizer);
}

SftSamples::Config all_of(const SftReader& reader, bool packing = false) {
  return {.examples = {0, static_cast<std::int64_t>(reader.index().examples.size())},
          .ignored_label = ignored,
          .packing = packing,
          .seed = 5,
          .shuffle = false};
}

struct Row {
  Ids tokens, labels;
};

Row row_at(SampleSource& source, std::int64_t position) {
  const auto n = static_cast<std::size_t>(source.seq_len());
  Row row{Ids(n), Ids(n)};
  source.fetch(position, {.tokens = row.tokens.data(), .labels = row.labels.data()});
  return row;
}

/// The row as it is written out: of `text`, which ends with an end token, label t is token t + 1
/// where `marks` has an 'x' for that token.
Row expected_row(const std::string& text, const std::string& marks, std::size_t seq_len) {
  REQUIRE(text.size() == marks.size());
  Row row{Ids(seq_len, 0), Ids(seq_len, ignored)};
  for (std::size_t t = 0; t < std::min(seq_len, text.size()); ++t) {
    row.tokens[t] = static_cast<unsigned char>(text[t]);
    if (t + 1 < text.size() && marks[t + 1] == 'x') {
      row.labels[t] = static_cast<unsigned char>(text[t + 1]);
    }
  }
  return row;
}

void check_row(const Row& row, const Row& expected) {
  CHECK(row.tokens == expected.tokens);
  CHECK(row.labels == expected.labels);
}

std::string refusal_of(const std::string& lines) {
  const TempFolder folder;
  const std::string path = folder.write("a.jsonl", lines);
  std::string message = message_of<DataError>([&] { reader_of({path}, 64); });
  const std::size_t at = message.find(path);
  return at == std::string::npos ? message : message.replace(at, path.size(), "a.jsonl");
}

const std::string plain = "{\"instruction\":\"Say hi.\",\"output\":\"hi\"}\n";
const std::string end(1, '\0');
const std::string preamble =
    "Below is an instruction that describes a task. Write a response that appropriately completes "
    "the request.\n\n### Instruction:\n";

}  // namespace

TEST_CASE("an instruction is trained on its answer and the end token alone") {
  const TempFolder folder;
  const auto reader = reader_of({folder.write("a.jsonl", plain)}, 200);
  SftSamples samples(reader, all_of(*reader));
  REQUIRE(samples.n_samples() == 1);
  const std::string prompt = preamble + "Say hi.\n\n### Response:\n";
  check_row(row_at(samples, 0),
            expected_row(prompt + "hi" + end, std::string(prompt.size(), '.') + "xxx", 200));
  check_row(row_at(samples, 7), row_at(samples, 0));  // every epoch
}

TEST_CASE("an input that is there stands between instruction and answer") {
  const std::string line = R"({"instruction": "Add.", "input": "1 2", "output": "3", "id": 9})";
  const SftExample example = read_sft_example(line, "f:1");
  REQUIRE(example.turns.size() == 1);
  CHECK(example.turns[0].prompt ==
        "Below is an instruction that describes a task, paired with an input that provides further "
        "context. Write a response that appropriately completes the request.\n\n"
        "### Instruction:\nAdd.\n\n### Input:\n1 2\n\n### Response:\n");
  CHECK(example.turns[0].answer == "3");
  for (const char* const empty : {"\"\"", "null"}) {
    const std::string without =
        std::string(R"({"instruction": "Add.", "output": "3", "input": )") + empty + "}";
    CHECK(read_sft_example(without, "f:1").turns[0].prompt == sft_prompt("Add.", ""));
  }
}

TEST_CASE("every assistant's message of a chat is trained on, and nothing else") {
  const TempFolder folder;
  const std::string line = chat_of({{"system", "Be kind."},
                                    {"user", "Hi"},
                                    {"assistant", "Hello!"},
                                    {"user", "Bye"},
                                    {"assistant", "So soon?"},
                                    {"user", "dropped: nothing follows"}});
  const auto reader = reader_of({folder.write("a.jsonl", line)}, 128);
  SftSamples samples(reader, all_of(*reader));
  const std::string first = "### System:\nBe kind.\n\n### User:\nHi\n\n### Assistant:\n";
  const std::string second = "### User:\nBye\n\n### Assistant:\n";
  const std::string text = first + "Hello!" + end + second + "So soon?" + end;
  const std::string marks =
      std::string(first.size(), '.') + "xxxxxxx" + std::string(second.size(), '.') + "xxxxxxxxx";
  check_row(row_at(samples, 0), expected_row(text, marks, 128));
}

TEST_CASE("prompts and answers are encoded apart, with the spelling of special tokens as text") {
  const BpeTokenizer tokenizer = tokenizer_of(small_json());
  const SftTokens example =
      encode({{{.prompt = "a the", .answer = " the<|endoftext|>"}}}, tokenizer);
  Ids expected{'a', 258, 258};
  for (const char c : std::string("<|endoftext|>")) expected.push_back(c);
  expected.push_back(259);
  CHECK(example.tokens == expected);
  std::vector<bool> answers(expected.size(), true);
  answers[0] = answers[1] = false;
  CHECK(example.is_answer == answers);
}

TEST_CASE("a long example is cut at its end, and one whose answer is cut off is skipped") {
  const TempFolder folder;
  const std::string prompt = "### User:\n?\n\n### Assistant:\n";  // 28 bytes
  REQUIRE(prompt.size() == 28);
  const std::string lines = chat_of({{"user", "?"}, {"assistant", "abcdef"}}) +
                            chat_of({{"user", "a question that takes all"}, {"assistant", "x"}}) +
                            "\n  \n" + chat_of({{"user", "?"}, {"assistant", ""}}) +
                            chat_of({{"system", "nobody asks"}}) + chat_of({}) +
                            chat_of({{"user", "?"}, {"assistant", "ab"}});
  const auto reader = reader_of({folder.write("a.jsonl", lines)}, 30);
  CHECK(reader->index().examples.size() == 2);
  CHECK(reader->index().n_skipped == 4);
  CHECK(reader->index().n_truncated == 1);
  SftSamples samples(reader, all_of(*reader));
  check_row(row_at(samples, 0), expected_row(prompt + "abc", std::string(28, '.') + "xxx", 30));
  // The end token is the last label, and no token.
  check_row(row_at(samples, 1),
            expected_row(prompt + "ab" + end, std::string(28, '.') + "xxx", 30));
}

TEST_CASE("packed examples follow one another, with the end token between them") {
  const TempFolder folder;
  const auto chat = [](const std::string& answer) {
    return chat_of({{"user", "?"}, {"assistant", answer}});
  };
  const std::string prompt = "### User:\n?\n\n### Assistant:\n";
  const std::string masked(28, '.');
  // 31, 30, 33 and 63 tokens: the second fits beside the first only without its end token.
  const std::string lines = chat("ab") + chat("c") + chat("defg") + chat(std::string(40, 'h'));
  const auto reader = reader_of({folder.write("a.jsonl", lines)}, 60);
  SftSamples samples(reader, all_of(*reader, true));
  REQUIRE(samples.n_samples() == 3);
  check_row(row_at(samples, 0), expected_row(prompt + "ab" + end + prompt + "c" + end,
                                             masked + "xxx" + masked + "xx", 60));
  check_row(row_at(samples, 1), expected_row(prompt + "defg" + end, masked + "xxxxx", 60));
  check_row(row_at(samples, 2),
            expected_row(prompt + std::string(33, 'h'), masked + std::string(33, 'x'), 60));
}

TEST_CASE("each epoch has every example once, in an order of seed and position alone") {
  const TempFolder folder;
  std::string lines;
  for (int i = 0; i < 40; ++i) {
    lines += chat_of({{"user", "?"},
                      {"assistant", std::string(static_cast<std::size_t>(i % 9 + 1),
                                                static_cast<char>('0' + i))}});
  }
  const auto reader = reader_of({folder.write("a.jsonl", lines)}, 100);
  for (const bool packing : {false, true}) {
    SftSamples::Config config = all_of(*reader, packing);
    config.shuffle = true;
    SftSamples samples(reader, config);
    SftSamples again(reader, config);
    const std::int64_t n = samples.n_samples();
    CHECK((packing ? n < 20 : n == 40));
    std::vector<Ids> epochs;
    for (std::int64_t epoch = 0; epoch < 2; ++epoch) {
      std::multiset<std::int32_t> answers;
      Ids order;
      for (std::int64_t i = 0; i < n; ++i) {
        const Row row = row_at(samples, epoch * n + i);
        for (const std::int32_t label : row.labels) {
          if (label > 0) answers.insert(label);
          if (label > 0 && (order.empty() || order.back() != label)) order.push_back(label);
        }
        // Positions in any order, and halves alone.
        const std::int64_t other = (epoch + 1) * n - 1 - i;
        Ids labels(100);
        again.fetch(other, {.tokens = nullptr, .labels = labels.data()});
        CHECK(labels == row_at(samples, other).labels);
      }
      for (int i = 0; i < 40; ++i) {
        CHECK(answers.count('0' + i) == static_cast<std::size_t>(i % 9 + 1));
      }
      epochs.push_back(order);
    }
    CHECK(epochs[0] != epochs[1]);
    config.seed = 6;
    SftSamples other(reader, config);
    bool differs = false;
    for (std::int64_t i = 0; i < n; ++i) {
      differs = differs || row_at(other, i).labels != row_at(samples, i).labels;
    }
    CHECK(differs);
  }
}

TEST_CASE("lines of any length are read where they lie, over several files") {
  const TempFolder folder;
  const std::string long_text(3 << 20, 'l');
  const std::string first =
      json_of("a", "A") + json_of(long_text, "never reached") + json_of("b", "B");
  std::string last = json_of("c", "C");
  last.pop_back();  // no newline at the end
  const auto reader =
      reader_of({folder.write("a.jsonl", first), folder.write("b.jsonl", last)}, 200);
  REQUIRE(reader->index().examples.size() == 3);
  CHECK(reader->index().n_skipped == 1);
  for (const std::int64_t i : {2, 0, 1}) {
    const SftTokens example = reader->read(i);
    CHECK(example.tokens[example.tokens.size() - 2] == 'A' + i);
  }
}

TEST_CASE("what is malformed is refused with file and line") {
  CHECK(
      has(refusal_of(plain + "\n{\"instruction\": }\n"), "a.jsonl:3: is not valid JSON (at byte"));
  CHECK(refusal_of("[1]\n") == "a.jsonl:1: is array and not an object");
  CHECK(refusal_of(plain + "{\"prompt\": \"a\", \"x\": 1}") ==
        "a.jsonl:2: has neither \"instruction\" (with \"output\") nor \"messages\"; its fields: "
        "prompt, x");
  CHECK(refusal_of("{\"instruction\": \"a\"}") == "a.jsonl:1: has no field \"output\"");
  CHECK(refusal_of("{\"instruction\": \"a\", \"output\": 3}") ==
        "a.jsonl:1: the field \"output\" is number and not a string");
  CHECK(refusal_of("{\"instruction\": null, \"output\": \"a\"}") ==
        "a.jsonl:1: the field \"instruction\" is null and not a string");
  CHECK(refusal_of("{\"instruction\": \"a\", \"output\": \"b\", \"input\": [1]}") ==
        "a.jsonl:1: the field \"input\" is array and not a string");
  CHECK(refusal_of("{\"instruction\": \"a\", \"messages\": []}") ==
        "a.jsonl:1: has both \"messages\" and \"instruction\"; an example is one of them");
  CHECK(refusal_of("{\"messages\": \"a\"}") ==
        "a.jsonl:1: the field \"messages\" is string and not a list of objects with role and "
        "content");
  CHECK(refusal_of("{\"messages\": [3]}") ==
        "a.jsonl:1: message 1: is number and not an object with role and content");
  CHECK(refusal_of(chat_of({{"user", "a"}, {"tool", "b"}})) ==
        "a.jsonl:1: message 2: the role \"tool\" is not one of system, user, assistant");
  CHECK(refusal_of("{\"messages\": [{\"role\": \"user\"}]}") ==
        "a.jsonl:1: message 1: has no field \"content\"");
}

TEST_CASE("data that teaches nothing is refused with the counts") {
  CHECK(refusal_of(json_of("a", "") + chat_of({{"user", "a"}})) ==
        "data.dataset_path: none of 2 examples has an answer within data.max_seq_len 64; the first "
        "file is a.jsonl");
  CHECK(has(refusal_of("\n"), "none of 0 examples"));
  const TempFolder folder;
  const std::string path = folder.write("a.txt", "text");
  CHECK(has(message_of<DataError>([&] { reader_of({path}, 64); }),
            "data.dataset_path: " + path + " is not .jsonl; --task sft reads lines of JSON"));
}

TEST_CASE("a file that changes while it is read is an error") {
  const TempFolder folder;
  const std::string path = folder.write("a.jsonl", json_of("a", "bc") + json_of("d", "e"));
  const auto reader = reader_of({path}, 200);
  folder.write("a.jsonl", json_of("a", "b") + json_of("d", "ef"));  // as many bytes
  CHECK(has(message_of<DataError>([&] { reader->read(1); }), path + ": the line at byte"));
  const auto shorter = reader_of({path}, 200);
  folder.write("a.jsonl", json_of("a", "b"));
  CHECK(has(message_of<FileError>([&] { shorter->read(0); }), "when the data was listed"));
}

TEST_CASE("a checkpoint's state is taken by the same examples and refused by others") {
  const TempFolder folder;
  const auto reader = reader_of({folder.write("a.jsonl", plain + plain)}, 200);
  SftSamples samples(reader, all_of(*reader));
  const std::string state = samples.state();
  samples.restore(state);
  SftSamples packed(reader, all_of(*reader, true));
  CHECK(has(message_of<DataError>([&] { packed.restore(state); }), "data.packing was 0"));
  const auto other = reader_of({folder.write("b.jsonl", plain + plain)}, 200);
  SftSamples renamed(other, all_of(*other));
  CHECK(
      has(message_of<DataError>([&] { renamed.restore(state); }), "the data files are not those"));
  const auto longer = reader_of({folder / "a.jsonl"}, 201);
  SftSamples wider(longer, all_of(*longer));
  CHECK(has(message_of<DataError>([&] { wider.restore(state); }), "data.max_seq_len was 200"));
}

}  // namespace llm::test
