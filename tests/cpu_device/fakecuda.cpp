// A libcuda.so.1 whose one device is this computer's CPU: as much of CUDA's driver API as PyCUDA and minicaffe's graphs use.
//
// Launches, fills, asynchronous copies and events stand in their streams' queues (queues.h) until something waits for them; there is no
// clock: the elapsed time of two events is NaN. Fresh memory is filled with 0xFF (NaN, or -1), and so is freed memory. A call without a
// current context, a copy beyond an allocation, a launch over the limits and a wrong length of packed arguments fail as they do on a
// GPU. A stream that is captured keeps its work for a graph, and refuses what a driver refuses then. build.py adds a stub for each
// other symbol of cuda.h, which names itself and fails.
//
//   MINICAFFE_TEST_DEVICE_BYTES   how much memory the device has (4 GiB)
//   MINICAFFE_TEST_DEVICE_COUNT   0: a driver without a device
//   MINICAFFE_TEST_DEVICE_SEED    draws the order of streams and of blocks (0)
#include <cuda.h>
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "aliases.h"
#include "kernel_entry.h"
#include "queues.h"

#define API extern "C" __attribute__((visibility("default"))) CUresult
static const CUresult ok = CUDA_SUCCESS;

// ---- state ----

struct Function {
  std::string name;
  const KernelEntry* entry;
  const KernelNeeds* needs;
  size_t most_dynamic = 0;  // bytes of dynamic shared memory that cuFuncSetAttribute allowed
};
struct Module {
  int file;  // open as long as the library: its number is in the library's name, and a sanitizer reads line numbers from it
  void* library;
  std::map<std::string, Function> functions;
  std::vector<CUdeviceptr> globals;
};

static int primary_context, other_context;
static thread_local std::vector<CUcontext> contexts;
static thread_local std::string kernel_error;  // what the thread's last failed launch said

static std::mutex device_lock;  // guards all below; held while work runs: a module's threadIdx and __shared__ arrays are static
using Blocks = std::map<uintptr_t, size_t>;
static Blocks allocations;  // and modules' global variables
static Blocks pinned;       // page-locked memory of the host
static Blocks freed;        // of both: kept, and poisoned, while work is pending that may use it
static size_t used = 0;
static Queues queues;
static thread_local Stream* own_stream = nullptr;  // the per-thread default stream
static bool lost = false;                          // every call fails, as after an error that a context does not survive
static std::map<std::string, unsigned long long> calls;
static std::map<uintptr_t, unsigned long long> serials;  // of allocations: an address may be given out again
static unsigned long long allocated = 1;

static const size_t default_shared = 48 << 10, most_shared = 227 << 10, registers_of_a_block = 64 << 10;

static size_t total_bytes() {
  const char* text = getenv("MINICAFFE_TEST_DEVICE_BYTES");
  return text ? strtoull(text, nullptr, 10) : 4ull << 30;
}
static int device_count() {
  const char* text = getenv("MINICAFFE_TEST_DEVICE_COUNT");
  return text && !strcmp(text, "0") ? 0 : 1;
}

#define ALIVE \
  if (lost) return CUDA_ERROR_ILLEGAL_ADDRESS
#define NEED_CONTEXT                                        \
  ALIVE;                                                    \
  if (contexts.empty()) return CUDA_ERROR_INVALID_CONTEXT

#define LOCK std::lock_guard<std::mutex> hold(device_lock)

// Whether n bytes from p lie in one of the blocks.
static bool inside(const Blocks& blocks, uintptr_t p, size_t n) {
  auto next = blocks.upper_bound(p);
  if (next == blocks.begin()) return false;
  --next;
  return p + n <= next->first + next->second;
}

// Which allocation of the device holds the address: 0 for none.
static unsigned long long serial_of(uintptr_t p) {
  auto next = allocations.upper_bound(p);
  if (!inside(allocations, p, 1)) return 0;
  auto found = serials.find((--next)->first);
  return found == serials.end() ? 1 : found->second;
}

// Freed memory goes where nothing pending can use it any more. Work that uses it later is told so, and reads NaN until then.
static void forget_freed() {
  if (!queues.idle()) return;
  for (auto& [p, n] : freed) free((void*)p);
  freed.clear();
}
static void poison(uintptr_t p, size_t n) {
  memset((void*)p, 0xFF, n);
  freed[p] = n;
  forget_freed();
}

// The end of each call that waited: what the work that has run since the last one said.
static CUresult waited() {
  forget_freed();
  std::string wrong = queues.finding();
  if (wrong.empty()) return ok;
  kernel_error = "unspecified launch failure: " + wrong + " (seed " + std::to_string(Queues::seed()) + ")";
  return CUDA_ERROR_LAUNCH_FAILED;
}

static Stream* of(CUstream handle) {
  if (!handle || handle == CU_STREAM_LEGACY) return &queues.legacy;
  if (handle != CU_STREAM_PER_THREAD) return (Stream*)handle;
  if (!own_stream) own_stream = queues.create(true);
  return own_stream;
}

// ---- capture ----

using Piece = std::function<std::string()>;

// What a stream was given since cuStreamBeginCapture, to run when a graph of it is launched.
struct Capture {
  unsigned long long number;
  Stream* stream;
  CUstreamCaptureMode mode;
  std::thread::id thread;
  bool invalid = false;
  std::vector<Piece> nodes;
};
struct Graph {
  std::vector<Piece> nodes;
};
struct Executable {
  std::vector<Piece> nodes;
  Ticket last;  // of the launch before: launches of one graph follow each other
};
static std::vector<Capture*> captures;  // under way
static unsigned long long captured = 0;
static thread_local CUstreamCaptureMode interaction = CU_STREAM_CAPTURE_MODE_GLOBAL;

// Of a call that no stream orders, such as an allocation: whether a capture forbids it, which then is invalid. Where the documentation
// names only examples of such calls, all that may be one are.
static bool unsafe() {
  bool forbidden = false;
  if (interaction == CU_STREAM_CAPTURE_MODE_RELAXED) return false;
  for (Capture* one : captures) {
    bool own = one->thread == std::this_thread::get_id(), global = one->mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
    if (own ? one->mode != CU_STREAM_CAPTURE_MODE_RELAXED : global && interaction == CU_STREAM_CAPTURE_MODE_GLOBAL)
      one->invalid = forbidden = true;
  }
  return forbidden;
}
#define NO_CAPTURE \
  if (unsafe()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED

// Of a use of the legacy default stream: whether a blocking stream is captured, on which it would depend.
static bool implicit(Stream* stream) {
  bool forbidden = false;
  if (stream != &queues.legacy) return false;
  for (Capture* one : captures)
    if (one->stream->blocking) one->invalid = forbidden = true;
  return forbidden;
}

static CUresult invalidated(Stream* stream, CUresult why) { return stream->capture->invalid = true, why; }

// Of a wait for a stream, or a question: nothing that is captured is ever done.
static CUresult waitable(Stream* stream) {
  if (implicit(stream)) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  return stream->capture ? invalidated(stream, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED) : ok;
}

// To the end of the stream's queue, or into the graph that it is captured for.
static CUresult enqueue(Stream* stream, Piece run) {
  if (implicit(stream)) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  if (!stream->capture) return queues.send(stream, run), ok;
  if (stream->capture->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  return stream->capture->nodes.push_back(run), ok;
}

// ---- not of CUDA ----

// Every call fails from now on, as after a kernel's stray access.
extern "C" __attribute__((visibility("default"))) void cpu_device_lose() { lost = true; }

// How many calls of a kind so far: "launch", "graph", "copy", "fill", "wait" or "allocate".
extern "C" __attribute__((visibility("default"))) unsigned long long cpu_device_calls(const char* kind) {
  LOCK;
  return calls[kind];
}

// The order from now on is that of this seed.
extern "C" __attribute__((visibility("default"))) void cpu_device_seed(unsigned long long seed) {
  LOCK;
  queues.random.seed(seed);
}

// ---- driver and device ----

API cuInit(unsigned) { return device_count() ? ok : CUDA_ERROR_NO_DEVICE; }
API cuDriverGetVersion(int* version) { return *version = 13000, ok; }

API cuGetErrorName(CUresult error, const char** text) { return *text = error ? "CUDA_ERROR" : "CUDA_SUCCESS", ok; }
API cuGetErrorString(CUresult error, const char** text) {
  switch (error) {
    case CUDA_SUCCESS: *text = "no error"; break;
    case CUDA_ERROR_INVALID_VALUE: *text = "invalid argument"; break;
    case CUDA_ERROR_OUT_OF_MEMORY: *text = "out of memory"; break;
    case CUDA_ERROR_NO_DEVICE: *text = "no CUDA-capable device is detected"; break;
    case CUDA_ERROR_INVALID_DEVICE: *text = "invalid device ordinal"; break;
    case CUDA_ERROR_INVALID_IMAGE: *text = "device kernel image is invalid"; break;
    case CUDA_ERROR_INVALID_CONTEXT: *text = "invalid device context"; break;
    case CUDA_ERROR_NOT_FOUND: *text = "named symbol not found"; break;
    case CUDA_ERROR_LAUNCH_FAILED: *text = kernel_error.c_str(); break;
    case CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES: *text = "too many resources requested for launch"; break;
    case CUDA_ERROR_ILLEGAL_ADDRESS: *text = "an illegal memory access was encountered"; break;
    case CUDA_ERROR_ILLEGAL_STATE: *text = "the operation cannot be performed in the present state"; break;
    case CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED: *text = "operation not permitted when stream is capturing"; break;
    case CUDA_ERROR_STREAM_CAPTURE_INVALIDATED: *text = "operation failed due to a previous error during capture"; break;
    case CUDA_ERROR_STREAM_CAPTURE_ISOLATION: *text = "dependency created on uncaptured work in another stream"; break;
    case CUDA_ERROR_STREAM_CAPTURE_IMPLICIT:
      *text = "operation would make the legacy stream depend on a capturing blocking stream";
      break;
    case CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD:
      *text = "attempt to terminate a thread-local capture sequence from another thread";
      break;
    case CUDA_ERROR_CAPTURED_EVENT: *text = "operation not permitted on an event last recorded in a capturing stream"; break;
    case CUDA_ERROR_NOT_SUPPORTED: *text = "operation not supported by the CPU test device"; break;
    default: *text = "an error of the CPU test device";
  }
  return ok;
}

API cuDeviceGetCount(int* count) { return *count = device_count(), ok; }
API cuDeviceGet(CUdevice* device, int i) { return i < 0 || i >= device_count() ? CUDA_ERROR_INVALID_DEVICE : (*device = i, ok); }
API cuDeviceGetName(char* name, int n, CUdevice) { return snprintf(name, n, "CPU test device (not a GPU)"), ok; }
API cuDeviceGetPCIBusId(char* text, int n, CUdevice) { return snprintf(text, n, "none"), ok; }
API cuDeviceTotalMem_v2(size_t* bytes, CUdevice) { return *bytes = total_bytes(), ok; }
API cuDeviceComputeCapability(int* major, int* minor, CUdevice) { return *major = 9, *minor = 0, ok; }
API cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice) {
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = 1024; break;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X:
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y: *value = 1024; break;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z: *value = 64; break;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X: *value = 0x7FFFFFFF; break;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y:
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z: *value = 65535; break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK: *value = default_shared; break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: *value = most_shared; break;
    case CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY: *value = 64 << 10; break;
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK: *value = registers_of_a_block; break;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE: *value = 32; break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = 1; break;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR: *value = 1024; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = 9; break;
    default: *value = 0;
  }
  return ok;
}

// ---- contexts: a stack for each thread ----

API cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice) { return *context = (CUcontext)&primary_context, ok; }
API cuDevicePrimaryCtxRelease_v2(CUdevice) { return ok; }
static CUresult create_context(CUcontext* context) { return *context = (CUcontext)&other_context, contexts.push_back(*context), ok; }
#if CUDA_VERSION >= 13000
API cuCtxCreate_v4(CUcontext* context, CUctxCreateParams*, unsigned, CUdevice) { return create_context(context); }
#endif
#undef cuCtxCreate_v2
API cuCtxCreate_v2(CUcontext* context, unsigned, CUdevice) { return create_context(context); }
API cuCtxDestroy_v2(CUcontext) { return ok; }
API cuCtxDetach(CUcontext) { return ok; }
API cuCtxPushCurrent_v2(CUcontext context) { return contexts.push_back(context), ok; }
API cuCtxPopCurrent_v2(CUcontext* context) {  // also of a lost device, for whose sake PyCUDA would end the process
  if (contexts.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  if (context) *context = contexts.back();
  return contexts.pop_back(), ok;
}
API cuCtxSetCurrent(CUcontext context) {
  if (!contexts.empty()) contexts.pop_back();
  if (context) contexts.push_back(context);
  return ok;
}
API cuCtxGetCurrent(CUcontext* context) { return *context = contexts.empty() ? nullptr : contexts.back(), ok; }
API cuCtxGetDevice(CUdevice* device) {
  NEED_CONTEXT;
  return *device = 0, ok;
}
API cuCtxGetApiVersion(CUcontext, unsigned* version) { return *version = 13000, ok; }
API cuCtxSynchronize() {
  NEED_CONTEXT;
  LOCK;
  for (Capture* one : captures) one->invalid = true;
  if (!captures.empty()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  ++calls["wait"];
  queues.wait_all();
  return waited();
}

// ---- memory ----

API cuMemGetInfo_v2(size_t* free_bytes, size_t* total) {
  NEED_CONTEXT;
  LOCK;
  *total = total_bytes();
  *free_bytes = *total < used ? 0 : *total - used;
  return ok;
}
API cuMemAlloc_v2(CUdeviceptr* p, size_t n) {
  NEED_CONTEXT;
  if (!n) return CUDA_ERROR_INVALID_VALUE;
  LOCK;
  NO_CAPTURE;
  ++calls["allocate"];
  void* memory = nullptr;
  if (used + n > total_bytes() || posix_memalign(&memory, 256, n)) return CUDA_ERROR_OUT_OF_MEMORY;
  memset(memory, 0xFF, n);
  allocations[*p = (CUdeviceptr)memory] = n;
  serials[*p] = ++allocated;
  used += n;
  return ok;
}
// Waits for nothing, as the documentation promises no more: what still uses the memory is an error.
API cuMemFree_v2(CUdeviceptr p) {
  NEED_CONTEXT;
  LOCK;
  NO_CAPTURE;
  auto found = allocations.find(p);
  if (found == allocations.end()) return CUDA_ERROR_INVALID_VALUE;
  size_t n = found->second;
  used -= n;
  allocations.erase(found);
  poison(p, n);
  return ok;
}
API cuMemHostAlloc(void** p, size_t n, unsigned) {
  NEED_CONTEXT;
  LOCK;
  NO_CAPTURE;
  if (posix_memalign(p, 4096, n)) return CUDA_ERROR_OUT_OF_MEMORY;
  pinned[(uintptr_t)*p] = n;
  return ok;
}
API cuMemFreeHost(void* p) {
  ALIVE;
  LOCK;
  NO_CAPTURE;
  auto found = pinned.find((uintptr_t)p);
  if (found == pinned.end()) return CUDA_ERROR_INVALID_VALUE;
  size_t n = found->second;
  pinned.erase(found);
  poison((uintptr_t)p, n);
  return ok;
}
API cuMemHostRegister_v2(void*, size_t, unsigned) { return ok; }
API cuMemHostUnregister(void*) { return ok; }

// A place that a copy reads or writes: of the device, or of the host.
struct Place {
  uintptr_t address;
  bool device;
  unsigned long long serial = 0;  // of the allocation, when the work was sent
};
static Place device(CUdeviceptr p) { return {(uintptr_t)p, true}; }
static Place host(const void* p) { return {(uintptr_t)p, false}; }
static Place sent(Place place) { return {place.address, place.device, place.device ? serial_of(place.address) : 0}; }

// What is wrong with a place when the work that uses it runs, "" for nothing.
static std::string misused(const char* who, Place place, size_t n) {
  bool there = inside(allocations, place.address, n) && serial_of(place.address) == place.serial;
  if (place.device ? there : !inside(freed, place.address, n)) return "";
  return std::string(who) + ": its memory was freed before it ran";
}

// A copy's work: what the memory holds when it runs is copied, be it ordinary memory of the host. A driver copies that at once where
// it can do no better, which is promised nowhere.
static Piece copying(Place given_to, Place given_from, size_t n) {
  return [=, to = sent(given_to), from = sent(given_from)] {
    std::string wrong = misused("a copy", to, n);
    if (wrong.empty()) wrong = misused("a copy", from, n);
    if (wrong.empty()) memmove((void*)to.address, (const void*)from.address, n);
    return wrong;
  };
}
static bool wrong_copy(Place to, Place from, size_t n) {
  return (to.device && !inside(allocations, to.address, n)) || (from.device && !inside(allocations, from.address, n));
}
static CUresult copy_later(Place to, Place from, size_t n, CUstream stream) {
  NEED_CONTEXT;
  LOCK;
  if (wrong_copy(to, from, n)) return CUDA_ERROR_INVALID_VALUE;
  ++calls["copy"];
  for (Place place : {to, from})  // a graph's copy would read or write whatever is there by then
    if (of(stream)->capture && !place.device && !inside(pinned, place.address, n))
      return invalidated(of(stream), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  return enqueue(of(stream), copying(to, from, n));
}
// On the legacy default stream. The host waits for the end where the host's memory is written or page-locked. From ordinary memory it
// waits only until the bytes are read, within the device for nothing.
static CUresult copy_now(Place to, Place from, size_t n) {
  NEED_CONTEXT;
  LOCK;
  if (wrong_copy(to, from, n)) return CUDA_ERROR_INVALID_VALUE;
  if (implicit(&queues.legacy)) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  NO_CAPTURE;
  ++calls["copy"];
  if (to.device && from.device) return queues.send(&queues.legacy, copying(to, from, n)), ok;
  if (from.device || inside(pinned, from.address, n)) {
    queues.wait(queues.send(&queues.legacy, copying(to, from, n)));
    return waited();
  }
  queues.wait(queues.send(&queues.legacy, nullptr));
  auto staged = std::make_shared<std::string>((const char*)from.address, n);
  queues.send(&queues.legacy, [=] { return copying(to, host(staged->data()), n)(); });
  return waited();
}
API cuMemcpyHtoD_v2(CUdeviceptr to, const void* from, size_t n) { return copy_now(device(to), host(from), n); }
API cuMemcpyDtoH_v2(void* to, CUdeviceptr from, size_t n) { return copy_now(host(to), device(from), n); }
API cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t n) { return copy_now(device(to), device(from), n); }
API cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, size_t n, CUstream s) { return copy_later(device(to), host(from), n, s); }
API cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, size_t n, CUstream s) { return copy_later(host(to), device(from), n, s); }
API cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t n, CUstream s) { return copy_later(device(to), device(from), n, s); }

template <class T>
static CUresult fill(CUdeviceptr p, T value, size_t n, CUstream stream = nullptr) {
  NEED_CONTEXT;
  LOCK;
  if (p % sizeof(T) || !inside(allocations, p, n * sizeof(T))) return CUDA_ERROR_INVALID_VALUE;
  ++calls["fill"];
  return enqueue(of(stream), [=, place = sent(device(p))] {
    std::string wrong = misused("a fill", place, n * sizeof(T));
    for (size_t i = 0; wrong.empty() && i < n; ++i) ((T*)p)[i] = value;
    return wrong;
  });
}
API cuMemsetD8_v2(CUdeviceptr p, unsigned char value, size_t n) { return fill(p, value, n); }
API cuMemsetD16_v2(CUdeviceptr p, unsigned short value, size_t n) { return fill(p, value, n); }
API cuMemsetD32_v2(CUdeviceptr p, unsigned value, size_t n) { return fill(p, value, n); }
API cuMemsetD8Async(CUdeviceptr p, unsigned char value, size_t n, CUstream stream) { return fill(p, value, n, stream); }
API cuMemsetD16Async(CUdeviceptr p, unsigned short value, size_t n, CUstream stream) { return fill(p, value, n, stream); }
API cuMemsetD32Async(CUdeviceptr p, unsigned value, size_t n, CUstream stream) { return fill(p, value, n, stream); }

// ---- streams and events ----

struct Event {
  Ticket recorded;                  // none: it counts as done
  unsigned long long captured = 0;  // the number of the capture that it was last recorded in

  // Of a wait for it, or a question.
  CUresult waitable() const {
    for (Capture* one : captures)
      if (one->number == captured) one->invalid = true;
    return captured ? CUDA_ERROR_CAPTURED_EVENT : ok;
  }
};

API cuStreamCreate(CUstream* stream, unsigned flags) {
  NEED_CONTEXT;
  LOCK;
  return *stream = (CUstream)queues.create(!(flags & CU_STREAM_NON_BLOCKING)), ok;
}
API cuStreamCreateWithPriority(CUstream* stream, unsigned flags, int) { return cuStreamCreate(stream, flags); }
API cuStreamDestroy_v2(CUstream stream) {
  ALIVE;
  LOCK;
  if (of(stream)->capture) return invalidated(of(stream), CUDA_ERROR_ILLEGAL_STATE);
  return queues.destroy(of(stream)), ok;
}
API cuStreamSynchronize(CUstream stream) {
  ALIVE;
  LOCK;
  if (CUresult no = waitable(of(stream))) return no;
  ++calls["wait"];
  queues.wait(queues.send(of(stream), nullptr));
  return waited();
}
// Not done yet, and a little further.
static CUresult query(const Ticket& work) {
  if (!work || work->done) return waited();
  queues.step(work);
  return CUDA_ERROR_NOT_READY;
}
API cuStreamQuery(CUstream stream) {
  ALIVE;
  LOCK;
  if (CUresult no = waitable(of(stream))) return no;
  return query(of(stream)->last);
}
// A stream that waits for a captured event would be captured too, which is not built: minicaffe's parts are one stream's.
API cuStreamWaitEvent(CUstream handle, CUevent event, unsigned) {
  ALIVE;
  LOCK;
  Stream* stream = of(handle);
  unsigned long long number = ((Event*)event)->captured;
  if (implicit(stream)) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  if (stream->capture) {
    if (stream->capture->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    return number == stream->capture->number ? ok : invalidated(stream, CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
  }
  if (CUresult no = ((Event*)event)->waitable()) return no;
  return queues.send(stream, nullptr, ((Event*)event)->recorded), ok;
}
API cuEventCreate(CUevent* event, unsigned) {
  NEED_CONTEXT;
  return *event = (CUevent) new Event, ok;
}
API cuEventDestroy_v2(CUevent event) {
  ALIVE;
  return delete (Event*)event, ok;
}
API cuEventRecord(CUevent handle, CUstream given) {
  ALIVE;
  LOCK;
  Stream* stream = of(given);
  auto* event = (Event*)handle;
  if (implicit(stream)) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  if (stream->capture && stream->capture->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  event->captured = stream->capture ? stream->capture->number : 0;
  if (!stream->capture) event->recorded = queues.send(stream, nullptr);
  return ok;
}
API cuEventSynchronize(CUevent event) {
  ALIVE;
  LOCK;
  if (CUresult no = ((Event*)event)->waitable()) return no;
  NO_CAPTURE;
  queues.wait(((Event*)event)->recorded);
  return waited();
}
API cuEventQuery(CUevent event) {
  ALIVE;
  LOCK;
  if (CUresult no = ((Event*)event)->waitable()) return no;
  NO_CAPTURE;
  return query(((Event*)event)->recorded);
}
static CUresult elapsed(float* milliseconds, CUevent first, CUevent last) {
  LOCK;
  for (CUevent event : {first, last}) {
    if (CUresult no = ((Event*)event)->waitable()) return no;
    const Ticket& work = ((Event*)event)->recorded;
    if (!work) return CUDA_ERROR_INVALID_HANDLE;
    if (!work->done) return CUDA_ERROR_NOT_READY;
  }
  return *milliseconds = NAN, ok;
}
#undef cuEventElapsedTime
API cuEventElapsedTime(float* milliseconds, CUevent first, CUevent last) { return elapsed(milliseconds, first, last); }
#undef cuEventElapsedTime_v2
API cuEventElapsedTime_v2(float* milliseconds, CUevent first, CUevent last) { return elapsed(milliseconds, first, last); }

// Of the host, in the stream's order. It must not call the driver, whose lock is held.
API cuLaunchHostFunc(CUstream stream, CUhostFn function, void* data) {
  NEED_CONTEXT;
  LOCK;
  return enqueue(of(stream), [=] { return function(data), std::string(); });
}

// ---- graphs ----

#undef cuStreamBeginCapture
API cuStreamBeginCapture_v2(CUstream handle, CUstreamCaptureMode mode) {
  NEED_CONTEXT;
  LOCK;
  Stream* stream = of(handle);
  if (stream == &queues.legacy) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (stream->capture) return CUDA_ERROR_ILLEGAL_STATE;
  captures.push_back(stream->capture = new Capture{++captured, stream, mode, std::this_thread::get_id(), false, {}});
  return ok;
}
API cuStreamEndCapture(CUstream handle, CUgraph* graph) {
  ALIVE;
  LOCK;
  Stream* stream = of(handle);
  Capture* capture = stream->capture;
  *graph = nullptr;
  if (!capture) return CUDA_ERROR_ILLEGAL_STATE;
  if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && capture->thread != std::this_thread::get_id())
    return invalidated(stream, CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
  if (!capture->invalid) *graph = (CUgraph) new Graph{capture->nodes};
  CUresult result = capture->invalid ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : ok;
  std::erase(captures, capture);
  stream->capture = nullptr;
  return delete capture, result;
}
API cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus* status) {
  ALIVE;
  LOCK;
  Stream* stream = of(handle);
  for (Capture* one : captures)
    if (stream == &queues.legacy && one->stream->blocking) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  *status = !stream->capture            ? CU_STREAM_CAPTURE_STATUS_NONE
            : stream->capture->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                        : CU_STREAM_CAPTURE_STATUS_ACTIVE;
  return ok;
}
API cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) { return std::swap(*mode, interaction), ok; }
API cuGraphGetNodes(CUgraph graph, CUgraphNode* nodes, size_t* count) {
  if (nodes) return fprintf(stderr, "CPU test device: cuGraphGetNodes only counts\n"), CUDA_ERROR_NOT_SUPPORTED;
  return *count = ((Graph*)graph)->nodes.size(), ok;
}
API cuGraphDestroy(CUgraph graph) { return delete (Graph*)graph, ok; }
API cuGraphInstantiateWithFlags(CUgraphExec* executable, CUgraph graph, unsigned long long flags) {
  NEED_CONTEXT;
  LOCK;
  if (flags) return fprintf(stderr, "CPU test device: no flags of cuGraphInstantiate are built\n"), CUDA_ERROR_NOT_SUPPORTED;
  return *executable = (CUgraphExec) new Executable{((Graph*)graph)->nodes, nullptr}, ok;
}
API cuGraphLaunch(CUgraphExec handle, CUstream given) {
  NEED_CONTEXT;
  LOCK;
  auto* executable = (Executable*)handle;
  Stream* stream = of(given);
  if (implicit(stream)) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  if (stream->capture) return invalidated(stream, CUDA_ERROR_NOT_SUPPORTED);  // a graph within a graph
  ++calls["graph"];
  Ticket last = queues.send(stream, nullptr, executable->last);
  for (auto& node : executable->nodes) last = queues.send(stream, node);  // copies: each launch has the arguments as they were
  return executable->last = last, ok;
}
API cuGraphExecDestroy(CUgraphExec executable) {
  LOCK;
  return delete (Executable*)executable, ok;
}

// ---- modules: an image is a shared library that the stand-in nvcc made ----

API cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned, CUjit_option*, void**) {
  NEED_CONTEXT;
  {
    LOCK;
    NO_CAPTURE;
  }
  auto* header = (const Elf64_Ehdr*)image;
  if (memcmp(image, ELFMAG, SELFMAG)) return CUDA_ERROR_INVALID_IMAGE;
  size_t n = header->e_shoff + (size_t)header->e_shnum * header->e_shentsize;  // the section table is the file's end
  int file = memfd_create("kernels", MFD_CLOEXEC);
  void* library = nullptr;
  if (file >= 0 && write(file, image, n) == (ssize_t)n)
    library = dlopen(("/proc/self/fd/" + std::to_string(file)).c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    const char* why = dlerror();
    fprintf(stderr, "CPU test device: %s\n", why ? why : strerror(errno));
    if (file >= 0) close(file);
    return CUDA_ERROR_INVALID_IMAGE;
  }
  *module = (CUmodule) new Module{file, library, {}, {}};
  return ok;
}
API cuModuleLoadData(CUmodule* module, const void* image) { return cuModuleLoadDataEx(module, image, 0, nullptr, nullptr); }
API cuModuleUnload(CUmodule handle) {
  ALIVE;
  auto* module = (Module*)handle;
  LOCK;
  NO_CAPTURE;
  queues.wait_all();  // its code may be in the queues
  for (CUdeviceptr p : module->globals) allocations.erase(p);
  dlclose(module->library);
  close(module->file);
  delete module;
  return ok;
}
API cuModuleGetFunction(CUfunction* function, CUmodule handle, const char* name) {
  auto* module = (Module*)handle;
  auto* entry = (const KernelEntry*)dlsym(module->library, (std::string("cpu_kernel_") + name).c_str());
  auto* needs = (const KernelNeeds*)dlsym(module->library, (std::string("cpu_needs_") + name).c_str());
  if (!entry || !needs) return CUDA_ERROR_NOT_FOUND;
  LOCK;
  *function = (CUfunction)&module->functions.try_emplace(name, Function{name, entry, needs}).first->second;
  return ok;
}
API cuModuleGetGlobal_v2(CUdeviceptr* p, size_t* n, CUmodule handle, const char* name) {
  auto* module = (Module*)handle;
  void* address = dlsym(module->library, name);
  Dl_info info;
  Elf64_Sym* symbol = nullptr;
  if (!address || !dladdr1(address, &info, (void**)&symbol, RTLD_DL_SYMENT) || !symbol) return CUDA_ERROR_NOT_FOUND;
  LOCK;
  allocations[(CUdeviceptr)address] = symbol->st_size;
  module->globals.push_back((CUdeviceptr)address);
  if (p) *p = (CUdeviceptr)address;
  if (n) *n = symbol->st_size;
  return ok;
}

API cuFuncGetAttribute(int* value, CUfunction_attribute attribute, CUfunction handle) {
  auto* function = (Function*)handle;
  switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = (int)function->entry->max_threads; break;
    case CU_FUNC_ATTRIBUTE_NUM_REGS: *value = (int)function->needs->registers; break;
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES: *value = (int)function->needs->shared_bytes; break;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: *value = (int)function->most_dynamic; break;
    default: *value = 0;
  }
  return ok;
}
API cuFuncSetAttribute(CUfunction handle, CUfunction_attribute attribute, int value) {
  auto* function = (Function*)handle;
  if (attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) return ok;
  if (value < 0 || function->needs->shared_bytes + value > most_shared) return CUDA_ERROR_INVALID_VALUE;
  return function->most_dynamic = value, ok;
}
API cuFuncSetCacheConfig(CUfunction, CUfunc_cache) { return ok; }
API cuFuncSetBlockShape(CUfunction, int x, int y, int z) {
  return x < 1 || y < 1 || z < 1 || (size_t)x * y * z > 1024 ? CUDA_ERROR_INVALID_VALUE : ok;
}

// What a launch asks for beyond the device, "" for nothing.
static std::string over(const Function& function, size_t threads, size_t dynamic) {
  char text[200] = "";
  size_t registers = (function.needs->registers + 7) / 8 * 8 * ((threads + 31) / 32 * 32);  // eight at a time, for whole warps
  size_t shared = function.needs->shared_bytes + dynamic;
  if (threads > function.entry->max_threads)
    snprintf(text, sizeof text, "%zu threads of a block, over its launch bounds, %u", threads, function.entry->max_threads);
  else if (registers > registers_of_a_block)
    snprintf(text, sizeof text, "%zu registers of a block, over %zu", registers, registers_of_a_block);
  else if (function.needs->shared_bytes > default_shared || shared > std::max(default_shared, function.needs->shared_bytes + function.most_dynamic))
    snprintf(text, sizeof text, "%zu bytes of shared memory, over %zu", shared, default_shared);
  return text;
}

API cuLaunchKernel(CUfunction handle, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned dynamic,
                   CUstream stream, void** pointers, void** extra) {
  NEED_CONTEXT;
  auto* function = (Function*)handle;
  if (!gx || !gy || !gz || !bx || !by || !bz) return CUDA_ERROR_INVALID_VALUE;
  if (gx > 0x7FFFFFFF || gy > 65535 || gz > 65535 || bx > 1024 || by > 1024 || bz > 64) return CUDA_ERROR_INVALID_VALUE;
  if ((size_t)bx * by * bz > 1024) return CUDA_ERROR_INVALID_VALUE;
  std::string too_much = over(*function, (size_t)bx * by * bz, dynamic);
  if (!too_much.empty()) {
    fprintf(stderr, "CPU test device: %s needs %s\n", function->name.c_str(), too_much.c_str());
    return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
  }
  const char* parameters = nullptr;
  size_t bytes = 0;
  for (void** option = extra; option && *option; option += 2) {
    if (*option == CU_LAUNCH_PARAM_BUFFER_POINTER) parameters = (const char*)option[1];
    if (*option == CU_LAUNCH_PARAM_BUFFER_SIZE) bytes = *(size_t*)option[1];
  }
  if (pointers || bytes != function->entry->parameter_bytes) {
    fprintf(stderr, "CPU test device: %s takes %zu bytes of arguments, not %zu\n", function->name.c_str(),
            function->entry->parameter_bytes, bytes);
    return CUDA_ERROR_INVALID_VALUE;
  }
  struct alignas(16) Piece { char bytes[16]; };
  std::vector<Piece> kept(bytes / 16 + 1);
  memcpy(kept.data(), parameters, bytes);
  LOCK;
  std::vector<unsigned long long> serial;  // of the allocations that the pointers among the arguments point to
  {
    const void* given[most_parameters];
    size_t count = function->entry->pointers((char*)kept.data(), given);
    for (size_t i = 0; i < count; ++i) serial.push_back(serial_of((uintptr_t)given[i]));
  }
  auto launch = [=, entry = function->entry, name = function->name]() mutable -> std::string {
    const void* given[most_parameters];
    size_t count = entry->pointers((char*)kept.data(), given);
    for (size_t i = 0; i < count; ++i) {
      auto p = (uintptr_t)given[i];
      std::string wrong = misused(name.c_str(), {p, serial[i] > 0, serial[i]}, 1);
      if (p && !wrong.empty()) return wrong;
    }
    unsigned grid[] = {gx, gy, gz}, block[] = {bx, by, bz};
    const char* wrong = entry->launch(grid, block, (char*)kept.data(), queues.random());
    return wrong ? name + ": " + wrong : "";
  };
  ++calls["launch"];
  return enqueue(of(stream), launch);
}

// ---- the functions by name, as cuda.bindings looks them up ----

#undef cuGetProcAddress
API cuGetProcAddress_v2(const char* symbol, void** function, int, cuuint64_t, CUdriverProcAddressQueryResult* status) {
  static void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  const char* name = symbol;
  for (auto& alias : aliases)  // the newest version, whatever is asked for
    if (!strcmp(alias[0], symbol)) name = alias[1];
  *function = library ? dlsym(library, name) : nullptr;
  if (status) *status = *function ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  return *function ? ok : CUDA_ERROR_NOT_FOUND;
}
