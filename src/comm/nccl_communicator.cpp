#include "comm/nccl_communicator.hpp"

#include <array>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/deadline.hpp"
#include "base/log.hpp"
#include "comm/cuda_handles.hpp"
#include "comm/outgoing.hpp"
#include "kolo/error.hpp"

namespace kolo::comm {
namespace {

/// What rank 0 tells the others: how to find one another, or why they cannot.
struct Invitation {
  ncclUniqueId id{};
  std::array<char, 384> failure{};  // empty: success
};

Invitation invite() {
  Invitation invitation;
  try {
    KOLO_NCCL_TRY(ncclGetUniqueId(&invitation.id));
  } catch (const BackendError& error) {
    std::string(error.what()).copy(invitation.failure.data(), invitation.failure.size() - 1);
  }
  return invitation;
}

/// Rank 0's invitation, on all ranks.
Task broadcast(Communicator& communicator, int tag, Invitation& invitation) {
  if (communicator.rank() != 0) {
    co_await communicator.receive(std::as_writable_bytes(std::span(&invitation, 1)), 0, tag);
    co_return;
  }
  Outgoing<Invitation> outgoing(invitation);
  std::vector<Transfer> transfers;
  for (int peer = 1; peer < communicator.size(); ++peer) {
    transfers.push_back(communicator.send(outgoing.bytes(), peer, tag));
  }
  for (Transfer& transfer : transfers) co_await transfer;
  outgoing.set_left();
}

void request_ring() {
  static std::once_flag once;
  std::call_once(once, [] {
    ::setenv("NCCL_ALGO", "Ring", 0);
    KOLO_LOG(Info) << "NCCL " << NCCL_MAJOR << "." << NCCL_MINOR
                   << " with NCCL_ALGO=" << std::getenv("NCCL_ALGO");
  });
}

ncclDataType_t nccl_type(DType dtype) {
  switch (dtype) {
    case DType::UInt8:
    case DType::Bool:  // a byte that holds 0 or 1, of which Min and Max are "and" and "or"
      return ncclUint8;
    case DType::Int8: return ncclInt8;
    case DType::Int32: return ncclInt32;
    case DType::Int64: return ncclInt64;
    case DType::Float16: return ncclFloat16;
    case DType::BFloat16: return ncclBfloat16;
    case DType::Float32: return ncclFloat32;
    case DType::Float64: return ncclFloat64;
    case DType::Int16: break;
  }
  throw InvalidArgument("NCCL cannot reduce " + std::string(name_of(dtype)) +
                        ": convert it to int32 first");
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
    case ReduceOp::Average:
    case ReduceOp::Adasum:
    case ReduceOp::Custom: break;
  }
  throw InvalidArgument("NCCL all-reduce of " + std::string(name_of(dtype)) + " by " +
                        std::string(name_of(op)) + " is not defined");
}

}  // namespace

Task NcclCommunicator::make(Communicator& communicator, int tag, int device,
                            std::unique_ptr<DeviceCommunicator>& made) {
  Invitation invitation;
  if (communicator.rank() == 0) invitation = invite();
  co_await broadcast(communicator, tag, invitation);
  if (invitation.failure[0] != '\0') {
    throw BackendError("NCCL on rank 0 of the set: " + std::string(invitation.failure.data()));
  }
  auto joining = std::make_unique<NcclCommunicator>(communicator.rank(), communicator.size(),
                                                    device, invitation.id);
  co_await *joining;
  made = std::move(joining);
}

NcclCommunicator::NcclCommunicator(int rank, int size, int device, const ncclUniqueId& id)
    : rank_(rank), size_(size) {
  request_ring();
  const CudaDeviceGuard guard(device);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclComm_t communicator = nullptr;
  const ncclResult_t code = ncclCommInitRankConfig(&communicator, size, id, rank, &config);
  communicator_.reset(communicator);
  KOLO_NCCL_TRY(code);
}

NcclCommunicator::~NcclCommunicator() {
  if (communicator_ == nullptr) return;
  const Deadline deadline = Deadline::after(std::chrono::seconds(1));
  try {
    KOLO_NCCL_TRY(ncclCommFinalize(communicator_.get()));
    while (!ready()) {
      if (deadline.is_over()) return;  // aborts
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    KOLO_NCCL_TRY(ncclCommDestroy(communicator_.release()));
  } catch (const std::exception& error) {
    log_device_error(error.what());
  }
}

bool NcclCommunicator::ready() {
  require_alive();
  ncclResult_t state = ncclSuccess;
  KOLO_NCCL_TRY(ncclCommGetAsyncError(communicator_.get(), &state));
  if (state == ncclInProgress) return false;
  if (state != ncclSuccess) {
    abort(describe(state, "NCCL"));
    require_alive();
  }
  return true;
}

void NcclCommunicator::all_reduce(const void* input, void* output, std::size_t count, DType dtype,
                                  ReduceOp op, DeviceStream stream) {
  require_alive();
  KOLO_NCCL_TRY(ncclAllReduce(input, output, count, nccl_type(dtype), nccl_op(op, dtype),
                              communicator_.get(), stream));
}

void NcclCommunicator::abort(const std::string& reason) noexcept {
  if (communicator_ == nullptr) return;
  reason_ = reason;
  communicator_.reset();
}

void NcclCommunicator::require_alive() const {
  if (communicator_ == nullptr) throw BackendError("NCCL communicator was aborted: " + reason_);
}

}  // namespace kolo::comm
