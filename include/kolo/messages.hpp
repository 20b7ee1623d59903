#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "kolo/handle.hpp"
#include "kolo/process_set.hpp"
#include "kolo/tensor_view.hpp"

#pragma GCC visibility push(default)
/// Messages from one rank of a process set to another, in CPU memory.
///
///     if (kolo::rank() == 0) kolo::send(view, 1);
///     if (kolo::rank() == 1) kolo::receive(view, 0);
///
/// A receive takes the first message with its tag from its rank that no earlier receive has taken.
/// Messages are independent of collectives, of other process sets, and of one another but for that
/// order: sends and receives that wait, however many, delay nothing else. Short ones (2 KiB) are
/// copied, so that their send ends at once; long ones move from memory to memory once the receiver
/// has posted its receive. A long message whose send ends with a TimeoutError was not sent: a
/// receive that had just taken it takes the next, or ends with a TimeoutError if a later receive
/// has that.
///
/// A message is not lost because its rank shuts down or the set is removed: one whose send has
/// ended well arrives, also at a receive that is posted later, until the receiver's own rank does
/// so; and a long one, if its receive has been posted by then.
///
/// Errors at the call, on this rank alone: InvalidArgument for a tensor on a GPU, and for a rank
/// that is no member; ShutdownError after the Runtime has ended. Errors from the handle or the
/// blocking call: TimeoutError if the other side has not called in time; MismatchError if count or
/// dtype differ, on the receiver, and on the sender of a long message; PeerLostError, as of
/// collectives; ShutdownError if a rank has shut down or removed the set, for a send that begins
/// later or that no receive has matched, and a receive for which no message was sent. After the
/// first two the set stays usable.
namespace kolo {

/// The source of a receive: whichever rank sends first.
inline constexpr int kAnyRank = -1;

struct MessageOptions {
  std::int64_t tag = 0;  ///< the same on both sides
  std::string name{};    ///< for texts alone; several at once may have the same
  std::optional<std::chrono::nanoseconds> timeout{};  ///< default: KOLO_TIMEOUT
  ProcessSet* process_set = nullptr;                  ///< default: the world of Runtime::current()
  /// Owner of the memory, held until the operation has ended; after a PeerLostError, for good.
  std::shared_ptr<void> keep_alive{};
};

/// Sends a tensor.
///
/// @param tensor [...] of any shape; must stay valid and unchanged until the handle is ready
/// @param to world rank of the receiver, possibly this rank itself
/// @return handle that is ready once the memory may be used again. The message may not have arrived
Handle send_async(const TensorView& tensor, int to, const MessageOptions& options = {});
/// Blocking send_async.
void send(const TensorView& tensor, int to, const MessageOptions& options = {});

/// Receives a tensor.
///
/// @param tensor [...] with as many elements as are sent, of the same dtype; the shape may differ
/// @param from world rank of the sender, or kAnyRank
/// @param sender null, or where the sender's world rank is stored before the handle is ready
/// @return handle that is ready once the data are in `tensor`
Handle receive_async(const TensorView& tensor, int from, const MessageOptions& options = {},
                     int* sender = nullptr);
/// Blocking receive_async.
///
/// @return the sender's world rank
int receive(const TensorView& tensor, int from, const MessageOptions& options = {});

}  // namespace kolo
#pragma GCC visibility pop
