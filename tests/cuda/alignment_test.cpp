#include <cstring>
#include <vector>

#include "tensor/cuda/column_sums.h"
#include "tensor/cuda/grouped_mma.h"
#include "tensor/cuda/ops.h"
#include "tests/cuda/twice.h"

using namespace llm;
using namespace llm::test;

namespace {

constexpr std::int64_t n = 5, width = 72;  // whole packs, where they are aligned

/// An op's tensors on a device, each one element after the beginning of its memory if `is_shifted`.
struct Placed {
  Placed(DeviceRig& device, bool is_shifted) : rig(device), shift(is_shifted ? 1 : 0) {}
  MutView operator()(std::uint64_t seed, Dtype dtype, Shape shape) {
    const std::int64_t n_elements = shape.n_elements();
    const Values values(seed, dtype, {n_elements});
    const Values room(0, dtype, {n_elements + shift});
    const auto bytes = static_cast<std::size_t>(values.view.n_bytes());
    std::memcpy(part(room.view, shift, {n_elements}).data(), values.view.data(), bytes);
    return part(rig.upload(room), shift, shape);
  }
  std::vector<float> read(const MutView& x) {
    const Values copy(0, x.dtype(), {x.n_elements()});
    rig.download(x, copy);
    std::vector<float> values;
    for (std::int64_t i = 0; i < x.n_elements(); ++i) values.push_back(copy[i]);
    return values;
  }
  DeviceRig& rig;
  std::int64_t shift;
};

using Results = std::vector<std::vector<float>>;

Results norms(Placed& at, Dtype dtype) {
  const MutView x = at(1, dtype, {n, width}), dy = at(2, dtype, {n, width});
  const MutView weight = at(3, Dtype::f32, {width}), bias = at(4, Dtype::f32, {width});
  const MutView y = at(0, dtype, {n, width}), dx = at(0, dtype, {n, width});
  const MutView mean = at(0, Dtype::f32, {n}), rstd = at(0, Dtype::f32, {n});
  const MutView dweight = at(0, Dtype::f32, {width}), dbias = at(0, Dtype::f32, {width});
  const cudaStream_t stream = at.rig.stream;
  cuda::layer_norm_forward(stream, x, weight, bias, 1e-5f, y, mean, rstd);
  cuda::layer_norm_backward(stream, x, weight, mean, rstd, dy, Write::set, dx, Write::set, dweight,
                            dbias);
  return {at.read(y), at.read(rstd), at.read(dx), at.read(dweight), at.read(dbias)};
}

Results losses(Placed& at, Dtype dtype) {
  const MutView logits = at(1, Dtype::f32, {n, width}), dlogits = at(0, dtype, {n, width});
  const MutView of_rows = at(0, Dtype::f32, {n}), labels = at(0, Dtype::i32, {n});
  cuda::cross_entropy(at.rig.stream, labels, 0.5f, logits, dlogits, of_rows);
  return {at.read(of_rows), at.read(dlogits)};
}

Results experts(Placed& at, Dtype dtype) {
  constexpr std::int64_t n_out = 16;
  const MutView x = at(1, dtype, {n, width}), weight = at(2, dtype, {n_out, width});
  const MutView y = at(0, dtype, {n, n_out}), dx = at(0, dtype, {n, width});
  const MutView begins = at(0, Dtype::i32, {2}), dweight = at(0, Dtype::f32, {n_out, width});
  const cudaStream_t stream = at.rig.stream;
  const Values of_rows(0, Dtype::i32, {2});
  of_rows.view.as<std::int32_t>()[1] = n;
  cuda::copy(stream, at.rig.upload(of_rows), begins);
  if (cuda::has_grouped_mma(80, dtype, width, n_out)) {
    cuda::grouped_forward_mma(stream, begins, x, weight, View(), y);
    cuda::grouped_backward_input_mma(stream, begins, y, weight, Write::set, dx);
    cuda::grouped_backward_weight_mma(stream, begins, x, y, Write::set, dweight);
  } else {
    cuda::grouped_linear_forward(stream, begins, x, weight, View(), y);
    cuda::grouped_linear_backward_input(stream, begins, y, weight, Write::set, dx);
    cuda::grouped_linear_backward_weight(stream, begins, x, y, Write::set, dweight, MutView());
  }
  return {at.read(y), at.read(dx), at.read(dweight)};
}

}  // namespace

TEST_CASE("on a device the bits of a sum do not depend on where its terms lie") {
  for (const Dtype dtype : compute_dtypes) {
    INFO(name_of(dtype));
    for (const auto& op : {norms, losses, experts}) {
      DeviceRig rig(7);
      Placed aligned(rig, false);
      Placed shifted(rig, true);
      CHECK(op(aligned, dtype) == op(shifted, dtype));
    }
  }
}

TEST_CASE("strips of rows cover a matrix once, and are at most 128") {
  for (const std::int64_t n_rows : {0, 1, 64, 65, 8192, 8193, 100'000}) {
    const cuda::Strips strips(n_rows, 7);
    INFO(n_rows << " rows, " << strips.n_strips << " strips of " << strips.rows_per_strip);
    CHECK(strips.n_strips <= 128);
    CHECK(strips.n_strips * strips.rows_per_strip >= n_rows);
    CHECK((strips.n_strips - 1) * strips.rows_per_strip < std::max<std::int64_t>(n_rows, 1));
  }
}
