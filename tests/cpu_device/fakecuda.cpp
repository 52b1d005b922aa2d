// A libcuda.so.1 whose one device is this computer's CPU: as much of CUDA's driver API as PyCUDA uses.
//
// Every call ends before it returns, so streams and events are in order by nature, and no time can be measured: the elapsed time of
// two events is NaN. Fresh memory is filled with 0xFF (NaN, or -1). A call without a current context, a copy beyond an allocation,
// a launch over the limits and a wrong length of packed arguments fail as they do on a GPU. build.py adds a stub for each other
// symbol of cuda.h, which names itself and fails.
//
//   MINICAFFE_TEST_DEVICE_BYTES   how much memory the device has (4 GiB)
//   MINICAFFE_TEST_DEVICE_COUNT   0: a driver without a device
#include <cuda.h>
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "kernel_entry.h"

#define API extern "C" __attribute__((visibility("default"))) CUresult
static const CUresult ok = CUDA_SUCCESS;

// ---- state ----

struct Function {
  std::string name;
  const KernelEntry* entry;
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

static std::mutex memory_lock;                    // guards the next three
static std::map<CUdeviceptr, size_t> allocations; // and modules' global variables
static size_t used = 0;
static std::mutex launch_lock;  // one grid at a time: a module's threadIdx and __shared__ arrays are static

static size_t total_bytes() {
  const char* text = getenv("MINICAFFE_TEST_DEVICE_BYTES");
  return text ? strtoull(text, nullptr, 10) : 4ull << 30;
}
static int device_count() {
  const char* text = getenv("MINICAFFE_TEST_DEVICE_COUNT");
  return text && !strcmp(text, "0") ? 0 : 1;
}

#define NEED_CONTEXT \
  if (contexts.empty()) return CUDA_ERROR_INVALID_CONTEXT

// Whether n bytes from p lie in one allocation.
static bool inside(CUdeviceptr p, size_t n) {
  std::lock_guard<std::mutex> hold(memory_lock);
  auto next = allocations.upper_bound(p);
  if (next == allocations.begin()) return false;
  --next;
  return p + n <= next->first + next->second;
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
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK: *value = 48 << 10; break;
    case CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY: *value = 64 << 10; break;
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK: *value = 64 << 10; break;
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
API cuCtxPopCurrent_v2(CUcontext* context) {
  NEED_CONTEXT;
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
  return ok;
}

// ---- memory ----

API cuMemGetInfo_v2(size_t* free_bytes, size_t* total) {
  NEED_CONTEXT;
  std::lock_guard<std::mutex> hold(memory_lock);
  *total = total_bytes();
  *free_bytes = *total < used ? 0 : *total - used;
  return ok;
}
API cuMemAlloc_v2(CUdeviceptr* p, size_t n) {
  NEED_CONTEXT;
  if (!n) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard<std::mutex> hold(memory_lock);
  void* memory = nullptr;
  if (used + n > total_bytes() || posix_memalign(&memory, 256, n)) return CUDA_ERROR_OUT_OF_MEMORY;
  memset(memory, 0xFF, n);
  allocations[*p = (CUdeviceptr)memory] = n;
  used += n;
  return ok;
}
API cuMemFree_v2(CUdeviceptr p) {
  NEED_CONTEXT;
  std::lock_guard<std::mutex> hold(memory_lock);
  auto found = allocations.find(p);
  if (found == allocations.end()) return CUDA_ERROR_INVALID_VALUE;
  used -= found->second;
  allocations.erase(found);
  free((void*)p);
  return ok;
}
API cuMemHostAlloc(void** p, size_t n, unsigned) {
  NEED_CONTEXT;
  return posix_memalign(p, 4096, n) ? CUDA_ERROR_OUT_OF_MEMORY : ok;
}
API cuMemFreeHost(void* p) { return free(p), ok; }
API cuMemHostRegister_v2(void*, size_t, unsigned) { return ok; }
API cuMemHostUnregister(void*) { return ok; }

static CUresult copy(void* to, bool to_device, const void* from, bool from_device, size_t n) {
  NEED_CONTEXT;
  if (to_device && !inside((CUdeviceptr)to, n)) return CUDA_ERROR_INVALID_VALUE;
  if (from_device && !inside((CUdeviceptr)from, n)) return CUDA_ERROR_INVALID_VALUE;
  memmove(to, from, n);
  return ok;
}
API cuMemcpyHtoD_v2(CUdeviceptr to, const void* from, size_t n) { return copy((void*)to, true, from, false, n); }
API cuMemcpyDtoH_v2(void* to, CUdeviceptr from, size_t n) { return copy(to, false, (void*)from, true, n); }
API cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t n) { return copy((void*)to, true, (void*)from, true, n); }
API cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, size_t n, CUstream) { return copy((void*)to, true, from, false, n); }
API cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, size_t n, CUstream) { return copy(to, false, (void*)from, true, n); }
API cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t n, CUstream) { return copy((void*)to, true, (void*)from, true, n); }

template <class T>
static CUresult fill(CUdeviceptr p, T value, size_t n) {
  NEED_CONTEXT;
  if (p % sizeof(T) || !inside(p, n * sizeof(T))) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < n; ++i) ((T*)p)[i] = value;
  return ok;
}
API cuMemsetD8_v2(CUdeviceptr p, unsigned char value, size_t n) { return fill(p, value, n); }
API cuMemsetD16_v2(CUdeviceptr p, unsigned short value, size_t n) { return fill(p, value, n); }
API cuMemsetD32_v2(CUdeviceptr p, unsigned value, size_t n) { return fill(p, value, n); }
API cuMemsetD8Async(CUdeviceptr p, unsigned char value, size_t n, CUstream) { return fill(p, value, n); }
API cuMemsetD16Async(CUdeviceptr p, unsigned short value, size_t n, CUstream) { return fill(p, value, n); }
API cuMemsetD32Async(CUdeviceptr p, unsigned value, size_t n, CUstream) { return fill(p, value, n); }

// ---- streams and events ----

template <class Handle>
static CUresult create(Handle* handle) {
  NEED_CONTEXT;
  return *handle = (Handle) new char, ok;
}
API cuStreamCreate(CUstream* stream, unsigned) { return create(stream); }
API cuStreamCreateWithPriority(CUstream* stream, unsigned, int) { return create(stream); }
API cuStreamDestroy_v2(CUstream stream) { return delete (char*)stream, ok; }
API cuStreamSynchronize(CUstream) { return ok; }
API cuStreamQuery(CUstream) { return ok; }
API cuStreamWaitEvent(CUstream, CUevent, unsigned) { return ok; }
API cuEventCreate(CUevent* event, unsigned) { return create(event); }
API cuEventDestroy_v2(CUevent event) { return delete (char*)event, ok; }
API cuEventRecord(CUevent, CUstream) { return ok; }
API cuEventSynchronize(CUevent) { return ok; }
API cuEventQuery(CUevent) { return ok; }
#undef cuEventElapsedTime
API cuEventElapsedTime(float* milliseconds, CUevent, CUevent) { return *milliseconds = NAN, ok; }
#undef cuEventElapsedTime_v2
API cuEventElapsedTime_v2(float* milliseconds, CUevent, CUevent) { return *milliseconds = NAN, ok; }

// ---- modules: an image is a shared library that the stand-in nvcc made ----

API cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned, CUjit_option*, void**) {
  NEED_CONTEXT;
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
  auto* module = (Module*)handle;
  {
    std::lock_guard<std::mutex> hold(memory_lock);
    for (CUdeviceptr p : module->globals) allocations.erase(p);
  }
  dlclose(module->library);
  close(module->file);
  delete module;
  return ok;
}
API cuModuleGetFunction(CUfunction* function, CUmodule handle, const char* name) {
  auto* module = (Module*)handle;
  auto* entry = (const KernelEntry*)dlsym(module->library, (std::string("cpu_kernel_") + name).c_str());
  if (!entry) return CUDA_ERROR_NOT_FOUND;
  *function = (CUfunction) & (module->functions[name] = Function{name, entry});
  return ok;
}
API cuModuleGetGlobal_v2(CUdeviceptr* p, size_t* n, CUmodule handle, const char* name) {
  auto* module = (Module*)handle;
  void* address = dlsym(module->library, name);
  Dl_info info;
  Elf64_Sym* symbol = nullptr;
  if (!address || !dladdr1(address, &info, (void**)&symbol, RTLD_DL_SYMENT) || !symbol) return CUDA_ERROR_NOT_FOUND;
  std::lock_guard<std::mutex> hold(memory_lock);
  allocations[(CUdeviceptr)address] = symbol->st_size;
  module->globals.push_back((CUdeviceptr)address);
  if (p) *p = (CUdeviceptr)address;
  if (n) *n = symbol->st_size;
  return ok;
}

API cuFuncGetAttribute(int* value, CUfunction_attribute attribute, CUfunction function) {
  *value = attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? (int)((Function*)function)->entry->max_threads : 0;
  return ok;
}
API cuFuncSetCacheConfig(CUfunction, CUfunc_cache) { return ok; }
API cuFuncSetBlockShape(CUfunction, int x, int y, int z) {
  return x < 1 || y < 1 || z < 1 || (size_t)x * y * z > 1024 ? CUDA_ERROR_INVALID_VALUE : ok;
}

API cuLaunchKernel(CUfunction handle, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned,
                   CUstream, void** pointers, void** extra) {
  NEED_CONTEXT;
  auto* function = (Function*)handle;
  if (!gx || !gy || !gz || !bx || !by || !bz) return CUDA_ERROR_INVALID_VALUE;
  if (gx > 0x7FFFFFFF || gy > 65535 || gz > 65535 || bx > 1024 || by > 1024 || bz > 64) return CUDA_ERROR_INVALID_VALUE;
  if ((size_t)bx * by * bz > 1024) return CUDA_ERROR_INVALID_VALUE;
  if ((size_t)bx * by * bz > function->entry->max_threads) return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
  char* parameters = nullptr;
  size_t bytes = 0;
  for (void** option = extra; option && *option; option += 2) {
    if (*option == CU_LAUNCH_PARAM_BUFFER_POINTER) parameters = (char*)option[1];
    if (*option == CU_LAUNCH_PARAM_BUFFER_SIZE) bytes = *(size_t*)option[1];
  }
  if (pointers || bytes != function->entry->parameter_bytes) {
    fprintf(stderr, "CPU test device: %s takes %zu bytes of arguments, not %zu\n", function->name.c_str(),
            function->entry->parameter_bytes, bytes);
    return CUDA_ERROR_INVALID_VALUE;
  }
  unsigned grid[] = {gx, gy, gz}, block[] = {bx, by, bz};
  std::lock_guard<std::mutex> hold(launch_lock);
  const char* wrong = function->entry->launch(grid, block, parameters);
  if (!wrong) return ok;
  kernel_error = "unspecified launch failure: " + function->name + ": " + wrong;
  return CUDA_ERROR_LAUNCH_FAILED;
}
