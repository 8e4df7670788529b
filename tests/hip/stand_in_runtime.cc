// A stand-in for AMD's HIP runtime: every function that src/backend/hip calls, on the machine of the stand-in for
// NVIDIA's driver (tests/cuda/stand_in_driver.cc), with its strictness, its variables and its functions for tests; calls
// are counted, and made to fail, under their HIP names. build-stand-in makes it libamdhip64.so.6; tests/hip_driver.rs and
// `hip::` of tests/matrix.rs run on it. Kernels are the CPU's: nothing of the code objects is run but their first bytes
// looked at.
//
// What HIP has and CUDA has not: a current device a thread, 0 where none was set; an error that each thread keeps until it
// is asked for; memory of several kinds, of which a signal buffer, and what a kernel reads from a peer that writes it in
// the same launch, must be coherent: anything else is the end of the process.
//
// Besides the variables of the other:
//   STANDIN_HIP_VERSION=70100000   what hipRuntimeGetVersion tells; the numbers of memory types follow it
//   STANDIN_ARCHITECTURE=gfx942:sramecc+:xnack-
//   STANDIN_NO_UNCACHED=1          uncached memory is an invalid value, as before HIP 6
//   STANDIN_NO_FINE_GRAINED=1      so is fine-grained memory; 2: the device says that it has none, and gives ordinary memory
#define DRIVER [[maybe_unused]] static
#include "../cuda/stand_in_driver.cc"

#define RUNTIME extern "C" __attribute__((visibility("default")))

// Says to the backend what it is.
RUNTIME const uint32_t crossccl_emulator_version = 0;

namespace {

thread_local int device = 0, last_error = kSuccess;

Context* primary(int of) {
  Machine& m = machine();
  Context*& one = m.primary[size_t(of)];
  if (!one) m.contexts.insert(one = new Context{of, {}});
  return one;
}

// One call: under its name, with the thread's device current.
template <class F> int call(const char* name, F&& body) {
  {
    Machine& m = machine();
    Lock lock(m.lock);
    current = m.devices > 0 ? primary(device) : nullptr;
  }
  face = name, counted = false;
  const int code = current ? body() : enter(name) ?: kInvalidDevice;
  face = nullptr;
  return code == kSuccess ? code : last_error = code;
}
#define CALL(...) return call(__func__, [&]() -> int { __VA_ARGS__ })

void named(char* to, const char* text) { snprintf(to, 256, "%s", text); }

int properties(char* all, size_t bytes, size_t architecture, int of) {
  ENTER();
  if (of < 0 || of >= m.devices) return kInvalidDevice;
  // What else a structure has is not to be relied on.
  memset(all, 0xC7, bytes);
  named(all, ("Stand-in " + std::to_string(of)).c_str());
  const char* name = getenv("STANDIN_ARCHITECTURE");
  named(all + architecture, name ? name : "gfx942:sramecc+:xnack-");
  return kSuccess;
}

int hip_version() { return number("STANDIN_HIP_VERSION", 70100000); }

int allocate(void** address, size_t bytes, bool coherent) {
  uint64_t at = 0;
  if (const int code = cuMemAlloc_v2(&at, bytes)) return code;
  Lock lock(machine().lock);
  holder(at)->coherent = coherent;
  *address = (void*)at;
  return kSuccess;
}

const Named kHipNames[] = {
    {1, "hipErrorInvalidValue"},
    {2, "hipErrorOutOfMemory"},
    {100, "hipErrorNoDevice"},
    {101, "hipErrorInvalidDevice"},
    {209, "hipErrorNoBinaryForGpu"},
    {217, "hipErrorPeerAccessUnsupported"},
    {500, "hipErrorNotFound"},
    {600, "hipErrorNotReady"},
    {704, "hipErrorPeerAccessAlreadyEnabled"},
    {700, "hipErrorIllegalAddress"},
    {719, "hipErrorLaunchFailure"},
    {801, "hipErrorNotSupported"},
    {900, "hipErrorStreamCaptureUnsupported"},
};

}  // namespace

RUNTIME int hipRuntimeGetVersion(int* version) {
  // Works without a device.
  *version = hip_version();
  return kSuccess;
}

RUNTIME const char* hipGetErrorName(int code) {
  for (const Named& one : kHipNames)
    if (one.code == code) return one.name;
  return code == 4711 ? nullptr : "hipErrorUnknown";
}

RUNTIME int hipGetLastError() {
  const int code = last_error;
  last_error = kSuccess;
  return code;
}

RUNTIME int hipGetDeviceCount(int* count) {
  *count = machine().devices;
  if (machine().devices == 0) return last_error = 100;
  CALL(return enter(""););
}

RUNTIME int hipGetDevice(int* which) {
  CALL(if (const int code = enter("")) return code; *which = device; return kSuccess;);
}

RUNTIME int hipSetDevice(int which) {
  CALL(if (const int code = enter("")) return code; if (which < 0 || which >= machine().devices) return kInvalidDevice;
       device = which; return kSuccess;);
}

RUNTIME int hipDeviceGetAttribute(int* value, int which, int of) {
  CALL(ENTER(); if (of < 0 || of >= m.devices) return kInvalidDevice; switch (which) {
    case 19: *value = 1 << 20; return kSuccess;
    case 63: *value = m.resident; return kSuccess;
    case 10016: *value = number("STANDIN_NO_FINE_GRAINED", 0) != 2; return kSuccess;
    case 10017: *value = 1000000; return hip_version() < 60000000 ? kInvalidValue : kSuccess;
    default: misuse("hipDeviceGetAttribute: teach the stand-in the attribute %d", which);
  });
}

RUNTIME int hipGetDeviceProperties(char* all, int of) { CALL(return properties(all, 792, 396, of);); }

RUNTIME int hipGetDevicePropertiesR0600(char* all, int of) { CALL(return properties(all, 1472, 1160, of);); }

RUNTIME int hipDeviceCanAccessPeer(int* can, int from, int to) { CALL(return cuDeviceCanAccessPeer(can, from, to);); }

RUNTIME int hipDeviceEnablePeerAccess(int peer, unsigned flags) {
  CALL(if (peer < 0 || peer >= machine().devices) return kInvalidDevice;
       return cuCtxEnablePeerAccess(primary(peer), flags););
}

RUNTIME int hipExtGetLinkTypeAndHopCount(int one, int other, uint32_t* kind, uint32_t* hops) {
  CALL(ENTER(); if (one < 0 || one >= m.devices || other < 0 || other >= m.devices) return kInvalidDevice;
       *kind = 4, *hops = 1; return kSuccess;);
}

RUNTIME int hipMalloc(void** address, size_t bytes) { CALL(return allocate(address, bytes, false);); }

RUNTIME int hipExtMallocWithFlags(void** address, size_t bytes, unsigned flags) {
  CALL(if (flags != 1 && flags != 3) misuse("hipExtMallocWithFlags: flags %u", flags);
       const int fine = number("STANDIN_NO_FINE_GRAINED", 0);
       if (number("STANDIN_NO_UNCACHED", 0) && flags == 3) return enter("") ?: kInvalidValue;
       if (fine == 1 && flags == 1) return enter("") ?: kInvalidValue;
       return allocate(address, bytes, flags == 3 || fine == 0););
}

RUNTIME int hipHostMalloc(void** address, size_t bytes, unsigned flags) {
  CALL(if (!(flags & 0x40000000)) misuse("hipHostMalloc: memory that may not be coherent");
       return cuMemHostAlloc(address, bytes, flags & 3););
}

RUNTIME int hipMemcpyAsync(void* to, const void* from, size_t bytes, int kind, void* stream) {
  CALL(if (kind != 4) misuse("hipMemcpyAsync: kind %d", kind);
       return cuMemcpyAsync(uint64_t(to), uint64_t(from), bytes, stream););
}

RUNTIME int hipMemsetAsync(void* to, int byte, size_t bytes, void* stream) {
  CALL(return cuMemsetD8Async(uint64_t(to), uint8_t(byte), bytes, stream););
}

struct PointerAttributes {
  int type, device;
  void *device_pointer, *host_pointer;
  int managed;
  unsigned flags;
};

RUNTIME int hipPointerGetAttributes(PointerAttributes* all, const void* address) {
  CALL(ENTER(); const bool old = hip_version() < 60000000; auto one = holder(uint64_t(address));
       if (!one && old) return kInvalidValue;
       all->managed = one && one->managed;
       all->type = !one ? 0 : one->managed ? 3 + old : one->context ? 2 - old : 1 - old;
       all->device = one && one->context ? one->context->device : -2; return kSuccess;);
}

RUNTIME int hipMemGetAddressRange(void** start, size_t* bytes, void* address) {
  CALL(ENTER(); auto one = holder(uint64_t(address)); if (!one) return kNotFound; *start = one->start;
       *bytes = one->bytes; return kSuccess;);
}

// Memory that is mapped piece by piece, as on CUDA; but of what is not mapped the question is an error.
RUNTIME int hipMemAddressReserve(uint64_t* address, size_t bytes, size_t alignment, uint64_t wish,
                                 unsigned long long flags) {
  CALL(return cuMemAddressReserve(address, bytes, alignment, wish, flags););
}

RUNTIME int hipMemCreate(void** handle, size_t bytes, const PhysicalProperties* properties, unsigned long long flags) {
  CALL(return cuMemCreate(handle, bytes, properties, flags););
}

RUNTIME int hipMemMap(uint64_t address, size_t bytes, size_t offset, void* handle, unsigned long long flags) {
  CALL(const int code = cuMemMap(address, bytes, offset, handle, flags); Lock lock(machine().lock);
       if (code == kSuccess) holder(address)->coherent = false; return code;);
}

RUNTIME int hipMemUnmap(uint64_t address, size_t bytes) { CALL(return cuMemUnmap(address, bytes);); }

RUNTIME int hipMemGetAccess(unsigned long long* flags, const Location* at, uint64_t address) {
  CALL(bool mapped; {
    Lock lock(machine().lock);
    auto one = holder(address);
    mapped = one && one->mapped;
  } const int code = cuMemGetAccess(flags, at, address);
       return code == kSuccess && !mapped ? int(kInvalidValue) : code;);
}

RUNTIME int hipMemSetAccess(uint64_t address, size_t bytes, const PoolAccess* access, size_t count) {
  CALL(return cuMemSetAccess(address, bytes, access, count););
}

RUNTIME int hipMallocManaged(uint64_t* address, size_t bytes, unsigned flags) {
  CALL(return cuMemAllocManaged(address, bytes, flags););
}

// A device has one pool, of which no address tells.
int own_pool(void** pool, int of) {
  static std::map<int, Pool*>& pools = *new std::map<int, Pool*>;
  ENTER();
  if (of < 0 || of >= m.devices) return kInvalidDevice;
  if (!m.pools_supported) return kNotSupported;
  if (!pools[of]) m.pools.insert(pools[of] = new Pool{of, {of}});
  *pool = pools[of];
  return kSuccess;
}

RUNTIME int hipDeviceGetDefaultMemPool(void** pool, int of) { CALL(return own_pool(pool, of);); }

RUNTIME int hipDeviceGetMemPool(void** pool, int of) { CALL(return own_pool(pool, of);); }

RUNTIME int hipMemPoolSetAccess(void* pool, const PoolAccess* access, size_t count) {
  CALL(return cuMemPoolSetAccess(pool, access, count););
}

RUNTIME int hipMallocAsync(uint64_t* address, size_t bytes, void* stream) {
  CALL(void* pool; if (const int code = own_pool(&pool, device)) return code;
       const int code = cuMemAllocFromPoolAsync(address, bytes, pool, stream); if (code) return code;
       Lock lock(machine().lock); holder(*address)->coherent = false; return code;);
}

RUNTIME int hipModuleLoadData(void** module, const void* image) {
  CALL(if (memcmp(image, "\x7f" "ELF", 4)) return enter("") ?: 200;
       if (uintptr_t(image) % 4096) misuse("hipModuleLoadData: a code object that is not aligned to pages");
       const uint32_t fatbin = 0xba55ed50u; return cuModuleLoadData(module, &fatbin););
}

RUNTIME int hipModuleUnload(void* module) { CALL(return cuModuleUnload(module);); }

RUNTIME int hipModuleGetFunction(void** function, void* module, const char* name) {
  CALL(const int code = cuModuleGetFunction(function, module, name);
       // Loaded with its module.
       if (code == kSuccess) ((Function*)*function)->loaded = true;
       return code;);
}

RUNTIME int hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, void* function, int threads, size_t shared) {
  CALL(return cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks, function, threads, shared););
}

RUNTIME int hipModuleLaunchKernel(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                                  unsigned block_y, unsigned block_z, unsigned shared, void* stream, void** parameters,
                                  void** extra) {
  if (!parameters || !parameters[0] || !parameters[1]) misuse("hipModuleLaunchKernel: without its arguments");
  if (*(const unsigned*)parameters[1] != grid_x) misuse("hipModuleLaunchKernel: its second argument is the grid");
  const auto& arguments = *(const Arguments*)parameters[0];
  {
    Lock lock(machine().lock);
    for (uint64_t signal : arguments.signal)
      if (auto one = signal ? holder(signal) : nullptr; one && !one->coherent)
        misuse("hipModuleLaunchKernel: a signal buffer in memory that is not coherent");
    const auto& kernel = *known(machine().functions, function, __func__, "function");
    auto output = arguments.output ? holder(arguments.output) : nullptr;
    if (kernel.name == "broadcast_two_stage_direct" && output && !output->coherent)
      misuse("hipModuleLaunchKernel: a direct broadcast into memory that is not coherent");
  }
  const LaunchConfig config = {{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared, stream, nullptr, 0};
  CALL(return cuLaunchKernelEx(&config, function, parameters, extra););
}

RUNTIME int hipStreamCreateWithFlags(void** stream, unsigned flags) { CALL(return cuStreamCreate(stream, flags);); }

RUNTIME int hipStreamDestroy(void* stream) { CALL(return cuStreamDestroy_v2(stream);); }

RUNTIME int hipStreamWaitEvent(void* stream, void* event, unsigned flags) {
  CALL(return cuStreamWaitEvent(stream, event, flags););
}

RUNTIME int hipStreamSynchronize(void* stream) { CALL(return cuStreamSynchronize(stream);); }

RUNTIME int hipStreamGetFlags(void* stream, unsigned* flags) { CALL(return cuStreamGetFlags(stream, flags);); }

RUNTIME int hipStreamGetDevice(void* stream, int* device) {
  CALL(void* context; const int code = cuStreamGetCtx(stream, &context); if (code == kSuccess) *device = ((Context*)context)->device; return code;);
}

RUNTIME int hipStreamIsCapturing(void* stream, int* status) { CALL(return cuStreamIsCapturing(stream, status);); }

RUNTIME int hipThreadExchangeStreamCaptureMode(int* mode) { CALL(return cuThreadExchangeStreamCaptureMode(mode);); }

RUNTIME int hipStreamBeginCapture(void* stream, int mode) { CALL(return cuStreamBeginCapture_v2(stream, mode);); }

RUNTIME int hipStreamEndCapture(void* stream, void** graph) { CALL(return cuStreamEndCapture(stream, graph);); }

RUNTIME int hipGraphInstantiate(void** executable, void* graph, void**, char*, size_t) {
  CALL(return cuGraphInstantiateWithFlags(executable, graph, 0););
}

RUNTIME int hipGraphLaunch(void* executable, void* stream) { CALL(return cuGraphLaunch(executable, stream);); }

RUNTIME int hipGraphDestroy(void* graph) { CALL(return cuGraphDestroy(graph);); }

RUNTIME int hipGraphExecDestroy(void* executable) { CALL(return cuGraphExecDestroy(executable);); }

RUNTIME int hipEventCreateWithFlags(void** event, unsigned flags) { CALL(return cuEventCreate(event, flags);); }

RUNTIME int hipEventRecord(void* event, void* stream) { CALL(return cuEventRecord(event, stream);); }

RUNTIME int hipEventQuery(void* event) { CALL(return cuEventQuery(event);); }

RUNTIME int hipEventDestroy(void* event) { CALL(return cuEventDestroy_v2(event);); }

RUNTIME int hipEventElapsedTime(float* milliseconds, void* start, void* stop) {
  CALL(return cuEventElapsedTime(milliseconds, start, stop););
}

// For tests, as the other's.

RUNTIME void runtime_arm(const char* text) { standin_arm(text); }
RUNTIME const char* runtime_fired() { return standin_fired(); }
RUNTIME uint64_t runtime_calls() { return standin_calls(); }
RUNTIME uint64_t runtime_calls_of(const char* name) { return standin_calls_of(name); }
RUNTIME uint64_t runtime_alive(const char* what) { return standin_alive(what); }
// What this thread has set: device, capture mode, last error.
RUNTIME void runtime_thread(int* to) { to[0] = device, to[1] = capture_mode, to[2] = last_error; }
