#pragma once

#include <string>

#include "runtime/runtimes.hpp"

namespace kolo::test {

/// The setting with ranks that share one GPU and are connected by ThreadCommunicators. The program
/// decides which GPU: a real one (cuda_thread_worlds.cpp) or a fake one (fake_thread_worlds.cpp).
/// thread_communicator_test.cpp applies it to all tests with GPUs; see on_other_gpus.
Setting on_one_gpu(Setting setting);

}  // namespace kolo::test
