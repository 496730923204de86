// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/select.h"

namespace packattn {

/// The ordered implementation lists, defined beside the operation they belong to.
ImplementationList<AttentionCall> attention_list();
ImplementationList<KdaCall> kda_list(Op op);

}  // namespace packattn
