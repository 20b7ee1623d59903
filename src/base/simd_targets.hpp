#pragma once

// Included before any Highway header. The kernels gain nothing from these targets over the next
// lower one, and every target costs compile time and code size.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)

#include <hwy/targets.h>
