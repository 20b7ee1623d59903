#include "comm/gpu/nccl_invitation.hpp"

#include <array>
#include <span>
#include <string>
#include <vector>

#include "base/outgoing.hpp"
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

/// Rank 0's invitation, on all ranks.
Task distribute(Communicator& communicator, int tag, Invitation& invitation) {
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

}  // namespace

Task share_nccl_id(Communicator& communicator, int tag, ncclUniqueId& id) {
  Invitation invitation;
  if (communicator.rank() == 0) invitation = invite();
  co_await distribute(communicator, tag, invitation);
  if (invitation.failure[0] != '\0') {
    throw BackendError("NCCL on rank 0 of the set: " + std::string(invitation.failure.data()));
  }
  id = invitation.id;
}

}  // namespace kolo::comm
