#pragma once

/// All extras. Programs link kolo::extras.
#include "kolo/extras/accelerator.hpp"
#include "kolo/extras/adamw_8bit.hpp"
#include "kolo/extras/batches.hpp"
#include "kolo/extras/distributed_sampler.hpp"
#include "kolo/extras/gather_for_metrics.hpp"
#include "kolo/extras/muon.hpp"
#include "kolo/extras/power_sgd.hpp"
#include "kolo/extras/progress_bar.hpp"
#include "kolo/extras/schedule.hpp"
#include "kolo/extras/stream_shard.hpp"
#include "kolo/extras/sync_batch_norm.hpp"
