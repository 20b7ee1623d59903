#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "kolo/task.hpp"
#include "runtime/data/backend.hpp"
#include "runtime/data/operation.hpp"
#include "runtime/data/set_context.hpp"
#include "runtime/protocol/bits.hpp"

/// Operations that run while some ranks have joined.
namespace kolo::runtime {

/// Finds, for each operation, the ranks that joined without submitting it. Only these ranks
/// know: an operation that a rank submitted before it joined counts in full, whenever it runs.
Task find_absent(const SetContext& set, const Operations& batch, std::vector<Bits>& absent);

/// The absent ranks of one operation, as reductions see them.
JoinedRanks joined_of(const SetContext& set, const Bits& absent);

/// Throws AgreedFailure on all ranks if the operation cannot run without the absent ones.
void refuse_for_absent(const SetContext& set, const Request& request, const Bits& absent);

/// Throws AgreedFailure on all ranks if any sends rows to a joined one, since they would be lost.
Task refuse_rows_for_absent(const SetContext& set, const Request& request,
                            const std::vector<std::size_t>& received, const Bits& absent);

/// Memory that is released with the operation that owns it.
class ScratchMemory {
 public:
  virtual ~ScratchMemory() = default;
  virtual std::byte* allocate(std::size_t bytes) = 0;
  /// Fills `count` elements with the identity of `reduction`.
  virtual void fill_identity(DType dtype, const Reduction& reduction, std::byte* to,
                             std::size_t count) = 0;
};

/// The contribution of a joined rank to `request`: identities to reductions, no rows, and memory
/// for unused results.
std::shared_ptr<Operation> make_stand_in(const SetContext& set, const Request& request,
                                         std::shared_ptr<ScratchMemory> scratch);

}  // namespace kolo::runtime
