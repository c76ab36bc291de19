// SPDX-License-Identifier: Apache-2.0
// What nvcc compiles: all device kernels, as one image.
#include "kernels/device_kernels.cuh"
