// SPDX-License-Identifier: Apache-2.0
// Owns the precompiled standard headers of the tests.
#include "standard_headers.h"
