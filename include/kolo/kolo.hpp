#pragma once

/// All of Kolo that a training program uses.
#include "kolo/activation_checkpoint.hpp"
#include "kolo/autocast.hpp"
#include "kolo/checkpoint.hpp"
#include "kolo/collectives.hpp"
#include "kolo/deferred.hpp"
#include "kolo/distributed_optimizer.hpp"
#include "kolo/error.hpp"
#include "kolo/grad_scaler.hpp"
#include "kolo/objects.hpp"
#include "kolo/parameter_sync.hpp"
#include "kolo/runtime.hpp"
#include "kolo/shard.hpp"
#include "kolo/shared_tensor.hpp"
#include "kolo/tensor_collectives.hpp"
#include "kolo/training_report.hpp"
#include "kolo/unit_policy.hpp"
