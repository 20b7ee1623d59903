#pragma once

#include <c10/core/DispatchKeySet.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace kolo::extras {

/// While it lives, operators record no gradients, not even for create_graph, and run in the dtypes
/// of their inputs, even in an autocast region.
class PlainArithmetic {
 private:
  c10::AutoGradMode no_gradients_{false};
  c10::impl::ExcludeDispatchKeyGuard no_autocast_{c10::autocast_dispatch_keyset};
};

}  // namespace kolo::extras
