#include "comm/gpu/nccl_communicator.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>

#include "base/deadline.hpp"
#include "base/log.hpp"
#include "comm/gpu/broadcast_value.hpp"
#include "comm/gpu/cuda.hpp"
#include "comm/gpu/gpu.hpp"
#include "kolo/error.hpp"

namespace kolo::comm {

ncclDataType_t nccl_type(DType dtype) {
  switch (dtype) {
    case DType::UInt8:
    case DType::Bool:  // a byte of 0 or 1: Min is "and", Max is "or"
      return ncclUint8;
    case DType::Int8: return ncclInt8;
    case DType::Int32: return ncclInt32;
    case DType::Int64: return ncclInt64;
    case DType::Float16: return ncclFloat16;
    case DType::BFloat16: return ncclBfloat16;
    case DType::Float32: return ncclFloat32;
    case DType::Float64: return ncclFloat64;
    case DType::Int16:
    case DType::Complex64:
    case DType::Complex128: break;
  }
  throw InvalidArgument("NCCL cannot reduce " + std::string(name_of(dtype)) +
                        (is_complex(dtype) ? ": reduce its parts" : ": convert it to int32 first"));
}

ncclRedOp_t nccl_op(ReduceOp op, DType dtype) {
  const bool is_bool = dtype == DType::Bool;
  switch (op) {
    case ReduceOp::Min: return ncclMin;
    case ReduceOp::Max: return ncclMax;
    case ReduceOp::Sum:
      if (!is_bool) return ncclSum;
      break;
    case ReduceOp::Product:
      if (!is_bool) return ncclProd;
      break;
    default: break;
  }
  throw InvalidArgument("NCCL reduction of " + std::string(name_of(dtype)) + " by " +
                        std::string(name_of(op)) + " is not defined");
}

namespace {

/// What rank 0 sends to the others: the id by which they connect, or why there is none.
struct Invitation {
  ncclUniqueId id{};
  std::array<char, 384> failure{};  // empty: success
};

Invitation invite() {
  Invitation invitation;
  try {
    KOLO_CUDA_TRY(ncclGetUniqueId(&invitation.id));
  } catch (const BackendError& error) {
    std::string(error.what()).copy(invitation.failure.data(), invitation.failure.size() - 1);
  }
  return invitation;
}

/// Operations that only move elements treat every type as bytes.
constexpr ncclDataType_t kByte = ncclUint8;

void log_version() {
  static std::once_flag once;
  std::call_once(once, [] {
    const char* const algo = std::getenv("NCCL_ALGO");
    KOLO_LOG(Info) << "NCCL " << NCCL_MAJOR << "." << NCCL_MINOR
                   << " with NCCL_ALGO=" << (algo == nullptr ? "" : algo);
  });
}

/// Aborts on a detached thread: a peer or a GPU that does not respond may block it forever.
void abort_elsewhere(NcclComm communicator, int device) noexcept {
  if (communicator == nullptr) return;
  ncclComm_t const handle = communicator.release();  // owned by the thread; leaked if none starts
  try {
    std::thread([handle, device] {
      NcclComm aborted(handle);
      try {
        const CudaDeviceGuard guard(device);  // without it NCCL would open GPU 0
        aborted.reset();
      } catch (const std::exception& error) {
        KOLO_LOG(Error) << error.what();
      }
    }).detach();
  } catch (const std::exception& error) {
    KOLO_LOG(Error) << error.what();
  }
}

bool are_equal(std::span<const std::size_t> counts) {
  return std::ranges::all_of(counts, [&](std::size_t count) { return count == counts[0]; });
}

/// For counts that differ: calls `call(root, begin)` in one group for each rank that has elements.
template <class Call>
void for_each_root(std::span<const std::size_t> counts, Call call) {
  NcclGroup group;
  std::size_t begin = 0;
  for (std::size_t root = 0; root < counts.size(); begin += counts[root++]) {
    if (counts[root] > 0) call(root, begin);
  }
  group.end();
}

/// Advances an untyped pointer by `count` elements.
template <class Void>
Void* move_on(Void* memory, std::size_t count, DType dtype) {
  using Byte = std::conditional_t<std::is_const_v<Void>, const std::byte, std::byte>;
  return static_cast<Byte*>(memory) + count * size_of(dtype);
}

}  // namespace

Task NcclCommunicator::make(Communicator& communicator, int tag, int device,
                            std::unique_ptr<DeviceCommunicator>& made) {
  Invitation invitation;
  if (communicator.rank() == 0) invitation = invite();
  co_await broadcast_value(communicator, tag, invitation);
  if (invitation.failure[0] != '\0') {
    throw BackendError("NCCL on rank 0 of the set: " + std::string(invitation.failure.data()));
  }
  auto joining = std::make_unique<NcclCommunicator>(communicator.rank(), communicator.size(),
                                                    device, invitation.id);
  co_await *joining;
  made = std::move(joining);
}

NcclCommunicator::NcclCommunicator(int rank, int size, int device, const ncclUniqueId& id)
    : rank_(rank), size_(size), device_(device) {
  log_version();
  const CudaDeviceGuard guard(device);
  release_cached_memory();  // if NCCL found no room for its buffers, the set would end
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;  // see the class
  ncclComm_t communicator = nullptr;
  const ncclResult_t code = ncclCommInitRankConfig(&communicator, size, id, rank, &config);
  if (code == ncclSuccess || code == ncclInProgress) {
    communicator_.reset(communicator);
    return;
  }
  const std::string text = describe(code, "ncclCommInitRankConfig");
  NcclComm(communicator).reset();  // on this device
  throw BackendError(text);
}

NcclCommunicator::~NcclCommunicator() {
  if (communicator_ == nullptr) return;
  const Deadline deadline = Deadline::after(std::chrono::seconds(1));
  try {
    const CudaDeviceGuard guard(device_);
    if (reason_.empty()) KOLO_CUDA_TRY(ncclCommFinalize(communicator_.get()));
    while (reason_.empty() && !ready()) {
      if (deadline.has_passed()) reason_ = "the others have not finalized it";
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    if (reason_.empty()) KOLO_CUDA_TRY(ncclCommDestroy(communicator_.release()));
  } catch (const std::exception& error) {
    KOLO_LOG(Error) << error.what();
  }
  abort_elsewhere(std::move(communicator_), device_);
}

bool NcclCommunicator::ready() {
  require_alive();
  ncclResult_t state = ncclSuccess;
  KOLO_CUDA_TRY(ncclCommGetAsyncError(communicator_.get(), &state));
  if (state == ncclInProgress) return false;
  if (state == ncclRemoteError) {
    reason_ = describe(state, "NCCL");
    throw RemoteError(reason_);
  }
  if (state != ncclSuccess) fail(describe(state, "NCCL"));
  return true;
}

template <class Call>
void NcclCommunicator::launch(Call call) {
  require_alive();
  try {
    const CudaDeviceGuard guard(device_);
    call(communicator_.get());
  } catch (const BackendError& error) {
    fail(error.what());
  }
}

void NcclCommunicator::all_reduce(const void* input, void* output, std::size_t count, DType dtype,
                                  ReduceOp op, DeviceStream stream) {
  launch([&](ncclComm_t communicator) {
    const ncclDataType_t type = nccl_type(dtype);
    const ncclRedOp_t operation = nccl_op(op, dtype);
    if (count == 0) return;
    KOLO_CUDA_TRY(ncclAllReduce(input, output, count, type, operation, communicator, stream));
  });
}

void NcclCommunicator::reduce_scatter(const void* input, void* output,
                                      std::span<const std::size_t> counts, DType dtype, ReduceOp op,
                                      DeviceStream stream) {
  require_counts("reduce_scatter", counts);
  launch([&](ncclComm_t communicator) {
    const ncclDataType_t type = nccl_type(dtype);
    const ncclRedOp_t operation = nccl_op(op, dtype);
    if (are_equal(counts)) {
      if (counts[0] == 0) return;
      KOLO_CUDA_TRY(
          ncclReduceScatter(input, output, counts[0], type, operation, communicator, stream));
      return;
    }
    for_each_root(counts, [&](std::size_t rank, std::size_t begin) {
      const int root = static_cast<int>(rank);
      KOLO_CUDA_TRY(ncclReduce(move_on(input, begin, dtype), root == rank_ ? output : nullptr,
                               counts[rank], type, operation, root, communicator, stream));
    });
  });
}

void NcclCommunicator::all_gather(const void* input, void* output,
                                  std::span<const std::size_t> counts, DType dtype,
                                  DeviceStream stream) {
  require_counts("all_gather", counts);
  launch([&](ncclComm_t communicator) {
    if (are_equal(counts)) {
      if (counts[0] == 0) return;
      KOLO_CUDA_TRY(
          ncclAllGather(input, output, counts[0] * size_of(dtype), kByte, communicator, stream));
      return;
    }
    for_each_root(counts, [&](std::size_t rank, std::size_t begin) {
      const int root = static_cast<int>(rank);
      void* const to = move_on(output, begin, dtype);
      KOLO_CUDA_TRY(ncclBroadcast(root == rank_ ? input : to, to, counts[rank] * size_of(dtype),
                                  kByte, root, communicator, stream));
    });
  });
}

void NcclCommunicator::broadcast(void* buffer, std::size_t count, DType dtype, int root,
                                 DeviceStream stream) {
  launch([&](ncclComm_t communicator) {
    if (count == 0) return;
    KOLO_CUDA_TRY(
        ncclBroadcast(buffer, buffer, count * size_of(dtype), kByte, root, communicator, stream));
  });
}

void NcclCommunicator::all_to_all(const void* input, std::span<const std::size_t> sent,
                                  void* output, std::span<const std::size_t> received, DType dtype,
                                  DeviceStream stream) {
  require_counts("all_to_all", sent);
  require_counts("all_to_all", received);
  launch([&](ncclComm_t communicator) {
    NcclGroup group;
    const void* from = input;
    void* to = output;
    for (std::size_t peer = 0; peer < sent.size(); ++peer) {
      const int rank = static_cast<int>(peer);
      if (sent[peer] > 0) {
        KOLO_CUDA_TRY(
            ncclSend(from, sent[peer] * size_of(dtype), kByte, rank, communicator, stream));
      }
      if (received[peer] > 0) {
        KOLO_CUDA_TRY(
            ncclRecv(to, received[peer] * size_of(dtype), kByte, rank, communicator, stream));
      }
      from = move_on(from, sent[peer], dtype);
      to = move_on(to, received[peer], dtype);
    }
    group.end();
  });
}

void NcclCommunicator::begin_group() {
  launch([&](ncclComm_t) { group_ = std::make_unique<NcclGroup>(); });
}

/// Ends the group even if the communicator has failed meanwhile: NCCL's groups belong to the
/// thread.
void NcclCommunicator::end_group() {
  const std::unique_ptr<NcclGroup> group = std::move(group_);
  launch([&](ncclComm_t) { group->end(); });
}

void NcclCommunicator::abort(const std::string& reason) noexcept {
  if (communicator_ == nullptr) return;
  if (reason_.empty()) reason_ = reason;
  try {
    const CudaDeviceGuard guard(device_);  // NCCL would use, and so open, GPU 0
    communicator_.reset();
  } catch (const std::exception& error) {
    KOLO_LOG(Error) << error.what();
  }
}

void NcclCommunicator::fail(const std::string& reason) {
  if (reason_.empty()) reason_ = reason;
  throw BackendError(reason);
}

void NcclCommunicator::require_alive() const {
  if (!reason_.empty()) throw BackendError("NCCL communicator has failed: " + reason_);
}

void NcclCommunicator::require_counts(const char* operation,
                                      std::span<const std::size_t> counts) const {
  if (counts.size() == static_cast<std::size_t>(size_)) return;
  throw InvalidArgument("NCCL " + std::string(operation) + ": expected counts of " +
                        std::to_string(size_) + " ranks, got " + std::to_string(counts.size()));
}

}  // namespace kolo::comm
