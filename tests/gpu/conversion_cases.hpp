#pragma once

#include <cstddef>
#include <functional>
#include <span>

#include "comm/gpu/gpu.hpp"

namespace kolo::test {

/// A conversion as it is tested: of host memory, by way of whatever does it. Where `from` and `to`
/// are the same memory it is done in place.
using HostConvert =
    std::function<void(std::span<const comm::DeviceRun> runs, std::span<const std::byte> from,
                       std::span<std::byte> to, comm::DeviceConversion conversion)>;

/// Takes `convert` through all pairs of types, with runs of many sizes at odd places, factors and
/// divisors, and compares with what the CPU makes of them; what lies between runs must stay.
void expect_converted_as_on_the_cpu(const HostConvert& convert);
/// The same in place, for pairs of types of one size.
void expect_converted_in_place(const HostConvert& convert);
/// More runs than one launch takes.
void expect_many_runs_converted(const HostConvert& convert);

}  // namespace kolo::test
