// SPDX-License-Identifier: Apache-2.0
#pragma once

// Include before any Highway header. Keeps the targets that have a row in an implementation list
// (AVX-512, AVX2, NEON) and the baselines that Highway cannot do without. The numbers are bit
// positions of hwy/detect_targets.h, which Highway keeps from release to release; the names of
// newer targets do not exist in older releases.
//   0-7    x86 beyond AVX-512 BW    10-12  AVX, SSE4, SSSE3    15-27  Arm SVE, NEON with bf16
// A unit for AMX has defined it already, to leave out AVX2 as well.
#ifndef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS 0x0FFF9CFFLL
#endif

// True while Highway compiles one of those targets, rather than a baseline that is never run.
#define PACKATTN_TARGET_HAS_ROW \
  (HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_NEON)
