#pragma once

namespace kolo::ops {

/// The tag of every algorithm's messages. Messages of one sender arrive in order, so one is enough.
inline constexpr int kTag = 0;

}  // namespace kolo::ops
