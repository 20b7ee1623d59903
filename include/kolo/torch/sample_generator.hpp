#pragma once

#include <cstddef>
#include <cstdint>

#include <ATen/core/Generator.h>

#pragma GCC visibility push(default)
namespace kolo {

/// Makes the generator of one sample in one epoch, for a data set that draws random numbers, such
/// as a place to crop at. LibTorch's default generator is shared by all threads of a process: which
/// sample gets which of its numbers depends on the loader's workers and on what they have
/// prefetched. Numbers of this generator depend only on the arguments, so they are the same for
/// any number of workers and ranks, and after a resume.
///
///   at::Tensor noise = torch::randn({3}, kolo::sample_generator(seed, epoch, index));
///
/// DistributedSampler::sample_generator and Accelerator::sample_generator know seed and epoch.
/// For other kinds of random numbers, use its current_seed(): `std::mt19937_64(
/// generator.current_seed())`.
at::Generator sample_generator(std::uint64_t seed, std::int64_t epoch, std::size_t index);

}  // namespace kolo
#pragma GCC visibility pop
