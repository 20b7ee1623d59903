#include "comm/gpu/nccl_invitation.hpp"

#include <array>
#include <string>

#include "comm/gpu/broadcast_value.hpp"
#include "comm/gpu/cuda_check.hpp"
#include "kolo/error.hpp"

namespace kolo::comm {
namespace {

/// What rank 0 sends to the others: the NCCL id, or why there is none.
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

}  // namespace

Task share_nccl_id(Communicator& communicator, int tag, ncclUniqueId& id) {
  Invitation invitation;
  if (communicator.rank() == 0) invitation = invite();
  co_await broadcast_value(communicator, tag, invitation);
  if (invitation.failure[0] != '\0') {
    throw BackendError("NCCL on rank 0 of the set: " + std::string(invitation.failure.data()));
  }
  id = invitation.id;
}

}  // namespace kolo::comm
