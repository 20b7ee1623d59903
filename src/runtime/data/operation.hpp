#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <vector>

#include "comm/gpu/gpu.hpp"
#include "insight/recorder.hpp"
#include "kolo/error.hpp"
#include "kolo/shared_window.hpp"
#include "runtime/protocol/request.hpp"

namespace kolo::runtime {

/// One tensor's memory on this rank.
struct TensorMemory {
  const std::byte* input = nullptr;  ///< all-gather: null if it is in its place in `output`
  std::byte* output = nullptr;
  float* residual = nullptr;  ///< see AllreduceOptions
  /// The addresses, on every rank, of the part that others need (see CollectiveCall), if all of
  /// that is shared memory; else empty.
  std::vector<std::byte*> peer_buffers;

  std::int64_t row_count = 0;             ///< all-gather: this rank's rows
  std::vector<std::int64_t> send_splits;  ///< all-to-all: this rank's rows for each rank
  /// All-gather, all-to-all: given the number of rows from each rank, returns memory for all rows.
  std::function<void*(const std::vector<std::int64_t>& rows)> allocate_output;
};

class LaunchTurn;

/// Orders an operation on a GPU with the program's own work there, and with other operations.
struct DeviceOrder {
  int gpu = 0;  ///< of its tensors
  comm::DeviceStream stream =
      nullptr;                        ///< the program's: writes inputs before, reads outputs after
  std::shared_ptr<CUevent_st> ready;  ///< after the work on the stream at submission
  std::shared_ptr<CUevent_st> done;   ///< after the operation; null: it was not launched
  std::shared_ptr<LaunchTurn> turn;   ///< until it has been launched; null: it waits for no peer
};

/// The role of an operation on this rank.
enum class OperationRole : std::uint8_t {
  Submitted,  ///< by the program
  Join,       ///< a call of join(): its request is empty
  StandIn,    ///< the part of a joined rank in another rank's operation; no thread waits for it
};

/// Send, receive: which message it is.
struct MessageMatch {
  int peer = 0;  ///< within the set; receive: any rank of it if it is negative
  std::int64_t tag = 0;
  int* sender = nullptr;  ///< receive: where the world rank of the sender is stored, or null
};

/// One operation on this rank: its request, its memory, and its result.
///
/// Set up by the submitting thread, run by whichever thread makes progress in its engine, read by
/// the waiting one: `is_done` is stored last and orders everything else. On a GPU it is done when
/// it has been launched: later work there waits for an event.
struct Operation {
  using Clock = std::chrono::steady_clock;

  OperationRole role = OperationRole::Submitted;
  Request request;
  std::uint64_t use = 0;  ///< its number in its engine, from 1 on; a StandIn has none
  Clock::time_point deadline = Clock::time_point::max();
  std::vector<TensorMemory> tensors;  ///< as many as the request has
  DeviceOrder device;                 ///< if the request is for a GPU

  std::shared_ptr<SharedWindow> shared_window;  ///< share memory; null: private memory is used
  int shared_memory_number = 0;                 ///< share memory: counted in its process set
  int process_set_number = 0;                   ///< add process set
  MessageMatch message;                         ///< send, receive
  int last_joined = 0;                          ///< join: the world rank that joined last

  /// Whether it is between two ranks: matched by its peer and tag, not by its name.
  bool is_message() const {
    return request.collective == Collective::Send || request.collective == Collective::Receive;
  }
  /// Whether other ranks access its memory.
  bool is_accessed_by_peers() const {
    return !tensors.empty() && !tensors.front().peer_buffers.empty();
  }

  std::vector<std::shared_ptr<void>> buffers;  ///< owners of those that contain its tensor
  std::shared_ptr<void> keep_alive;            ///< of all other memory above that needs an owner

  insight::Event course{};              ///< for traces; `begin` is its submission
  std::uint8_t noted = 0;               ///< how many stages of it are in a Pending event
  int noted_for = -1;                   ///< the world rank that it waited for as of that event
  insight::Event::Time noted_age{};     ///< how long it had not ended as of that event
  std::atomic<bool> is_awaited{false};  ///< the engine knows that a caller waits for it
  Clock::time_point started{};          ///< when its data began to move
  Clock::time_point ended{};
  std::exception_ptr error;
  std::vector<std::function<void()>> notices;  ///< called at its end; see Engine::notify()
  std::atomic<bool> is_done{false};
};

using Operations = std::vector<std::shared_ptr<Operation>>;

/// Thrown by a batch on all ranks: the batch fails with this error, and the process set stays
/// usable. Any other exception concerns only one rank, which then counts as lost.
struct AgreedFailure {
  Failure failure;
};

}  // namespace kolo::runtime
