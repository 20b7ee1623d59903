#pragma once

#include <optional>

#include <CLI/App.hpp>
#include <CLI/Validators.hpp>

#include "common/exit.hpp"
#include "kolo/shard.hpp"
#include "kolo/tensor_view.hpp"

namespace examples {

/// Accepts multiples of `divisor`.
CLI::Validator multiple_of(int divisor);

/// Adds --shard; without it `shard` is unchanged.
void add_shard_option(CLI::App& app, std::optional<kolo::Shard>& shard);

/// Adds --device, by default cpu.
void add_device_option(CLI::App& app, kolo::DeviceKind& device);

}  // namespace examples
