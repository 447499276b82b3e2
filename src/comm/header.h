#pragma once
#include <cstdint>
#include <string>
#include <type_traits>

#include "tensor/dtype.h"

namespace llm {

/// What a tensor message carries. `user` and above are free for programs on the bare runtime.
enum class MessageKind : std::uint16_t {
  activation = 1,
  input_grad,
  partial_sum,  ///< a round of a reduce-scatter
  gathered,     ///< a round of an all-gather
  broadcast,
  embedding_grad,  ///< of a tied embedding's first use, to the rank of its second
  embedding,       ///< its new value, the other way
  parameter,
  shared_memory,  ///< a SharedHandle
  vector_ready,   ///< peers may add up their pieces of the sender's vector
  piece_summed,   ///< the sender's piece of all vectors is their sum
  expert_begins,  ///< which rows follow for which expert of the receiver
  expert_rows,
  sum_announced,  ///< what the sender gives a library to sum
  user = 1000,
};
std::string name_of(MessageKind kind);

/// Who a tensor message is: sent ahead of the tensor on the same tag, and compared with what the
/// receiver expects. A mismatch is an error that shows both, never silent numbers.
struct Header {
  Header() = default;
  Header(MessageKind kind_, std::int64_t step_, std::int32_t index_, std::int32_t part_)
      : kind(kind_), step(step_), index(index_), part(part_) {}
  bool operator==(const Header&) const = default;

  std::uint32_t magic = 0x4C4C4D31;  ///< "LLM1"
  MessageKind kind = MessageKind::user;
  Dtype dtype = Dtype::f32;  ///< filled in by the transport from the view, as n_elements
  std::uint8_t reserved = 0;
  std::int64_t step = 0;
  std::int32_t index = 0;  ///< microbatch or bucket
  std::int32_t part = 0;   ///< chunk of a stage, or round of a collective
  std::int64_t n_elements = 0;
};
static_assert(std::is_trivially_copyable_v<Header> && sizeof(Header) == 32);

/// "partial_sum step 3 index 1 part 0: 4096 f32".
std::string to_string(const Header& header);

/// Throws CommError showing both sides where `arrived` is not what `expected` says.
void check_header(const Header& expected, const Header& arrived, int peer, int tag);

}  // namespace llm
