#pragma once
#include <map>

#include "src/comm/library_sums.h"
#include "src/comm/nccl/nccl_communicator.h"

namespace llm {

/// A group's sums by NCCL's own collectives: ncclAllReduce for whole sums, ncclReduceScatter for
/// equal pieces, otherwise a group of ncclReduce, one a piece. All are in place and take no memory
/// of this project.
///
/// One communicator over the group, one stream, and one launch order, that of the sums' numbers.
/// Since all members have come to a sum before it is given to NCCL, its kernel waits for the
/// others' calls at most, which they make as soon as they poll (see NcclTransport).
///
/// The same bits at every start need algorithms whose order of additions is fixed: rings and trees,
/// not those that add in a switch (set_nccl_environment).
class NcclSums : public LibrarySums, public Poller {
 public:
  /// Thread blocks of a sum's kernel: not so few as a message's, since it adds and nothing else is
  /// on its wires; not so many that the backward beside it starves.
  static constexpr int most_ctas = 16;

  /// `group` and `calls` are not owned. Polled by the group's loop.
  NcclSums(Group& group, const NcclCalls& calls);
  ~NcclSums() override;
  NcclSums(const NcclSums&) = delete;
  NcclSums& operator=(const NcclSums&) = delete;

  Id make_id() override { return communicator_.make_id(); }
  void begin(const Id& id) override;
  void put(LibrarySum sum, std::function<void()> done) override;
  bool poll() override;
  std::string doing() const override { return "NCCL"; }

 private:
  struct Given {
    LibrarySum sum;
    std::function<void()> done;
  };
  void launch(Given given);

  Group& group_;
  const NcclCalls& calls_;
  NcclCommunicator communicator_;
  std::map<std::int64_t, Given> early_;  ///< by number, whose turn it is not
  std::int64_t next_ = 0;
};

}  // namespace llm
