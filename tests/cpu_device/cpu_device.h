// Lets g++ compile a .cu file for the CPU test device: the names that nvcc provides, and the running of a kernel's grid.
//
// One block runs at a time, so a __shared__ array is a static one. The threads of a block are fibers of one OS thread: a fiber runs
// thread after thread, and is set aside only when its thread comes to __syncthreads or __syncwarp. A kernel without barriers is
// therefore a plain loop. Warps meet at their __syncwarps one warp after the other; then all meet at __syncthreads. The order of a
// block's threads is the same on every run; the order of the blocks is drawn (Order). Compiled with -DCPU_DEVICE_THREADS, each
// thread of a block is a thread of the operating system instead: slow, and for the thread sanitizer, which then sees what no
// barrier or atomic orders.
#pragma once
#include <float.h>
#include <limits.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <atomic>
#include <numeric>
#include <type_traits>
#include <utility>

#ifdef CPU_DEVICE_THREADS
#include <barrier>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#define CPU_DEVICE_PER_THREAD static thread_local
#else
#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>
#define CPU_DEVICE_PER_THREAD static
#endif

#include "kernel_entry.h"

// ---- the language ----

#define __CUDACC__ 1
#define __CUDA_ARCH__ 900
#define __global__
#define __device__
#define __host__
#define __constant__ __attribute__((used))
#define __shared__ static __attribute__((section("cuda_shared")))
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
};
CPU_DEVICE_PER_THREAD dim3 threadIdx, blockIdx;
static dim3 blockDim, gridDim;
static const int warpSize = 32;

#define CPU_DEVICE_VECTORS(T, name)                                                   \
  struct alignas(2 * sizeof(T)) name##2 { T x, y; };                                  \
  struct alignas(4 * sizeof(T) > 16 ? 16 : 4 * sizeof(T)) name##4 { T x, y, z, w; };  \
  inline name##2 make_##name##2(T x, T y) { return {x, y}; }                          \
  inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
CPU_DEVICE_VECTORS(int, int)
CPU_DEVICE_VECTORS(unsigned, uint)
CPU_DEVICE_VECTORS(float, float)
CPU_DEVICE_VECTORS(double, double)

// ---- mathematics: each rounds once, as the device's; -ffp-contract=off keeps g++ from fusing ----

using std::abs;
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __frcp_rn(float a) { return 1 / a; }
inline float __fsqrt_rn(float a) { return sqrtf(a); }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dsub_rn(double a, double b) { return a - b; }
inline double __ddiv_rn(double a, double b) { return a / b; }
inline double __drcp_rn(double a) { return 1 / a; }
inline double __dsqrt_rn(double a) { return sqrt(a); }
inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }
inline float rsqrtf(float x) { return (float)(1 / sqrt((double)x)); }
inline float rsqrt(float x) { return rsqrtf(x); }
inline double rsqrt(double x) { return 1 / sqrt(x); }

namespace cpu_device {
// The device's float to int: towards the rounded value, saturated, NaN as 0.
inline int to_int(double x) { return x != x ? 0 : x >= INT_MAX ? INT_MAX : x <= INT_MIN ? INT_MIN : (int)x; }
}  // namespace cpu_device
inline int __float2int_rn(float x) { return cpu_device::to_int(rintf(x)); }
inline int __float2int_rz(float x) { return cpu_device::to_int(truncf(x)); }
inline int __float2int_rd(float x) { return cpu_device::to_int(floorf(x)); }
inline int __float2int_ru(float x) { return cpu_device::to_int(ceilf(x)); }
inline int __double2int_rn(double x) { return cpu_device::to_int(rint(x)); }
inline int __double2int_rz(double x) { return cpu_device::to_int(trunc(x)); }
inline int __double2int_rd(double x) { return cpu_device::to_int(floor(x)); }
inline int __double2int_ru(double x) { return cpu_device::to_int(ceil(x)); }
inline float __int2float_rn(int x) { return (float)x; }
inline double __int2double_rn(int x) { return x; }
inline float __double2float_rn(double x) { return (float)x; }

inline int __float_as_int(float x) { return __builtin_bit_cast(int, x); }
inline unsigned __float_as_uint(float x) { return __builtin_bit_cast(unsigned, x); }
inline float __int_as_float(int x) { return __builtin_bit_cast(float, x); }
inline float __uint_as_float(unsigned x) { return __builtin_bit_cast(float, x); }
inline long long __double_as_longlong(double x) { return __builtin_bit_cast(long long, x); }
inline double __longlong_as_double(long long x) { return __builtin_bit_cast(double, x); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline int __clz(int x) { return x ? __builtin_clz(x) : 32; }
inline int __clzll(long long x) { return x ? __builtin_clzll(x) : 64; }
inline int __mulhi(int a, int b) { return (int)((long long)a * b >> 32); }
inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((unsigned long long)a * b >> 32); }

// Of a number and NaN, the device's max and min give the number.
template <class A, class B>
inline std::common_type_t<A, B> max(A a, B b) {
  using T = std::common_type_t<A, B>;
  T x = a, y = b;
  return y > x || x != x ? y : x;
}
template <class A, class B>
inline std::common_type_t<A, B> min(A a, B b) {
  using T = std::common_type_t<A, B>;
  T x = a, y = b;
  return y < x || x != x ? y : x;
}

template <class T>
inline T __ldg(const T* p) { return *p; }

// ---- atomics: each returns the old value ----

namespace cpu_device {
template <class T, class Change>
inline T atomically(T* p, Change change) {
#ifdef CPU_DEVICE_THREADS
  std::atomic_ref<T> shared(*p);
  T old = shared.load();
  while (!shared.compare_exchange_weak(old, change(old))) {
  }
  return old;
#else
  T old = *p;
  *p = change(old);
  return old;
#endif
}
}  // namespace cpu_device
#define CPU_DEVICE_ATOMIC(name, expression)                                     \
  template <class T>                                                            \
  inline T name(T* p, std::type_identity_t<T> v) {                              \
    return cpu_device::atomically(p, [=](T old) -> T { return expression; });   \
  }
CPU_DEVICE_ATOMIC(atomicAdd, old + v)
CPU_DEVICE_ATOMIC(atomicSub, old - v)
CPU_DEVICE_ATOMIC(atomicMax, old < v ? v : old)
CPU_DEVICE_ATOMIC(atomicMin, v < old ? v : old)
CPU_DEVICE_ATOMIC(atomicExch, v)
CPU_DEVICE_ATOMIC(atomicAnd, old & v)
CPU_DEVICE_ATOMIC(atomicOr, old | v)
CPU_DEVICE_ATOMIC(atomicXor, old ^ v)
template <class T>
inline T atomicCAS(T* p, std::type_identity_t<T> expected, std::type_identity_t<T> v) {
  return cpu_device::atomically(p, [=](T old) -> T { return old == expected ? v : old; });
}
inline void __threadfence() { std::atomic_thread_fence(std::memory_order_seq_cst); }
inline void __threadfence_block() { __threadfence(); }

// ---- the running of a grid ----

namespace cpu_device {

constexpr unsigned first(unsigned threads, unsigned = 0, unsigned = 0) { return threads; }  // of __launch_bounds__

template <class... A>
constexpr size_t parameter_bytes(void (*)(A...)) {
  size_t end = 0;
  ((end = (end + alignof(A) - 1) / alignof(A) * alignof(A) + sizeof(A)), ...);
  return end;
}

// The packed arguments of cuLaunchKernel, each at its own alignment, as pointers.
template <class... A>
void unpack(void (*)(A...), char* buffer, void** arguments) {
  size_t end = 0, i = 0;
  ((end = (end + alignof(A) - 1) / alignof(A) * alignof(A), arguments[i++] = buffer + end, end += sizeof(A)), ...);
}

// Each block of a grid once, in an order that a number draws: i -> (a i + b) mod n, a without a divisor in common with n.
struct Order {
  unsigned long long blocks, step, first;
  Order(unsigned long long n, unsigned long long drawn) : blocks(n), step(1 + drawn % n), first(drawn / n % n) {
    while (std::gcd(step, n) != 1) ++step;
  }
  unsigned long long operator[](unsigned long long i) const { return (unsigned long long)(((unsigned __int128)step * i + first) % blocks); }
};

template <class... A>
size_t pick_pointers(void (*kernel)(A...), char* buffer, const void** found) {
  void* arguments[most_parameters];
  unpack(kernel, buffer, arguments);
  size_t count = 0, i = 0;
  ((std::is_pointer_v<A> ? (void)(found[count++] = *(const void**)arguments[i++]) : (void)++i), ...);
  return count;
}

// KernelEntry::pointers of one kernel.
template <auto kernel>
size_t pointers(char* parameters, const void** found) { return pick_pointers(kernel, parameters, found); }

constexpr unsigned warp_threads = 32;

// The place of the current thread in its block: warps are made of 32 in a row, the last one of what is left.
inline unsigned this_thread() { return (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x; }

inline void place_block(unsigned long long i) {
  blockIdx = {(unsigned)(i % gridDim.x), (unsigned)(i / gridDim.x % gridDim.y), (unsigned)(i / gridDim.x / gridDim.y)};
}

#ifdef CPU_DEVICE_THREADS

static std::barrier<>* block_barrier = nullptr;
static std::deque<std::barrier<>>* warp_barriers = nullptr;

inline void synchronize(int) { block_barrier->arrive_and_wait(); }
inline void synchronize_warp(int) { (*warp_barriers)[this_thread() / warp_threads].arrive_and_wait(); }
[[noreturn]] inline void trap() { abort(); }

template <auto kernel, class... A, size_t... I>
void call(void (*)(A...), void** a, std::index_sequence<I...>) { kernel(*static_cast<A*>(a[I])...); }

// Threads that stay for all launches of the module, as the sanitizer needs milliseconds to start one.
struct Crew {
  std::mutex lock;
  std::condition_variable changed;
  std::function<void(unsigned)> work;
  unsigned size = 0, wanted = 0, busy = 0;
  unsigned long long launch = 0;

  void serve(unsigned t, unsigned long long seen) {
    for (;;) {
      {
        std::unique_lock hold(lock);
        changed.wait(hold, [&] { return launch != seen; });
        seen = launch;
        if (t >= wanted) continue;
      }
      work(t);
      std::lock_guard hold(lock);
      if (--busy == 0) changed.notify_all();
    }
  }

  void run(unsigned count, std::function<void(unsigned)> each) {
    for (; size < count; ++size) std::thread([this, t = size, seen = launch] { serve(t, seen); }).detach();
    std::unique_lock hold(lock);
    work = each, wanted = busy = count, ++launch;
    changed.notify_all();
    changed.wait(hold, [&] { return busy == 0; });
  }
};
static Crew& crew = *new Crew;  // never destroyed: its threads wait until the process ends

template <auto kernel, class... A>
const char* run_grid(void (*type)(A...), void** arguments, unsigned long long drawn) {
  unsigned count = blockDim.x * blockDim.y * blockDim.z;
  Order order((unsigned long long)gridDim.x * gridDim.y * gridDim.z, drawn);
  std::barrier<> inner(count), end(count);
  std::deque<std::barrier<>> warps;
  for (unsigned first = 0; first < count; first += warp_threads) warps.emplace_back(min(warp_threads, count - first));
  block_barrier = &inner, warp_barriers = &warps;
  crew.run(count, [&](unsigned t) {
    threadIdx = {t % blockDim.x, t / blockDim.x % blockDim.y, t / blockDim.x / blockDim.y};
    for (unsigned long long i = 0; i < order.blocks; ++i) {
      place_block(order[i]);
      call<kernel>(type, arguments, std::index_sequence_for<A...>{});
      end.arrive_and_wait();
    }
  });
  return nullptr;
}

#else

struct Fiber {
  ucontext_t context;
  jmp_buf state;        // where it stands, once started
  bool started = false;
  int line = 0;         // of the barrier it waits at; 0: it has no thread
  bool in_warp = false; // whether that is a __syncwarp
  unsigned thread = 0;  // its thread's place in the block
};

static const unsigned most_threads = 1024;
static const size_t stack_bytes = 128 * 1024;  // of a fiber; the stand-in nvcc refuses larger frames
static Fiber scheduler, fibers[most_threads];
static Fiber* current;
static void (*take_threads)();   // runs threads from `upcoming` on until none is left
static void** launch_arguments;
static dim3 upcoming;            // the index of the next thread to start
static const char* failure;

// The stacks of this module's fibers: address space, of which only touched pages cost memory.
static struct Stacks {
  char* start = nullptr;
  char* of(unsigned i) {
    if (!start) start = (char*)mmap(nullptr, stack_bytes * most_threads, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED) abort();
    return start + i * stack_bytes;
  }
  ~Stacks() { if (start) munmap(start, stack_bytes * most_threads); }
} stacks;

// Leaves off here and goes on where `to` left off.
[[gnu::noinline]] static void change(Fiber& from, Fiber& to) {
#ifdef __SANITIZE_ADDRESS__
  swapcontext(&from.context, &to.context);  // the sanitizer follows this one
#else
  if (_setjmp(from.state)) return;
  if (to.started) _longjmp(to.state, 1);  // without swapcontext's system call
  to.started = true;
  setcontext(&to.context);
#endif
}

static void live() {
  for (;;) {
    take_threads();
    current->line = 0;
    change(*current, scheduler);
  }
}

static void resume(unsigned i) {
  current = &fibers[i];
  if (!current->started) {
    getcontext(&current->context);
    current->context.uc_stack.ss_sp = stacks.of(i);
    current->context.uc_stack.ss_size = stack_bytes - i % 61 * 64;  // not all at one place of the cache
    current->context.uc_link = nullptr;
    makecontext(&current->context, live, 0);
#ifdef __SANITIZE_ADDRESS__
    current->started = true;
#endif
  }
  scheduler.started = true;
  change(scheduler, *current);
}

[[gnu::noinline]] static void wait_at(int line, bool in_warp) {
  dim3 me = threadIdx;
  current->line = line, current->in_warp = in_warp, current->thread = this_thread();
  change(*current, scheduler);
  threadIdx = me;
}
[[maybe_unused]] static void synchronize(int line) { wait_at(line, false); }
[[maybe_unused]] static void synchronize_warp(int line) { wait_at(line, true); }

[[noreturn, maybe_unused]] static void trap() {
  failure = "the kernel called __trap()";
  change(*current, scheduler);
  abort();
}

static const char* describe(const char* what, int line, int other) {
  static char text[200];
  snprintf(text, sizeof text, what, line, other);
  return text;
}

// Whether any of the fibers [first, end) waits at a barrier of this kind. Then all `count` threads must wait at the same one.
static bool meet(unsigned first, unsigned end, unsigned count, bool in_warp) {
  const Fiber* one = nullptr;
  for (unsigned i = end; i-- > first;)
    if (fibers[i].line && fibers[i].in_warp == in_warp) one = &fibers[i];
  if (!one) return false;
  unsigned waiting = 0;
  for (unsigned i = first; i < end; ++i) waiting += fibers[i].line != 0;
  if (waiting != count)
    failure = describe(in_warp ? "threads of one warp ended while others wait at __syncwarp (line %d)"
                               : "threads of one block ended while others wait at __syncthreads (line %d)", one->line, 0);
  for (unsigned i = first; i < end; ++i)
    if (fibers[i].line && (fibers[i].line != one->line || fibers[i].in_warp != in_warp))
      failure = describe(in_warp ? "threads of one warp wait at __syncwarp and at another barrier (lines %d and %d)"
                                 : "threads of one block wait at different __syncthreads (lines %d and %d)", one->line, fibers[i].line);
  return true;
}

static void resume(unsigned first, unsigned end) {
  for (unsigned i = first; i < end && !failure; ++i) resume(i);
}

// Runs the current block from barrier to barrier.
static void run_block() {
  unsigned count = blockDim.x * blockDim.y * blockDim.z, waiting = 0;
  upcoming = {0, 0, 0};
  while (upcoming.z < blockDim.z && !failure) {
    resume(waiting);
    waiting += fibers[waiting].line != 0;
  }
  if (failure || !waiting) return;
  do {  // the fibers [0, waiting) keep their threads, which stand in order
    for (unsigned first = 0, end; first < waiting; first = end) {
      unsigned start = fibers[first].thread / warp_threads * warp_threads;
      for (end = first; end < waiting && fibers[end].thread < start + warp_threads;) ++end;
      while (!failure && meet(first, end, min(warp_threads, count - start), true)) resume(first, end);
    }
    if (failure || !meet(0, waiting, count, false)) return;
    resume(0, waiting);
  } while (!failure);
}

// The loop over a block's threads: the arguments stand in registers, the kernel is inlined.
template <auto kernel, class... A>
void loop(A... arguments) {
  while (upcoming.z < blockDim.z) {
    threadIdx = upcoming;
    if (++upcoming.x == blockDim.x) {
      upcoming.x = 0;
      if (++upcoming.y == blockDim.y) upcoming.y = 0, ++upcoming.z;
    }
    kernel(arguments...);
  }
}

template <auto kernel, class... A, size_t... I>
void call(void (*)(A...), void** a, std::index_sequence<I...>) { loop<kernel, A...>(*static_cast<A*>(a[I])...); }

template <auto kernel, class... A>
void take(void (*type)(A...)) { call<kernel>(type, launch_arguments, std::index_sequence_for<A...>{}); }

extern "C" {
[[gnu::weak, gnu::visibility("hidden")]] extern char __start_cuda_shared[];
[[gnu::weak, gnu::visibility("hidden")]] extern char __stop_cuda_shared[];
}

template <auto kernel, class... A>
const char* run_grid(void (*)(A...), void** arguments, unsigned long long drawn) {
  Order order((unsigned long long)gridDim.x * gridDim.y * gridDim.z, drawn);
  launch_arguments = arguments;
  take_threads = [] { take<kernel>(kernel); };
  failure = nullptr;
  for (unsigned long long i = 0; i < order.blocks && !failure; ++i) {
    place_block(order[i]);
#ifndef __SANITIZE_ADDRESS__
    if (__start_cuda_shared) memset(__start_cuda_shared, 0xFF, __stop_cuda_shared - __start_cuda_shared);  // NaN, as no kernel expects
#endif
    run_block();
  }
  if (failure)
    for (Fiber& fiber : fibers) fiber.started = false;  // what hangs in the middle of a kernel is left there
  return failure;
}

#endif

// KernelEntry::launch of one kernel.
template <auto kernel>
const char* launch(const unsigned* grid, const unsigned* block, char* parameters, unsigned long long order) {
  void* arguments[most_parameters];
  unpack(kernel, parameters, arguments);
  gridDim = {grid[0], grid[1], grid[2]};
  blockDim = {block[0], block[1], block[2]};
  return run_grid<kernel>(kernel, arguments, order);
}

}  // namespace cpu_device

#define __syncthreads() cpu_device::synchronize(__LINE__)
#define __syncwarp() cpu_device::synchronize_warp(__LINE__)
#define __trap() cpu_device::trap()
