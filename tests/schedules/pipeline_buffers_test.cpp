#include "schedules/pipeline_buffers.h"

#include <catch2/catch.hpp>

using namespace llm;

TEST_CASE("one rank needs one buffer of each kind while its microbatches do not overlap") {
  for (int n = 1; n <= 8; ++n) {
    CHECK(pipeline_buffers(gpipe(1, n)) == PipelineBuffers{1, 1});
    CHECK(pipeline_buffers(one_f_one_b(1, n)) == PipelineBuffers{1, 1});
  }
}

TEST_CASE(
    "a pipeline's buffers are as many as wait on the virtual clock, never more than microbatches") {
  // B0 of rank 1 begins at 2, of rank 0 it ends at 6; B1 of rank 1 begins at 5.
  CHECK(pipeline_buffers(one_f_one_b(2, 2)).embedding_gradients == 2);
  CHECK(pipeline_buffers(one_f_one_b(4, 16)).embedding_gradients == 3);
  for (const ScheduleKind kind :
       {ScheduleKind::gpipe, ScheduleKind::one_f_one_b, ScheduleKind::one_f_one_b_pairs,
        ScheduleKind::interleaved, ScheduleKind::zero_bubble, ScheduleKind::zero_bubble_v}) {
    for (int n_ranks = 1; n_ranks <= 6; ++n_ranks) {
      for (int n = 1; n <= 12; ++n) {
        const int n_chunks = kind == ScheduleKind::interleaved     ? 3
                             : kind == ScheduleKind::zero_bubble_v ? 2
                                                                   : 1;
        const PipelineBuffers buffers = pipeline_buffers(
            make_pipeline(kind, {.n_ranks = n_ranks, .n_chunks = n_chunks, .n_microbatches = n}));
        INFO(n_ranks << " ranks, " << n << " microbatches");
        CHECK(1 <= buffers.gradients);
        CHECK(buffers.gradients <= n);
        CHECK(1 <= buffers.embedding_gradients);
        CHECK(buffers.embedding_gradients <= n);
      }
    }
  }
}
