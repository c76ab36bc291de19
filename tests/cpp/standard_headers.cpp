// SPDX-License-Identifier: Apache-2.0
// Owns the precompiled standard headers of the tests; a program as they are, so that it is compiled as they are.
#include "standard_headers.h"

int main() {}
