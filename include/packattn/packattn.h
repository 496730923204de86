// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "packattn/attention.h"
#include "packattn/error.h"
#include "packattn/implementation.h"
#include "packattn/io.h"
#include "packattn/kda.h"
#include "packattn/layers.h"
#include "packattn/packed.h"
#include "packattn/tensor.h"
#include "packattn/version.h"
