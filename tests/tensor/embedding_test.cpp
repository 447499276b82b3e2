#include "tensor/ops/embedding.h"

#include "src/base/error.h"
#include "tests/tensor/support.h"

using namespace llm;
using namespace llm::test;

TEST_CASE("an embedding is the token's row plus its place's row") {
  Queue queue;
  const Tensor table = tensor_of({3, 2}, {0, 1, 10, 11, 20, 21});
  const Tensor positions = tensor_of({4, 2}, {100, 100, 200, 200, 300, 300, 400, 400});
  const Tensor tokens = ids_of({2, 0, 1, 1}), y({4, 2});
  embedding_forward(queue, tokens, table, positions, 2, y);
  queue.finish();
  check_close(y, Doubles{120, 121, 200, 201, 110, 111, 210, 211}, 0);
  embedding_forward(queue, tokens, table, View(), 2, y);
  queue.finish();
  check_close(y, Doubles{20, 21, 0, 1, 10, 11, 10, 11}, 0);
}

TEST_CASE("an embedding's gradient adds the rows of a token in order and sets the others to zero") {
  for (const std::int64_t width : {1, 3, 17, 65}) {
    const std::int64_t n = 600, seq_len = 4, n_ids = 5;
    std::vector<std::int32_t> ids;
    for (std::int64_t i = 0; i < n; ++i) ids.push_back(static_cast<std::int32_t>(i * i % 4));
    const Tensor tokens = ids_of(ids), dy = random_tensor({n, width}, 1);
    const Tensor dtable = random_tensor({n_ids, width}, 2),
                 dpositions = random_tensor({6, width}, 3);
    Queue queue;
    embedding_backward(queue, tokens, dy, seq_len, Write::set, dtable, dpositions);
    queue.finish();
    const Tensor expected({n_ids, width}), expected_positions({6, width});
    for (std::int64_t i = 0; i < n; ++i) {
      for (std::int64_t c = 0; c < width; ++c) {
        expected[ids[static_cast<std::size_t>(i)] * width + c] += dy[i * width + c];
        expected_positions[i % seq_len * width + c] += dy[i * width + c];
      }
    }
    CHECK(same_bits(dtable, expected));
    CHECK(same_bits(dpositions, expected_positions));
    embedding_backward(queue, tokens, dy, seq_len, Write::add, dtable, MutView());
    queue.finish();
    Doubles twice = doubles(expected);
    for (double& e : twice) e *= 2;
    check_close(dtable, twice, 1e-5);  // sums of 600 terms that started from another value
    CHECK(same_bits(dpositions, expected_positions));
  }
}

TEST_CASE("an embedding refuses a token outside the vocabulary and names the id") {
  Queue queue;
  const Tensor table({3, 2}), y({2, 2});
  for (const std::int32_t id : {3, -1}) {
    const Tensor tokens = ids_of({0, id});
    embedding_forward(queue, tokens, table, View(), 2, y);
    CHECK_THROWS_AS(queue.finish(), DataError);
    Queue again;
    embedding_forward(again, tokens, table, View(), 2, y);
    CHECK_THROWS_WITH(again.finish(), Catch::Contains("id " + std::to_string(id)) &&
                                          Catch::Contains("vocabulary has 3"));
    queue.drop();
  }
}

TEST_CASE("an embedding refuses broken sequences and too few positions when it is called") {
  Queue queue;
  const Tensor table({3, 2}), y({3, 2}), positions({2, 2}), tokens = ids_of({0, 1, 2});
  CHECK_THROWS_AS(embedding_forward(queue, tokens, table, View(), 2, y), ContractBroken);
  CHECK_THROWS_AS(embedding_forward(queue, tokens, table, positions, 3, y), ContractBroken);
  CHECK_THROWS_AS(embedding_forward(queue, y, table, View(), 3, y), ContractBroken);
}
