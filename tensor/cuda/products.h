#pragma once
#include <cstddef>
#include <memory>

#include "tensor/ops/linear.h"
#include "tensor/view.h"

using cudaStream_t = struct CUstream_st*;

namespace llm::cuda {

/// A row-major matrix as it lies, or its transpose.
struct Factor {
  View matrix;
  bool is_transposed = false;
};

/// Matrix products by cuBLASLt in one stream. While an object lives, linear layers in its stream
/// are its products; in other streams, and where an extent is 0, they are the plain kernels.
///
/// Sums are f32: of f32 without TF32, of bf16 and f16 by tensor cores. An algorithm follows from
/// the product's shape, its dtypes and the workspace on one kind of device: the library's first
/// choice for matrices that are aligned as rows of that width allow, among those that add in one
/// order and keep partial sums in f32. So equal calls have equal bits, wherever the matrices lie; a
/// row's bits may depend on the number of rows.
///
/// Not for two threads at once. A status that is no success is a ContractBroken that names the call
/// and the shape.
class Products {
 public:
  /// The library's recommendation for Hopper; enough elsewhere.
  static constexpr std::size_t recommended_bytes = std::size_t{32} << 20;
  /// Of a bias in the result's dtype.
  static constexpr std::size_t bias_bytes = std::size_t{256} << 10;

  /// Opens the library on the current device and allocates a workspace, which algorithms depend on,
  /// in the stream. There is no other object of this stream.
  explicit Products(cudaStream_t stream, std::size_t workspace_bytes = recommended_bytes);
  /// Before the stream is destroyed. What is enqueued still runs.
  ~Products();
  Products(const Products&) = delete;
  Products& operator=(const Products&) = delete;

  /// The one of a stream; nullptr: none.
  static Products* of(cudaStream_t stream);

  /// c = a b + bias, or with Write::add and no bias c += a b. The sum is rounded once; where c is
  /// not f32 the bias is rounded to c's dtype before, as the library takes no other.
  ///   a, b of one dtype, f32, bf16 or f16; c of the same or f32, no extent is 0
  ///   bias (columns of c) f32, or empty
  /// Each matrix begins at a multiple of the largest power of two, up to 16, that divides the bytes
  /// of its row.
  void multiply(const Factor& a, const Factor& b, View bias, Write write, MutView c);

  /// up = a b + bias and c = gelu_tanh(up) in one product, all f32: no rounding is left out, as it
  /// would be in a low dtype, where the library's GELU acts on the sum before it is rounded.
  /// False, and nothing is done, where the library has no such product of this shape: its rows of
  /// `up` are whole groups of 8, and it offers an algorithm.
  bool multiply_gelu_tanh(const Factor& a, const Factor& b, View bias, MutView up, MutView c);

 private:
  struct Call;
  bool run(const Call& call);
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace llm::cuda
