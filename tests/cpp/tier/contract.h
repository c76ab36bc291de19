// SPDX-License-Identifier: Apache-2.0
// The contract of tiers: one suite for all of them. A program defines `make_world` and includes this file; every test
// here then runs over its tier. Left out are orders of time that only a scripted engine can show (tier_test.cpp).
#pragma once
#include "tier/contract_arenas.h"
#include "tier/contract_items.h"
#include "tier/contract_threads.h"
#include "tier/contract_times.h"
