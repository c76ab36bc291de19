// SPDX-License-Identifier: Apache-2.0
// A stand-in for libcuda.so.1 that copies and runs no kernels: quick to build, and of use to a build without nvcc.
//
// Thread safety: as fake_cuda/copy_device.h.
#include "fake_cuda/copy_device.h"
