// SPDX-License-Identifier: Apache-2.0
// Stacks that one operating-system thread switches between: what the scheduled threads run on.
//
// Thread safety: none; all fibers belong to one thread. An exception may be thrown and caught on a fiber, also
// while another fiber is inside a handler of its own; it never leaves the fiber it was thrown on.
#pragma once
#include <cxxabi.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace hkv::sim {

// What the C++ runtime keeps per thread about exceptions in flight.
struct ExceptionState {
  void* caught = nullptr;
  unsigned int uncaught = 0;
};

struct Fiber {
  static constexpr std::size_t stack_bytes = std::size_t{256} << 10;
  std::unique_ptr<std::byte[]> stack;
  ExceptionState exceptions;
#if defined(__x86_64__)
  void* sp = nullptr;
#else
  ucontext_t context{};
#endif

  // Makes the next switch to this fiber call `entry`, which must never return.
  void start(void (*entry)());
};

#if defined(__x86_64__)
// Saves what a callee must keep on the stack of `from`, goes over to `to` and returns there.
extern "C" void hkv_sim_switch(void** from, void* to);
asm(R"(
  .text
  .type hkv_sim_switch,@function
hkv_sim_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
  .size hkv_sim_switch,.-hkv_sim_switch
)");

inline void Fiber::start(void (*entry)()) {
  if (!stack) stack = std::make_unique<std::byte[]>(stack_bytes);
  exceptions = {};
  auto top = (reinterpret_cast<std::uintptr_t>(stack.get()) + stack_bytes) & ~std::uintptr_t{15};
  auto* slots = reinterpret_cast<void**>(top);
  *--slots = nullptr;  // no return address: the entry never returns
  *--slots = reinterpret_cast<void*>(entry);
  for (int i = 0; i < 6; ++i) *--slots = nullptr;
  sp = slots;
}
#else
inline void Fiber::start(void (*entry)()) {
  if (!stack) stack = std::make_unique<std::byte[]>(stack_bytes);
  exceptions = {};
  getcontext(&context);
  context.uc_stack.ss_sp = stack.get();
  context.uc_stack.ss_size = stack_bytes;
  makecontext(&context, entry, 0);
}
#endif

// Not for ThreadSanitizer to see: it may take the two for threads, of which this is neither's.
__attribute__((no_sanitize("thread"))) inline void switch_fiber(Fiber& from, Fiber& to) {
  void* const state = abi::__cxa_get_globals();
  std::memcpy(&from.exceptions, state, sizeof(ExceptionState));
  std::memcpy(state, &to.exceptions, sizeof(ExceptionState));
#if defined(__x86_64__)
  hkv_sim_switch(&from.sp, to.sp);
#else
  swapcontext(&from.context, &to.context);
#endif
}

}  // namespace hkv::sim
