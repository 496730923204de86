// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/implementation_table.h"

/// The specification: fp64 inside, written as the mathematics reads, every option.
namespace packattn::ref {

AttentionImplementation attention();
KdaImplementation kda_recurrent();
KdaImplementation kda_chunk();

}  // namespace packattn::ref
