// SPDX-License-Identifier: Apache-2.0
// What kernel sources (*.cuh) are written in: one source for two compilers.
//
// Under nvcc each name is one instruction of the device. Elsewhere the kernels are compiled by tests alone, over the
// harness of tests/cpp/simt, which gives the same names to threads that are fibers and checks every access. So a kernel
// touches memory that it does not own only through load and store, has shared memory only by HKV_SHARED, and writes no
// CUDA name itself.
//
// Names, in namespace hkv::simt:
//   Wide                            16 bytes, members x and y of 8
//   thread(), threads(), block(), blocks(), lane()  place of this thread; lane within its warp of 32
//   load(p), store(p, value)        global memory, one access as wide as the type, which has to be aligned to it; past
//                                   the first cache, because nothing is read twice and others may write meanwhile
//   load_acquire(p)                 64 bits; what this thread reads later is not older
//   load_after_reads(p)             64 bits, read after all that this thread, or others before a barrier, has read
//   barrier(), warp_barrier()       all threads of the block, of the warp; orders memory among them
//   shuffle(v, lane), shuffle_xor(v, mask), ballot(flag)  all 32 lanes together; order nothing
//   atomic_add(p, value)            relaxed
//   copy_async(shared, index, from, count), copies_commit(), copies_wait(most)  of elements, 4, 8 or 16 bytes together;
//                                   seen by this thread after the wait, by others after a barrier that follows it
//
// Thread safety: that of the kernel which is written in them.
#pragma once
#include <cstddef>
#include <cstdint>

#if defined(__CUDACC__)
#include <cuda_pipeline_primitives.h>

#define HKV_DEVICE __device__ __forceinline__
#define HKV_CALL __device__ __noinline__
#define HKV_KERNEL(name, threads, blocks, arguments) \
  extern "C" __global__ void __launch_bounds__(threads, blocks) name arguments
#define HKV_ARGUMENT const __grid_constant__
#define HKV_SHARED(type, name, count) __shared__ type name[count]
#define HKV_UNROLL _Pragma("unroll")
#define HKV_ROLLED _Pragma("unroll 1")

namespace hkv::simt {

using Wide = ulonglong2;

HKV_DEVICE unsigned thread() { return threadIdx.x; }
HKV_DEVICE unsigned threads() { return blockDim.x; }
HKV_DEVICE unsigned block() { return blockIdx.x; }
HKV_DEVICE unsigned blocks() { return gridDim.x; }
HKV_DEVICE unsigned lane() { return threadIdx.x % 32; }

template <class T>
HKV_DEVICE T load(const T* from) {
  return __ldcg(from);
}
template <class T>
HKV_DEVICE void store(T* to, T value) {
  __stcg(to, value);
}
HKV_DEVICE std::uint64_t load_acquire(const std::uint64_t* from) {
  std::uint64_t value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
  return value;
}
HKV_DEVICE std::uint64_t load_after_reads(const std::uint64_t* from) {
  __threadfence_system();
  return load_acquire(from);
}

HKV_DEVICE void barrier() { __syncthreads(); }
HKV_DEVICE void warp_barrier() { __syncwarp(); }
template <class T>
HKV_DEVICE T shuffle(T value, unsigned from) {
  return __shfl_sync(0xffffffffu, value, static_cast<int>(from));
}
template <class T>
HKV_DEVICE T shuffle_xor(T value, unsigned mask) {
  return __shfl_xor_sync(0xffffffffu, value, static_cast<int>(mask));
}
HKV_DEVICE unsigned ballot(bool flag) { return __ballot_sync(0xffffffffu, flag); }
template <class T>
HKV_DEVICE T atomic_add(T* to, T value) {
  return atomicAdd(to, value);
}

template <class T>
HKV_DEVICE void copy_async(T* shared, unsigned index, const T* from, unsigned count) {
  __pipeline_memcpy_async(shared + index, from, count * sizeof(T));
}
HKV_DEVICE void copies_commit() { __pipeline_commit(); }
HKV_DEVICE void copies_wait(unsigned most) { __pipeline_wait_prior(most); }

}  // namespace hkv::simt

#elif !defined(HKV_SIMT_HARNESS)
#error "include tests/cpp/simt/device.h before a kernel: only nvcc knows these names by itself"
#endif
