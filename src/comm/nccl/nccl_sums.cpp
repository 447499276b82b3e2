#include "src/comm/nccl/nccl_sums.h"

#include <string>
#include <utility>

namespace llm {
namespace {

std::string ranks_text(const Group& group) {
  std::string text = "over ranks ";
  for (std::size_t i = 0; i < group.ranks.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(group.ranks[i]);
  }
  return text;
}

bool is_error(int code) {
  return code != NcclCalls::success && code != NcclCalls::in_progress;
}

/// One ncclReduce a piece, to the member that owns it. The first error counts.
int reduce_pieces(const NcclCalls& calls, const LibrarySum& sum,
                  NcclCalls::Communicator communicator, cudaStream_t stream) {
  float* const x = sum.vector.as<float>();
  int code = calls.begin_group();
  for (std::size_t k = 0; k + 1 < sum.cuts.size() && !is_error(code); ++k) {
    const std::int64_t n = sum.cuts[k + 1] - sum.cuts[k];
    if (n > 0) code = calls.reduce(x + sum.cuts[k], n, static_cast<int>(k), communicator, stream);
  }
  const int end_code = calls.end_group();
  return is_error(code) ? code : end_code;
}

const char* call_name(SumForm form) {
  switch (form) {
    case SumForm::whole:
      return "ncclAllReduce";
    case SumForm::equal_pieces:
      return "ncclReduceScatter";
    case SumForm::pieces:
      return "ncclReduce";
  }
  return "";
}

}  // namespace

NcclSums::NcclSums(Group& group, const NcclCalls& calls)
    : group_(group), calls_(calls), communicator_(calls, {"sums", ranks_text(group)}) {
  group_.transport.loop().add_poller(*this);
}

NcclSums::~NcclSums() {
  group_.transport.loop().remove_poller(*this);
}

void NcclSums::begin(const Id& id) {
  communicator_.begin(id, {group_.index, group_.size()}, most_ctas);
}

void NcclSums::put(LibrarySum sum, std::function<void()> done) {
  CHECK_CONTRACT(sum.vector.dtype() == Dtype::f32 && sum.vector.device() == Device::cuda,
                 "NCCL sums vectors of f32 on a device");
  CHECK_CONTRACT(sum.cuts.empty() || (static_cast<int>(sum.cuts.size()) == group_.size() + 1 &&
                                      sum.cuts.back() == sum.vector.n_elements()),
                 "each member owns a piece");
  CHECK_CONTRACT(sum.number >= next_ && early_.count(sum.number) == 0, "a sum is given once");
  const std::int64_t number = sum.number;
  early_.emplace(number, Given{std::move(sum), std::move(done)});
  for (auto first = early_.find(next_); first != early_.end(); first = early_.find(next_)) {
    ++next_;
    launch(std::move(early_.extract(first).mapped()));
  }
}

void NcclSums::launch(Given given) {
  const SumForm form = form_of(given.sum);
  const auto call = [this, form, sum = std::move(given.sum)](NcclCalls::Communicator communicator,
                                                             cudaStream_t stream) {
    float* const x = sum.vector.as<float>();
    switch (form) {
      case SumForm::whole:
        return calls_.all_reduce(x, sum.vector.n_elements(), communicator, stream);
      case SumForm::equal_pieces:
        return calls_.reduce_scatter(x, sum.cuts[1], group_.index, communicator, stream);
      case SumForm::pieces:
        break;
    }
    return reduce_pieces(calls_, sum, communicator, stream);
  };
  communicator_.put(call_name(form), call, std::move(given.done));
}

bool NcclSums::poll() {
  return communicator_.poll(group_.transport.loop().turn_ns());
}

}  // namespace llm
