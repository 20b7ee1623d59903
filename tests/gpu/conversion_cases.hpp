#pragma once

#include <cstddef>
#include <functional>
#include <span>

#include "comm/gpu/gpu.hpp"

namespace kolo::test {

/// A conversion under test, from and to host memory; in place if `from` and `to` are the same
/// memory.
using HostConvert =
    std::function<void(std::span<const comm::DeviceRun> runs, std::span<const std::byte> from,
                       std::span<std::byte> to, comm::DeviceConversion conversion)>;

/// Calls `convert` for all pairs of dtypes, with runs of many sizes at odd addresses, factors and
/// divisors. Expects the CPU's results, and no change between runs.
void expect_converted_as_on_the_cpu(const HostConvert& convert);
/// The same in place, for pairs of dtypes of equal size.
void expect_converted_in_place(const HostConvert& convert);
/// More runs than fit into one launch.
void expect_many_runs_converted(const HostConvert& convert);

}  // namespace kolo::test
