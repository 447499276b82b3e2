#include "src/checkpoint/boxes.h"

#include <catch2/catch.hpp>
#include <numeric>
#include <random>

#include "src/base/crc32.h"
#include "src/base/error.h"
#include "src/checkpoint/reader.h"
#include "src/checkpoint/store.h"
#include "src/checkpoint/tensor_file.h"
#include "src/io/hf_weights.h"
#include "tests/io/temporary_folder.h"
#include "tests/parity/world.h"

using namespace llm;

namespace {

std::vector<float> counted(std::int64_t n, float first) {
  std::vector<float> values(static_cast<std::size_t>(n));
  std::iota(values.begin(), values.end(), first);
  return values;
}

/// A checkpoint whose rank r has the r-th part of each parameter's elements, cut anywhere.
void save_cut(const std::filesystem::path& folder, const std::vector<ParameterSpec>& specs,
              int n_ranks, std::mt19937& random) {
  const std::filesystem::path draft = begin_checkpoint(folder, 1);
  std::vector<std::vector<BoxValues>> by_rank(static_cast<std::size_t>(n_ranks));
  std::vector<std::vector<float>> values;
  values.reserve(3 * specs.size() * by_rank.size());
  for (const TensorPart part : tensor_parts) {
    float first = 1000 * static_cast<float>(part);
    for (const ParameterSpec& spec : specs) {
      std::int64_t begin = 0;
      for (int rank = 0; rank < n_ranks; ++rank) {
        const std::int64_t end = rank + 1 == n_ranks ? spec.n_elements()
                                                     : std::uniform_int_distribution<std::int64_t>(
                                                           begin, spec.n_elements())(random);
        values.push_back(counted(end - begin, first + static_cast<float>(begin)));
        for (const Box& box : boxes_of(spec, {begin, end})) {
          by_rank[static_cast<std::size_t>(rank)].push_back({box, part, values.back().data()});
        }
        begin = end;
      }
      first += 1;
    }
  }
  Manifest manifest;
  manifest.kind = CheckpointKind::sharded;
  manifest.run.step = 1;
  for (std::size_t rank = 0; rank < by_rank.size(); ++rank) {
    manifest.files.push_back(
        write_boxes(draft / ("rank-" + std::to_string(rank) + ".safetensors"), by_rank[rank]));
  }
  commit_checkpoint(folder, manifest);
}

}  // namespace

TEST_CASE("the checksum is zlib's") {
  // From Python: zlib.crc32(b"123456789"), zlib.crc32(bytes(range(256)) * 3)
  CHECK(crc32("123456789", 9) == 0xCBF43926);
  std::string bytes;
  for (int i = 0; i < 768; ++i) bytes += static_cast<char>(i);
  const std::uint32_t whole = crc32(bytes.data(), bytes.size());
  CHECK(whole == 0xB0C0DF2A);
  Crc32 in_parts;
  for (std::size_t begin = 0, n = 1; begin < bytes.size(); begin += n, n = n * 3 % 41 + 1) {
    in_parts.add(bytes.data() + begin, std::min(n, bytes.size() - begin));
  }
  CHECK(in_parts.value() == whole);
}

TEST_CASE("a box's name says the box, and other names say none") {
  const Box box{.tensor = "h.0.x", .rows = {3, 9}, .columns = {0, 4}};
  CHECK(box_name(box, TensorPart::exp_avg) == "h.0.x.exp_avg[3:9,0:4]");
  const auto read = box_called("h.0.x.exp_avg[3:9,0:4]");
  REQUIRE(read);
  CHECK(read->tensor == "h.0.x.exp_avg");
  CHECK((read->rows == box.rows && read->columns == box.columns && !read->is_vector));
  for (const char* const other : {"a", "a[]", "a[1]", "a[1:0]", "a[1:2", "a[1:2,3:4,5:6]",
                                  "a[-1:2]", "a[x:2]", "a[1:99999999999999999999]"}) {
    CHECK_FALSE(box_called(other));
  }
}

TEST_CASE("whatever parts a checkpoint was written in, every part of it is read") {
  std::mt19937 random(7);
  for (const ModelConfig& model : {parity_gpt2(), parity_llama(), parity_mixtral()}) {
    const std::vector<ParameterSpec> specs = parameters(model);
    for (const int n_ranks : {1, 3}) {
      const TemporaryFolder folder;
      save_cut(folder.path(), specs, n_ranks, random);
      const CheckpointReader reader(folder / "step-00000001");
      reader.check_model(model);
      for (const TensorPart part : tensor_parts) {
        float first = 1000 * static_cast<float>(part);
        for (const ParameterSpec& spec : specs) {
          const auto begin =
              std::uniform_int_distribution<std::int64_t>(0, spec.n_elements() - 1)(random);
          const auto end =
              std::uniform_int_distribution<std::int64_t>(begin + 1, spec.n_elements())(random);
          for (const Range elements : {Range{0, spec.n_elements()}, Range{begin, end}}) {
            INFO(spec.name << " [" << elements.begin << ", " << elements.end << ")");
            std::vector<float> values(static_cast<std::size_t>(elements.size()));
            reader.read(spec, part, elements, MutView(values.data(), {elements.size()}));
            REQUIRE(values == counted(elements.size(), first + static_cast<float>(elements.begin)));
          }
          first += 1;
        }
      }
    }
  }
}

TEST_CASE("a tensor in a rank's file lies as in Hugging Face's") {
  const ModelConfig model = parity_gpt2();
  const std::vector<ParameterSpec> specs = parameters(model);
  const TemporaryFolder folder;
  std::mt19937 random(3);
  save_cut(folder.path(), specs, 2, random);
  const CheckpointReader reader(folder / "step-00000001");
  float first = 0;
  for (const ParameterSpec& spec : specs) {
    const std::vector<float> internal = counted(spec.n_elements(), first++);
    for (const HfPiece& piece : spec.pieces) {
      const auto& tensor = reader.tensors().at(piece.name);
      REQUIRE(tensor.shape() == piece.shape);
      std::vector<float> expected(static_cast<std::size_t>(tensor.n_rows * tensor.n_columns));
      std::vector<float> read(expected.size());
      const auto n = static_cast<std::int64_t>(expected.size());
      to_logical(piece, View(internal.data(), spec.shape), MutView(expected.data(), {n}));
      reader.read_rows(piece.name, {0, tensor.n_rows}, read.data());
      REQUIRE(read == expected);
    }
  }
}

TEST_CASE(
    "a checkpoint of another model, or without a rank's file, is refused by a tensor's name") {
  const TemporaryFolder folder;
  std::mt19937 random(3);
  save_cut(folder.path(), parameters(parity_gpt2()), 2, random);
  const std::filesystem::path checkpoint = folder / "step-00000001";
  ModelConfig other = parity_gpt2();
  other.hidden_size = 32;
  CHECK_THROWS_WITH(CheckpointReader(checkpoint).check_model(other),
                    Catch::Contains("tensor \"wte.weight\" has the shape (31, 16), the model needs "
                                    "(31, 32)"));
  other = parity_gpt2();
  other.n_layers = 3;
  CHECK_THROWS_WITH(CheckpointReader(checkpoint).check_model(other),
                    Catch::Contains("\"h.2.ln_1.weight\" of the model is not there"));
  other.n_layers = 1;
  CHECK_THROWS_WITH(CheckpointReader(checkpoint).check_model(other),
                    Catch::Contains("\"h.1.attn.c_attn.bias\" belongs to no parameter"));
  Manifest manifest = read_manifest(checkpoint);
  manifest.files.pop_back();
  write_plainly(checkpoint / manifest_name, to_json(manifest));
  CHECK_THROWS_WITH(CheckpointReader(checkpoint), Catch::Contains("a rank's file is missing"));
}
