#pragma once
#include <nccl.h>

#include <cstdint>

namespace llm::emulator {

/// NCCL between ranks of this process, on current_device(). A communicator is ready some polls
/// after all its ranks have begun it. A group's calls on a communicator are one op of their stream,
/// put in some polls later; the first message between two ranks not before both have called. The op
/// moves a message once the partner's op too is the first of its stream, and ends with its last
/// message. Messages between two ranks of a communicator match in the order of the calls.
///
/// The k-th sum of a rank (ncclAllReduce, ncclReduceScatter, ncclReduce; f32) matches the k-th of
/// every other. It is made when all ranks' ops are first of their streams, and adds along a ring
/// that ends with who keeps the element, which for more than two ranks is not the order of this
/// project's plans.
///
/// EmulatorError is thrown, where NCCL would corrupt, hang or crash, for
///   - a send and a receive that match and differ in bytes or dtype
///   - sums that match and differ in what, how much or for whom: also those in another order
///   - a sum whose result overlaps its operand otherwise than in place
///   - a call on a communicator that is in progress, in error, finalized or gone
///   - blocking communicators: the rank would wait for others that are on the same thread
///   - a group whose calls on a communicator have different streams
///   - a communicator that is destroyed before its work has ended
/// and by the device where the host waits for ops that wait for each other, in crossed orders.
void seed_nccl(std::uint64_t seed);
/// Communicators that are neither destroyed nor aborted.
int n_communicators();
/// Sums that were made, of all communicators.
std::int64_t n_sums();
/// All that are there, and all that are made, report `error` from now on; ncclSuccess ends that.
void fail_nccl(ncclResult_t error);

}  // namespace llm::emulator
