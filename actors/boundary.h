#pragma once
#include <cstdint>
#include <vector>

#include "actors/messages.h"
#include "src/comm/transport.h"
#include "src/rt/inbox.h"
#include "src/rt/port.h"
#include "src/rt/task.h"
#include "tensor/storage.h"

namespace llm {

/// Who gets a tensor's memory back when it is no longer needed. Travels with the tensor.
struct Lease {
  Lease() = default;
  Lease(Inbox<Ready>& returned_, std::int64_t key_) : returned(&returned_), key(key_) {}
  void give_back() const {
    if (returned != nullptr) returned->put(key, Ready{});
  }
  Inbox<Ready>* returned = nullptr;  ///< nullptr: nobody waits for it
  std::int64_t key = 0;
};

/// A tensor in memory that is somebody's: activations or their gradient, (n, C).
struct Leased {
  Leased() = default;
  Leased(MutView tensor_, Lease lease_) : tensor(tensor_), lease(lease_) {}
  MutView tensor;
  Lease lease;
};

/// n buffers of one size that are taken in turn; the k-th taker waits until the (k-n)-th has given
/// back.
class BufferRing {
 public:
  /// Of (n_rows, width) at most.
  struct Size {
    int n_buffers = 1;
    std::int64_t n_rows = 1;
    std::int64_t width = 1;
    Dtype dtype = Dtype::f32;
    Device device = Device::cpu;
    std::int64_t n_bytes() const {
      return n_buffers * n_rows * width * static_cast<std::int64_t>(size_of(dtype));
    }
  };
  BufferRing(Loop& loop, Size size);
  Task<Leased> take(std::int64_t n_rows);

 private:
  const Size size_;
  Storage storage_;
  Inbox<Ready> returned_;
  std::int64_t n_taken_ = 0;
};

/// What a receiver is to expect: the tensors of one step, or of one round of validation.
struct ExpectedTensors {
  ExpectedTensors(std::int64_t step_, std::int32_t first_index_, std::int64_t first_key_,
                  const std::vector<std::int64_t>& n_rows_, Inbox<Leased>& arrived_)
      : step(step_),
        first_index(first_index_),
        first_key(first_key_),
        n_rows(&n_rows_),
        arrived(&arrived_) {}
  std::int64_t step;                        ///< in the header, with the index
  std::int32_t first_index;                 ///< the i-th has first_index + i
  std::int64_t first_key;                   ///< the i-th goes into the inbox with first_key + i
  const std::vector<std::int64_t>* n_rows;  ///< outlives the receiver's run
  Inbox<Leased>* arrived;
};

/// One boundary between two stages in one direction: both ends of it have the same.
struct Boundary {
  int peer = 0;  ///< rank
  int tag = 0;
  MessageKind kind = MessageKind::activation;
  int stage = 0;  ///< that receives
};

/// Receives a boundary's tensors in the order in which they are sent, each into a buffer of its
/// ring as soon as one is free: while the stage computes a microbatch, the next one arrives.
///
///   receives  expected(0, 1, ...)  from the stage, as steps and rounds begin
///   sends     the tensors, into the inbox that the stage names
class TensorReceiver {
 public:
  TensorReceiver(Transport& transport, Boundary boundary, BufferRing::Size size);
  Inbox<ExpectedTensors>& expected() { return expected_; }
  Task<> run();

 private:
  Transport& transport_;
  const Boundary boundary_;
  const WaitName wait_;
  BufferRing ring_;
  Inbox<ExpectedTensors> expected_;
};

/// A tensor on its way out; `step` and `index` name it in its header.
struct Outgoing {
  Outgoing(std::int64_t step_, std::int32_t index_, Leased leased_)
      : step(step_), index(index_), leased(leased_) {}
  std::int64_t step;
  std::int32_t index;
  Leased leased;
};

/// Sends a boundary's tensors, one after the other, from where they are; gives the memory back when
/// it may be changed.
///
///   receives  outgoing(0, 1, ...)  from the stage
class TensorSender {
 public:
  TensorSender(Transport& transport, Boundary boundary);
  void send(Outgoing tensor);
  Task<> run();
  /// Returns when everything given so far has been sent: nobody polls the transport for a rank
  /// whose actors have ended. One waits at a time.
  Task<> all_sent();

 private:
  Transport& transport_;
  const Boundary boundary_;
  const WaitName wait_;
  Inbox<Outgoing> outgoing_;
  Inbox<Ready> all_sent_;
  std::int64_t n_given_ = 0;
  std::int64_t n_sent_ = 0;
  bool is_waited_for_ = false;
};

}  // namespace llm
