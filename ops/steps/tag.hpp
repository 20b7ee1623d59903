#pragma once

namespace kolo::ops {

/// The tag of an algorithm's messages. Messages of one sender arrive in order, so one is enough.
inline constexpr int kTag = 0;

/// The tags of a direct exchange: of contributions to sums, and of sums. Both may be in flight.
inline constexpr int kContributionTag = 0;
inline constexpr int kResultTag = 1;

}  // namespace kolo::ops
