// SPDX-License-Identifier: Apache-2.0
#pragma once

// PACKATTN_EXPORT marks what a shared build shows; everything else stays hidden.
// A static library, the default, needs no mark on any platform.
#if defined(PACKATTN_STATIC)
#define PACKATTN_EXPORT
#elif defined(_WIN32)
#if defined(PACKATTN_BUILDING)
#define PACKATTN_EXPORT __declspec(dllexport)
#else
#define PACKATTN_EXPORT __declspec(dllimport)
#endif
#else
#define PACKATTN_EXPORT __attribute__((visibility("default")))
#endif
