// A stand-in for NVIDIA's driver library: every function that src/backend/cuda calls, in host memory, so that the
// backend's own code is run, and can be made to fail, where there is no GPU. Streams are threads, kernels are the
// CPU's (kernels-cpu), a block is a thread. build-stand-in makes it libcuda.so.1; tests/cuda_driver.rs and
// `cuda::` of tests/matrix.rs run on it.
//
// It is stricter than a driver. What a driver answers with a wrong result, a crash or a hang once in a while is here
// the end of the process, with a message that says what was done: a handle that is not one (any more), a stream or
// event used under another context than its own, memory given back while work on it is queued, a copy of memory that
// the device may not touch, a kernel that is loaded by its first launch, more blocks than are resident.
//
// A kernel whose arguments name memory that a device may not touch ends all contexts of the process: from then on
// nearly every call answers 700, as on hardware (and no word from the other kernels, which would spin on).
//
// What it does as drivers do, because it decides whether collectives hang: freeing plain memory and loading a module
// wait for the device; a copy to ordinary host memory waits in the caller, and launches wait for it meanwhile; blocks
// start when the device has room for all of the launch.
//
// tests/hip/stand_in_runtime.cc gives it the face of AMD's runtime.
//
// It proves nothing about hardware: memory order, the driver's own mistakes, the kernels' machine code.
//
// The environment says what machine it is:
//   STANDIN_DEVICES=2           how many devices
//   STANDIN_BLOCKS=64           resident blocks of each
//   STANDIN_VERSION=13000       what cuDriverGetVersion tells
//   STANDIN_NO_POOLS=1          devices without memory pools
//   STANDIN_CAPABILITY=8        their major compute capability
//   STANDIN_PTX_VERSION=80      of the kernels' code
//   STANDIN_UNREACHABLE=1:2     device 1 has no access to device 2 (a list, with commas)
//   STANDIN_LOST=1:2            what the self-test writes from device 1 to device 2 never arrives, though device 1 reads
//                               it back (likewise)
//   STANDIN_UNREAD=1:2          what the self-test reads on device 1 from device 2 is not what stands there (likewise)
//   STANDIN_DELAY_US=1000       how late the work in streams begins
//   STANDIN_FAIL=cuX:3:719      the third call of cuX answers 719; `*` counts calls of all functions; 3+ is the third
//                               and all later ones
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#define CROSSCCL_DEVICE static inline
#define CROSSCCL_ROLLED
#include "../../kernels-common/abi.h"

using crossccl::Arguments;

// kernels-cpu/kernels.cc
extern "C" {
size_t crossccl_cpu_kernel_count();
const char* crossccl_cpu_kernel_name(size_t index);
using Entry = void (*)(const Arguments*, uint32_t block, uint32_t blocks);
Entry crossccl_cpu_kernel_entry(size_t index);
void crossccl_cpu_thread_begin();
}

namespace {

// As in kernels-cuda/target_cuda.h, which this cannot include.
constexpr unsigned kThreads = 512;

enum Code : int {
  kSuccess = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kInvalidDevice = 101,
  kInvalidContext = 201,
  kPeerAccessUnsupported = 217,
  kNotFound = 500,
  kNotReady = 600,
  kIllegalAddress = 700,
  kPeerAccessAlreadyEnabled = 704,
  kNotSupported = 801,
  kCaptureUnsupported = 900,
  kCaptureInvalidated = 901,
  kCaptureImplicit = 906,
  kCaptureUnjoined = 904,
  kCaptureIsolation = 905,
  kCapturedEvent = 907,
};

struct Named {
  int code;
  const char* name;
};
const Named kNames[] = {
    {0, "CUDA_SUCCESS"},
    {1, "CUDA_ERROR_INVALID_VALUE"},
    {2, "CUDA_ERROR_OUT_OF_MEMORY"},
    {100, "CUDA_ERROR_NO_DEVICE"},
    {101, "CUDA_ERROR_INVALID_DEVICE"},
    {201, "CUDA_ERROR_INVALID_CONTEXT"},
    {209, "CUDA_ERROR_NO_BINARY_FOR_GPU"},
    {217, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED"},
    {500, "CUDA_ERROR_NOT_FOUND"},
    {600, "CUDA_ERROR_NOT_READY"},
    {700, "CUDA_ERROR_ILLEGAL_ADDRESS"},
    {704, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED"},
    {719, "CUDA_ERROR_LAUNCH_FAILED"},
    {801, "CUDA_ERROR_NOT_SUPPORTED"},
    {900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"},
    {901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"},
    {904, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED"},
    {905, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION"},
    {906, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT"},
    {907, "CUDA_ERROR_CAPTURED_EVENT"},
};

[[noreturn]] void misuse(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  fprintf(stderr, "stand-in driver: ");
  vfprintf(stderr, format, arguments);
  fprintf(stderr, "\n");
  va_end(arguments);
  abort();
}

int number(const char* variable, int otherwise) {
  const char* text = getenv(variable);
  return text && *text ? atoi(text) : otherwise;
}

// `1:2,2:1` as ordered pairs.
std::set<std::pair<int, int>> pairs(const char* variable) {
  std::set<std::pair<int, int>> all;
  for (const char* at = getenv(variable); at && *at;) {
    int from, to, length = 0;
    if (sscanf(at, "%d:%d%n", &from, &to, &length) != 2) misuse("%s=%s: pairs are 1:2,2:1", variable, getenv(variable));
    all.insert({from, to});
    at += length;
    if (*at == ',') ++at;
  }
  return all;
}

// Handles point to these. They are never deleted, so that no new one has an old one's address.
struct Context {
  int device;
  std::set<Context*> peers;  // whose plain memory it may touch
};
struct Pool {
  int device;
  std::set<int> devices;  // that may touch its memory
};
struct Stream;
// Addresses without memory, into which pieces of memory are mapped.
struct Reserved {
  char* start;
  size_t bytes;
  uint64_t id;
};
// Memory without addresses.
struct Physical {
  int device;
  size_t bytes;
};
struct Allocation {
  char* start;
  size_t bytes;
  Context* context;             // none: host memory
  Pool* pool;                   // none: plain
  bool coherent;                // while kernels run; NVIDIA's always is
  uint64_t id = 0;              // of this allocation alone
  bool managed = false;
  Reserved* mapped = nullptr;        // a piece of this
  std::set<int> granted;             // the devices that may touch it, if mapped
  std::set<Context*> opened;         // the contexts that imported it from another process
  std::map<Stream*, int> users = {};  // queued work, by stream
};
// One thing that a stream does, and the memory that it uses.
struct Work {
  std::function<void()> run;
  std::vector<std::shared_ptr<Allocation>> uses;
};
// A thing that a stream does in each launch of a graph: work, or an event of the graph's.
struct Step {
  enum { kWork, kRecord, kAwait } kind;
  Work work;
  size_t event;
};
// A branch for each stream that takes part: the first is the one that was captured, others join it by an event, and
// must be joined by one in the end.
struct Capture {
  struct Branch {
    Stream* stream;
    std::vector<Step> steps;
  };
  std::vector<Branch> branches;
  size_t events = 0;
  std::set<size_t> awaited;
  bool invalidated = false;
  std::vector<Step>& of(Stream* stream) {
    for (Branch& one : branches)
      if (one.stream == stream) return one.steps;
    branches.push_back({stream, {}});
    return branches.back().steps;
  }
};
struct Stream {
  Context* context;
  std::deque<Work> queue;
  bool busy = false, destroyed = false;
  std::shared_ptr<Capture> capture;
  std::condition_variable more;
};
struct Event {
  Context* context;
  uint64_t recorded = 0, passed = 0;
  std::shared_ptr<Capture> captured;  // recorded there last
  size_t number = 0;                  // in it
  bool timed = false;
  std::chrono::steady_clock::time_point at{};
};
struct Module {
  Context* context;
};
struct Function {
  Module* module;
  std::string name;
  Entry entry;
  bool loaded = false;
};
struct Graph {
  std::vector<Capture::Branch> branches;
  size_t events;
  std::vector<Stream*> helpers = {};  // where an executable's other branches run
};

struct Injected {
  std::string function;
  uint64_t first = 0, seen = 0;
  bool on = false;
  int code = 0;
};

struct Machine {
  std::mutex lock;
  std::condition_variable progress;
  // Launches, and copies to ordinary host memory, one at a time.
  std::mutex submitting;
  int dead = 0;  // what calls answer since a kernel touched what it may not
  uint64_t ids = 0;
  int devices = number("STANDIN_DEVICES", 2), version = number("STANDIN_VERSION", 13000);
  int resident = number("STANDIN_BLOCKS", 64), delay = number("STANDIN_DELAY_US", 0);
  bool pools_supported = number("STANDIN_NO_POOLS", 0) == 0, initialised = false;
  std::set<std::pair<int, int>> unreachable = pairs("STANDIN_UNREACHABLE"), lost = pairs("STANDIN_LOST"), unread = pairs("STANDIN_UNREAD");
  std::map<std::pair<int, uint64_t>, uint64_t> elsewhere;  // where a device's accesses to an address go instead
  std::vector<Context*> primary{size_t(devices)};
  std::vector<int> retained = std::vector<int>(size_t(devices)), running = std::vector<int>(size_t(devices));
  std::set<Context*> contexts;
  std::set<Pool*> pools;
  std::set<Reserved*> reserved;
  std::set<Physical*> physical;
  std::set<Stream*> streams;
  std::set<Event*> events;
  std::set<Module*> modules;
  std::set<Function*> functions;
  std::set<Graph*> graphs, executables;
  std::map<Context*, Stream*> legacy;
  std::map<const char*, std::shared_ptr<Allocation>> memory;  // by start
  Injected injected;
  std::string fired;
  uint64_t calls = 0;
  std::map<std::string, uint64_t> calls_of;

  Machine() { arm(getenv("STANDIN_FAIL")); }

  void arm(const char* text) {
    injected = Injected();
    fired.clear();
    calls = 0;
    calls_of.clear();
    if (!text || !*text) return;
    const char* colon = strchr(text, ':');
    if (!colon) misuse("STANDIN_FAIL=%s: say cuFunction:1:719", text);
    injected.function = std::string(text, colon);
    char* end;
    injected.first = strtoull(colon + 1, &end, 10);
    injected.on = *end == '+';
    if (injected.on) ++end;
    injected.code = *end == ':' ? atoi(end + 1) : 719;
    if (injected.first == 0 || injected.code == 0) misuse("STANDIN_FAIL=%s: say cuFunction:1:719", text);
  }
};

// Never destroyed: streams outlive `main`.
Machine& machine() {
  static Machine& one = *new Machine;
  return one;
}

using Lock = std::unique_lock<std::mutex>;

thread_local Context* current = nullptr;
thread_local int capture_mode = 0;  // CU_STREAM_CAPTURE_MODE_GLOBAL
thread_local int captures = 0;      // begun by this thread and not ended
thread_local std::map<Context*, Stream*> per_thread;

// Under whose name the functions here are called, where they stand behind another driver's; and whether that call was
// counted.
thread_local const char* face = nullptr;
thread_local bool counted = false;

// What answers as before where the contexts are gone.
bool outlives(const std::string& call) {
  for (const char* one : {"cuInit", "cuDriverGetVersion", "cuCtxGetCurrent", "cuCtxSetCurrent",
                          "cuThreadExchangeStreamCaptureMode", "hipGetDeviceCount", "hipGetDevice", "hipSetDevice",
                          "hipThreadExchangeStreamCaptureMode"})
    if (call == one) return true;
  return call.rfind("cuDevice", 0) == 0 || call.rfind("hipDevice", 0) == 0;
}

// Counts the call; what to answer instead of doing it.
int enter(const char* name) {
  Machine& m = machine();
  if (face) {
    if (counted) return kSuccess;
    name = face;
    counted = true;
  }
  Lock lock(m.lock);
  if (strcmp(name, "cuGetErrorName") == 0) return kSuccess;
  ++m.calls;
  ++m.calls_of[name];
  if (m.dead && !outlives(name)) return m.dead;
  Injected& f = m.injected;
  if (f.function.empty() || (f.function != "*" && f.function != name)) return kSuccess;
  ++f.seen;
  if (f.seen != f.first && !(f.on && f.seen > f.first)) return kSuccess;
  if (m.fired.empty()) m.fired = name;
  return f.code;
}

#define ENTER()                                          \
  if (const int injected = enter(__func__)) return injected; \
  Machine& m = machine();                                \
  Lock lock(m.lock);                                     \
  (void)m

template <class T> T* known(const std::set<T*>& all, void* handle, const char* call, const char* what) {
  if (!all.count((T*)handle)) misuse("%s: %p is no %s, or no longer", call, handle, what);
  return (T*)handle;
}

Context* need_context(const char* call) {
  if (!current) misuse("%s without a current context", call);
  return current;
}

void need_current(Context* context, const char* call, const char* what) {
  if (current != context)
    misuse("%s with a %s of device %d under %s", call, what, context->device,
           current ? ("a context of device " + std::to_string(current->device)).c_str() : "no context");
}

// What drivers refuse to a thread that captures a stream, unless it asked for leniency.
bool forbidden_now() { return captures > 0 && capture_mode != 2; }

std::shared_ptr<Allocation> holder(uint64_t address) {
  Machine& m = machine();
  auto at = m.memory.upper_bound((const char*)address);
  if (at == m.memory.begin()) return nullptr;
  --at;
  const auto& found = at->second;
  return (char*)address < found->start + found->bytes ? found : nullptr;
}

std::shared_ptr<Allocation> range(const char* call, uint64_t address, size_t bytes) {
  auto found = holder(address);
  if (found && address + bytes > uint64_t(found->start) + found->bytes)
    misuse("%s: %zu bytes at %#llx go beyond their allocation", call, bytes, (unsigned long long)address);
  return found;
}

uint64_t new_memory(size_t bytes, Context* context, Pool* pool) {
  auto one = std::make_shared<Allocation>();
  one->start = (char*)aligned_alloc(512, (bytes + 511) / 512 * 512);
  if (!one->start) return 0;
  // What was there before is for nobody to rely on.
  memset(one->start, 0xC7, bytes);
  one->bytes = bytes, one->context = context, one->pool = pool, one->coherent = true;
  one->id = ++machine().ids;
  machine().memory[one->start] = one;
  return uint64_t(one->start);
}

// Whether kernels in the context may touch the memory.
bool reaches(Context* from, const Allocation& memory) {
  if (!memory.context || memory.managed) return true;
  if (memory.mapped) return memory.granted.count(from->device) > 0;
  if (memory.pool) return memory.pool->devices.count(from->device) > 0;
  if (!memory.opened.empty()) return memory.opened.count(from) > 0;
  return memory.context == from || from->peers.count(memory.context) > 0;
}

// Whether all that lies at these addresses may be touched from the context.
bool touches(Context* from, uint64_t address, uint64_t bytes) {
  for (uint64_t at = address; at < address + bytes;) {
    auto one = holder(at);
    if (!one || !reaches(from, *one)) {
      fprintf(stderr, "stand-in driver: a kernel of device %d touches %#llx, %s\n", from->device,
              (unsigned long long)at, !one ? "where no memory is" : "which it may not");
      return false;
    }
    at = uint64_t(one->start) + one->bytes;
  }
  return true;
}

void work(Stream* stream) {
  Machine& m = machine();
  crossccl_cpu_thread_begin();
  Lock lock(m.lock);
  for (;;) {
    stream->more.wait(lock, [&] { return !stream->queue.empty() || stream->destroyed; });
    if (stream->queue.empty()) return;
    Work next = std::move(stream->queue.front());
    stream->queue.pop_front();
    stream->busy = true;
    lock.unlock();
    next.run();
    next.run = nullptr;
    lock.lock();
    for (const auto& one : next.uses)
      if (--one->users[stream] == 0) one->users.erase(stream);
    stream->busy = false;
    m.progress.notify_all();
  }
}

Stream* new_stream(Context* context) {
  auto* stream = new Stream;
  stream->context = context;
  machine().streams.insert(stream);
  // Its signals are the process's business.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread(work, stream).detach();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return stream;
}

// The stream that a handle means here.
Stream* stream_of(void* handle, const char* call) {
  Machine& m = machine();
  if ((uintptr_t)handle > 2) {
    Stream* stream = known(m.streams, handle, call, "stream");
    need_current(stream->context, call, "stream");
    return stream;
  }
  Stream*& one = ((uintptr_t)handle == 2 ? per_thread : m.legacy)[need_context(call)];
  if (!one) one = new_stream(current), m.streams.erase(one);  // not to be counted
  return one;
}

void submit(Stream* stream, Work work) {
  if (stream->capture) {
    stream->capture->of(stream).push_back({Step::kWork, std::move(work), 0});
    return;
  }
  for (const auto& one : work.uses) ++one->users[stream];
  stream->queue.push_back(std::move(work));
  stream->more.notify_one();
}

bool idle(const Stream* stream) { return stream->queue.empty() && !stream->busy; }

void drain(Lock& lock, Stream* stream) {
  machine().progress.wait(lock, [&] { return idle(stream); });
}

void drain_device(Lock& lock, int device) {
  Machine& m = machine();
  m.progress.wait(lock, [&] {
    for (Stream* stream : m.streams)
      if (stream->context->device == device && !idle(stream)) return false;
    return true;
  });
}

// Work begins late, so that whoever does not wait for it shows.
void late() {
  const int delay = machine().delay;
  if (delay) std::this_thread::sleep_for(std::chrono::microseconds(delay));
}

void run_kernel(Entry entry, const Arguments& arguments, unsigned blocks, int device) {
  Machine& m = machine();
  {
    Lock lock(m.lock);
    m.progress.wait(lock, [&] { return m.running[device] + int(blocks) <= m.resident; });
    m.running[device] += int(blocks);
  }
  std::vector<std::thread> others;
  for (unsigned block = 1; block < blocks; ++block)
    others.emplace_back([&, block] {
      crossccl_cpu_thread_begin();
      entry(&arguments, block, blocks);
    });
  entry(&arguments, 0, blocks);
  for (std::thread& one : others) one.join();
  Lock lock(m.lock);
  m.running[device] -= int(blocks);
  m.progress.notify_all();
}

}  // namespace

#ifndef DRIVER
#define DRIVER extern "C" __attribute__((visibility("default")))
#endif

DRIVER int cuInit(unsigned flags) {
  ENTER();
  if (flags) return kInvalidValue;
  m.initialised = true;
  return m.devices > 0 ? kSuccess : 100;
}

DRIVER int cuDriverGetVersion(int* version) {
  ENTER();
  *version = m.version;
  return kSuccess;
}

DRIVER int cuGetErrorName(int code, const char** name) {
  ENTER();
  for (const Named& one : kNames)
    if (one.code == code) return *name = one.name, kSuccess;
  *name = nullptr;
  return kInvalidValue;
}

DRIVER int cuDeviceGetCount(int* count) {
  ENTER();
  if (!m.initialised) misuse("cuDeviceGetCount before cuInit");
  *count = m.devices;
  return kSuccess;
}

DRIVER int cuDeviceGet(int* device, int ordinal) {
  ENTER();
  if (ordinal < 0 || ordinal >= m.devices) return kInvalidDevice;
  *device = ordinal;
  return kSuccess;
}

DRIVER int cuDeviceGetName(char* name, int length, int device) {
  ENTER();
  if (device < 0 || device >= m.devices) return kInvalidDevice;
  snprintf(name, size_t(length), "Stand-in %d", device);
  return kSuccess;
}

DRIVER int cuDeviceGetAttribute(int* value, int which, int device) {
  ENTER();
  if (device < 0 || device >= m.devices) return kInvalidDevice;
  switch (which) {
    case 16: *value = m.resident; return kSuccess;          // MULTIPROCESSOR_COUNT
    case 75: *value = number("STANDIN_CAPABILITY", 9); return kSuccess;  // COMPUTE_CAPABILITY_MAJOR
    case 76: *value = 0; return kSuccess;                   // COMPUTE_CAPABILITY_MINOR
    case 38: *value = 1 << 20; return kSuccess;             // L2_CACHE_SIZE
    case 115: *value = m.pools_supported; return kSuccess;  // MEMORY_POOLS_SUPPORTED
    default: misuse("cuDeviceGetAttribute: teach the stand-in the attribute %d", which);
  }
}

DRIVER int cuDeviceGetPCIBusId(char* text, int length, int device) {
  ENTER();
  if (device < 0 || device >= m.devices) return kInvalidDevice;
  snprintf(text, size_t(length), "0000:%02X:00.0", device + 1);
  return kSuccess;
}

DRIVER int cuDeviceGetP2PAttribute(int* value, int which, int from, int to) {
  ENTER();
  if (from < 0 || from >= m.devices || to < 0 || to >= m.devices || from == to) return kInvalidDevice;
  if (which != 1 && which != 3) misuse("%s: teach the stand-in the attribute %d", __func__, which);
  *value = which == 1 ? 2 : 0;  // PERFORMANCE_RANK, NATIVE_ATOMIC_SUPPORTED
  return kSuccess;
}

DRIVER int cuDevicePrimaryCtxRetain(void** context, int device) {
  ENTER();
  if (device < 0 || device >= m.devices) return kInvalidDevice;
  Context*& one = m.primary[size_t(device)];
  if (!one) m.contexts.insert(one = new Context{device, {}});
  ++m.retained[size_t(device)];
  *context = one;
  return kSuccess;
}

DRIVER int cuDevicePrimaryCtxRelease_v2(int device) {
  ENTER();
  if (device < 0 || device >= m.devices || m.retained[size_t(device)] == 0) return kInvalidContext;
  if (--m.retained[size_t(device)] > 0) return kSuccess;
  // With the last user it goes, and everything of it.
  Context*& one = m.primary[size_t(device)];
  for (const auto& memory : m.memory)
    if (memory.second->context == one) misuse("%s: memory is left in the context", __func__);
  for (Stream* stream : m.streams)
    if (stream->context == one) misuse("%s: a stream is left in the context", __func__);
  for (Module* module : m.modules)
    if (module->context == one) misuse("%s: a module is left in the context", __func__);
  if (current == one) misuse("%s: it is current", __func__);
  m.contexts.erase(one);
  one = nullptr;
  return kSuccess;
}

DRIVER int cuCtxGetCurrent(void** context) {
  ENTER();
  *context = current;
  return kSuccess;
}

DRIVER int cuCtxSetCurrent(void* context) {
  ENTER();
  current = context ? known(m.contexts, context, __func__, "context") : nullptr;
  return kSuccess;
}

DRIVER int cuDeviceCanAccessPeer(int* can, int from, int to) {
  ENTER();
  if (from < 0 || to < 0 || from >= m.devices || to >= m.devices) return kInvalidDevice;
  *can = from != to && !m.unreachable.count({from, to});
  return kSuccess;
}

DRIVER int cuCtxEnablePeerAccess(void* peer, unsigned flags) {
  ENTER();
  Context* to = known(m.contexts, peer, __func__, "context");
  Context* from = need_context(__func__);
  if (flags) return kInvalidValue;
  if (from->device == to->device || m.unreachable.count({from->device, to->device})) return kPeerAccessUnsupported;
  return from->peers.insert(to).second ? kSuccess : kPeerAccessAlreadyEnabled;
}

// The layouts that src/backend/cuda/driver.rs declares.
struct Location {
  unsigned kind;
  int id;
};
struct PoolProperties {
  unsigned allocation, handles;
  Location location;
};
struct PoolAccess {
  Location location;
  unsigned flags;
};

DRIVER int cuMemPoolCreate(void** pool, const PoolProperties* properties) {
  ENTER();
  if (!m.pools_supported) return kNotSupported;
  const Location& at = properties->location;
  if (properties->allocation != 1 || at.kind != 1 || at.id < 0 || at.id >= m.devices) return kInvalidValue;
  auto* one = new Pool{at.id, {at.id}};
  m.pools.insert(one);
  *pool = one;
  return kSuccess;
}

DRIVER int cuMemPoolDestroy(void* pool) {
  ENTER();
  m.pools.erase(known(m.pools, pool, __func__, "pool"));
  return kSuccess;
}

DRIVER int cuMemPoolSetAttribute(void* pool, int which, void* value) {
  ENTER();
  known(m.pools, pool, __func__, "pool");
  if (which != 4 || !value) return kInvalidValue;  // RELEASE_THRESHOLD
  return kSuccess;
}

DRIVER int cuMemPoolSetAccess(void* pool, const PoolAccess* access, size_t count) {
  ENTER();
  Pool* one = known(m.pools, pool, __func__, "pool");
  if (forbidden_now()) return kCaptureUnsupported;
  for (size_t i = 0; i < count; ++i) {
    const Location& at = access[i].location;
    if (at.kind != 1 || at.id < 0 || at.id >= m.devices || access[i].flags != 3) return kInvalidValue;
    if (m.unreachable.count({at.id, one->device})) return kPeerAccessUnsupported;
    one->devices.insert(at.id);
  }
  return kSuccess;
}

DRIVER int cuMemAllocFromPoolAsync(uint64_t* address, size_t bytes, void* pool, void* stream) {
  ENTER();
  Pool* from = known(m.pools, pool, __func__, "pool");
  Stream* in = stream_of(stream, __func__);
  if (in->context->device != from->device) misuse("%s: a pool of another device than the stream's", __func__);
  if (in->capture || forbidden_now()) return kCaptureUnsupported;
  if (bytes == 0) return kInvalidValue;
  return (*address = new_memory(bytes, in->context, from)) ? kSuccess : kOutOfMemory;
}

DRIVER int cuMemFreeAsync(uint64_t address, void* stream) {
  ENTER();
  auto one = holder(address);
  if (!one || uint64_t(one->start) != address || !one->context)
    misuse("%s: %#llx is no allocation, or no longer", __func__, (unsigned long long)address);
  Stream* in = stream_of(stream, __func__);
  for (const auto& user : one->users)
    if (user.first != in) misuse("%s: memory that another stream has work queued on", __func__);
  m.memory.erase(one->start);
  submit(in, {[one] { free(one->start); }, {}});
  return kSuccess;
}

DRIVER int cuMemAlloc_v2(uint64_t* address, size_t bytes) {
  ENTER();
  if (forbidden_now()) return kCaptureUnsupported;
  Context* context = need_context(__func__);
  if (bytes == 0) return kInvalidValue;
  return (*address = new_memory(bytes, context, nullptr)) ? kSuccess : kOutOfMemory;
}

DRIVER int cuMemFree_v2(uint64_t address) {
  ENTER();
  if (forbidden_now()) return kCaptureUnsupported;
  auto one = holder(address);
  if (!one || uint64_t(one->start) != address || !one->context)
    misuse("%s: %#llx is no allocation, or no longer", __func__, (unsigned long long)address);
  need_context(__func__);
  drain_device(lock, one->context->device);
  for (const auto& user : one->users)
    if (!idle(user.first)) misuse("%s: memory that another device has work queued on", __func__);
  m.memory.erase(one->start);
  free(one->start);
  return kSuccess;
}

DRIVER int cuMemHostAlloc(void** address, size_t bytes, unsigned flags) {
  ENTER();
  if (forbidden_now()) return kCaptureUnsupported;
  need_context(__func__);
  // PORTABLE and DEVICEMAP: otherwise other devices do not reach it.
  if (bytes == 0 || (flags & 3) != 3) return kInvalidValue;
  return (*address = (void*)new_memory(bytes, nullptr, nullptr)) ? kSuccess : kOutOfMemory;
}

DRIVER int cuMemcpyAsync(uint64_t to, uint64_t from, size_t bytes, void* stream) {
  Lock submitting;
  ENTER();
  Stream* in = stream_of(stream, __func__);
  auto target = range(__func__, to, bytes), source = range(__func__, from, bytes);
  Work copy;
  for (const auto& one : {target, source})
    if (one) {
      if (!reaches(in->context, *one)) misuse("%s: memory that its device may not touch", __func__);
      copy.uses.push_back(one);
    }
  // From ordinary host memory: read before the call returns.
  std::shared_ptr<std::vector<char>> staged;
  if (!source) staged = std::make_shared<std::vector<char>>((const char*)from, (const char*)from + bytes);
  copy.run = [=] {
    late();
    memcpy((void*)to, staged ? staged->data() : (const char*)from, bytes);
  };
  if (!target) {
    if (in->capture) return kCaptureUnsupported;
    lock.unlock();
    submitting = Lock(m.submitting);
    lock.lock();
  }
  submit(in, std::move(copy));
  if (!target) drain(lock, in);
  return kSuccess;
}

DRIVER int cuMemsetD8Async(uint64_t to, uint8_t byte, size_t bytes, void* stream) {
  ENTER();
  Stream* in = stream_of(stream, __func__);
  auto target = range(__func__, to, bytes);
  if (!target || !reaches(in->context, *target)) misuse("%s: memory that its device may not touch", __func__);
  submit(in, {[=] {
                late();
                memset((void*)to, byte, bytes);
              },
              {target}});
  return kSuccess;
}

DRIVER int cuModuleLoadData(void** module, const void* image) {
  ENTER();
  if (forbidden_now()) return kCaptureUnsupported;
  Context* context = need_context(__func__);
  if (*(const uint32_t*)image != 0xba55ed50u) return 200;  // INVALID_IMAGE: not a fatbin
  drain_device(lock, context->device);
  auto* one = new Module{context};
  m.modules.insert(one);
  *module = one;
  return kSuccess;
}

DRIVER int cuModuleUnload(void* module) {
  ENTER();
  Module* one = known(m.modules, module, __func__, "module");
  need_current(one->context, __func__, "module");
  for (auto at = m.functions.begin(); at != m.functions.end();) at = (*at)->module == one ? m.functions.erase(at) : ++at;
  m.modules.erase(one);
  return kSuccess;
}

DRIVER int cuModuleGetFunction(void** function, void* module, const char* name) {
  ENTER();
  Module* in = known(m.modules, module, __func__, "module");
  for (size_t i = 0; i < crossccl_cpu_kernel_count(); ++i) {
    if (strcmp(crossccl_cpu_kernel_name(i), name)) continue;
    auto* one = new Function{in, name, crossccl_cpu_kernel_entry(i)};
    m.functions.insert(one);
    *function = one;
    return kSuccess;
  }
  return kNotFound;
}

DRIVER int cuFuncLoad(void* function) {
  ENTER();
  Function* one = known(m.functions, function, __func__, "function");
  need_current(one->module->context, __func__, "function");
  one->loaded = true;
  return kSuccess;
}

DRIVER int cuFuncGetAttribute(int* value, int which, void* function) {
  ENTER();
  Function* one = known(m.functions, function, __func__, "function");
  need_current(one->module->context, __func__, "function");
  if (which != 4 && which != 5) misuse("cuFuncGetAttribute: teach the stand-in the attribute %d", which);
  one->loaded = true;
  *value = which == 4 ? 64 : number("STANDIN_PTX_VERSION", 90);  // NUM_REGS, PTX_VERSION
  return kSuccess;
}

DRIVER int cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, void* function, int threads, size_t shared) {
  ENTER();
  Function* one = known(m.functions, function, __func__, "function");
  need_current(one->module->context, __func__, "function");
  if (threads != int(kThreads) || shared) misuse("%s: %d threads, %zu bytes shared", __func__, threads, shared);
  *blocks = 1;
  return kSuccess;
}

DRIVER int cuStreamCreate(void** stream, unsigned flags) {
  ENTER();
  Context* context = need_context(__func__);
  if (flags != 1) misuse("%s: a stream that waits for the legacy stream", __func__);
  *stream = new_stream(context);
  return kSuccess;
}

DRIVER int cuStreamDestroy_v2(void* stream) {
  ENTER();
  Stream* one = known(m.streams, stream, __func__, "stream");
  need_current(one->context, __func__, "stream");
  m.streams.erase(one);
  // What is queued is still done.
  one->destroyed = true;
  one->more.notify_one();
  return kSuccess;
}

DRIVER int cuStreamSynchronize(void* stream) {
  ENTER();
  Stream* one = stream_of(stream, __func__);
  if (one->capture) return one->capture->invalidated = true, kCaptureUnsupported;
  drain(lock, one);
  return kSuccess;
}

DRIVER int cuEventCreate(void** event, unsigned flags) {
  ENTER();
  Context* context = need_context(__func__);
  if (flags & ~2u) misuse("%s: flags of %u", __func__, flags);
  auto* one = new Event{};
  one->context = context;
  one->timed = flags == 0;
  m.events.insert(one);
  *event = one;
  return kSuccess;
}

DRIVER int cuEventRecord(void* event, void* stream) {
  ENTER();
  Event* one = known(m.events, event, __func__, "event");
  Stream* in = stream_of(stream, __func__);
  if (one->context != in->context) misuse("%s: an event of another context than the stream's", __func__);
  one->captured = in->capture;
  if (in->capture) {
    one->number = in->capture->events++;
    in->capture->of(in).push_back({Step::kRecord, {}, one->number});
    return kSuccess;
  }
  const uint64_t point = ++one->recorded;
  submit(in, {[&m, one, point] {
                Lock lock(m.lock);
                if (one->passed < point) one->passed = point;
                one->at = std::chrono::steady_clock::now();
                m.progress.notify_all();
              },
              {}});
  return kSuccess;
}

DRIVER int cuEventQuery(void* event) {
  {
    // How often somebody asks in vain is a matter of time, and `*` counts what is the same in every run.
    Machine& m = machine();
    Lock lock(m.lock);
    Event* one = known(m.events, event, __func__, "event");
    const bool pending = one->passed < one->recorded && !one->captured;
    if (!m.dead && m.injected.function != (face ? face : __func__) && pending) return kNotReady;
  }
  ENTER();
  Event* one = known(m.events, event, __func__, "event");
  need_current(one->context, __func__, "event");
  if (one->captured) return kCapturedEvent;
  return one->passed >= one->recorded ? kSuccess : kNotReady;
}

DRIVER int cuEventElapsedTime(float* milliseconds, void* start, void* end) {
  ENTER();
  Event* from = known(m.events, start, __func__, "event");
  Event* to = known(m.events, end, __func__, "event");
  if (!from->timed || !to->timed) misuse("%s: an event that takes no time", __func__);
  if (from->context != to->context) misuse("%s: events of two contexts", __func__);
  if (from->passed < from->recorded || to->passed < to->recorded) return kNotReady;
  *milliseconds = std::chrono::duration<float, std::milli>(to->at - from->at).count();
  return kSuccess;
}

DRIVER int cuEventDestroy_v2(void* event) {
  ENTER();
  m.events.erase(known(m.events, event, __func__, "event"));
  return kSuccess;
}

DRIVER int cuStreamWaitEvent(void* stream, void* event, unsigned flags) {
  ENTER();
  Stream* in = stream_of(stream, __func__);
  Event* one = known(m.events, event, __func__, "event");
  if (flags) return kInvalidValue;
  if (one->captured && (!in->capture || in->capture == one->captured)) {
    if (one->captured->branches.empty()) return kCapturedEvent;  // That capture has ended.
    in->capture = one->captured;
    in->capture->of(in).push_back({Step::kAwait, {}, one->number});
    in->capture->awaited.insert(one->number);
    return kSuccess;
  }
  if (in->capture) return in->capture->invalidated = true, kCaptureIsolation;
  const uint64_t point = one->recorded;
  submit(in, {[&m, one, point] {
                Lock lock(m.lock);
                m.progress.wait(lock, [&] { return one->passed >= point; });
              },
              {}});
  return kSuccess;
}

// Launches that may start early; they do not here, where a stream is a thread.
int overlapping = 0;

// With this alignment and these fields in every version.
struct LaunchAttribute {
  int id, pad;
  union {
    char bytes[64];
    int overlaps;
  };
};
struct LaunchConfig {
  unsigned grid[3], block[3], shared_bytes;
  void* stream;
  const LaunchAttribute* attributes;
  unsigned attribute_count;
};

// The caller's memory that a launch is about, by its arguments (abi.h; src/raw.rs fills them).
std::vector<std::pair<uint64_t, uint64_t>> touched(const Arguments& a) {
  // By DType's numbers, as src/collective packs them, and by Form.
  static const uint64_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2}, forms[] = {0, 2, 2, 4, 8};
  std::vector<std::pair<uint64_t, uint64_t>> all;
  const bool broadcast = (a.packed & 0xff) == crossccl::kBroadcast;
  const uint64_t part = broadcast ? a.bytes : a.outer * a.run * (a.form ? forms[a.form] : sizes[a.packed >> 8 & 0xff]);
  if (a.input && a.bytes) all.push_back({a.input, a.bytes});
  if (a.output && part) all.push_back({a.output, part});
  if (a.residual && part) all.push_back({a.residual, part});
  return all;
}

DRIVER int cuLaunchKernelEx(const LaunchConfig* config, void* function, void** parameters, void** extra) {
  Lock submitting(machine().submitting);
  ENTER();
  Function* kernel = known(m.functions, function, __func__, "function");
  Stream* in = stream_of(config->stream, __func__);
  need_current(kernel->module->context, __func__, "function");
  const char* name = kernel->name.c_str();
  if (!kernel->loaded) misuse("%s is loaded by its first launch", name);
  const unsigned blocks = config->grid[0];
  if (blocks == 0 || blocks > crossccl::kMaxBlocks || config->grid[1] != 1 || config->grid[2] != 1)
    misuse("%s: a grid of %u, %u, %u", name, blocks, config->grid[1], config->grid[2]);
  if (int(blocks) > m.resident) misuse("%s: %u blocks where %d are resident", name, blocks, m.resident);
  if (config->block[0] != kThreads || config->block[1] != 1 || config->block[2] != 1)
    misuse("%s: a block of %u, %u, %u", name, config->block[0], config->block[1], config->block[2]);
  if (config->shared_bytes) misuse("%s: shared memory", name);
  if (config->attribute_count) {
    const LaunchAttribute& one = *config->attributes;
    if (config->attribute_count != 1 || one.id != 6 || one.overlaps != 1) misuse("%s: a launch attribute of %d", name, one.id);
    if (number("STANDIN_PTX_VERSION", 90) < 90) misuse("%s: may overlap, and its code does not wait", name);
    ++overlapping;
  }
  if (!parameters || !parameters[0] || extra) misuse("%s: without its arguments", name);

  auto arguments = std::make_shared<Arguments>(*(const Arguments*)parameters[0]);
  Work launch;
  std::vector<Context*> peers;
  for (uint64_t& signal : arguments->signal) {
    if (!signal) continue;
    auto one = holder(signal);
    if (!one || !one->context) misuse("%s: %#llx is no signal buffer", name, (unsigned long long)signal);
    if (!one->mapped && !reaches(in->context, *one))
      misuse("%s: device %d may not touch memory of device %d", name, in->context->device, one->context->device);
    // Kernels of that device run in its primary context, wherever the memory is from.
    peers.push_back(m.primary[size_t(one->context->device)]);
    launch.uses.push_back(one);
    const std::pair<int, int> pair = {in->context->device, one->context->device};
    const bool writes = kernel->name == "self_test_write", reads = kernel->name == "self_test_read";
    if (((writes || reads) && m.lost.count(pair)) || (reads && m.unread.count(pair))) {
      uint64_t& other = m.elsewhere[{pair.first, signal}];
      if (!other) other = new_memory(one->bytes, in->context, nullptr);
      signal = other;
    }
  }
  if (peers.empty()) misuse("%s: no signal buffers", name);
  if (arguments->control) {
    if (!holder(arguments->control)) misuse("%s: %#llx is no control", name, (unsigned long long)arguments->control);
    launch.uses.push_back(holder(arguments->control));
  }
  const auto ranges = touched(*arguments);
  for (const auto& [address, bytes] : ranges)
    for (uint64_t at = address; at < address + bytes;) {
      auto one = holder(at);
      if (!one) break;
      launch.uses.push_back(one);
      at = uint64_t(one->start) + one->bytes;
    }
  const Entry entry = kernel->entry;
  const int device = in->context->device;
  const std::vector<uint64_t> signals(arguments->signal, arguments->signal + crossccl::kMaxRanks);
  launch.run = [=, &m] {
    late();
    {
      Lock lock(m.lock);
      // Each peer is held to all of a rank's memory, though it reads a part. What a graph was made of is asked in each
      // launch.
      bool fine = true;
      for (uint64_t signal : signals) fine = fine && (!signal || touches(in->context, signal, 1));
      for (const auto& [address, bytes] : ranges)
        for (Context* peer : peers) fine = fine && touches(peer, address, bytes);
      if (!fine) m.dead = kIllegalAddress;
      if (m.dead) return m.progress.notify_all();
    }
    run_kernel(entry, *arguments, blocks, device);
  };
  submit(in, std::move(launch));
  return kSuccess;
}

DRIVER int cuStreamGetFlags(void* stream, unsigned* flags) {
  ENTER();
  stream_of(stream, __func__);
  *flags = (uintptr_t)stream > 2;  // Those that are made here are non-blocking.
  return kSuccess;
}

DRIVER int cuStreamGetCtx(void* stream, void** context) {
  ENTER();
  // Of any context, whatever is current; default streams have none.
  if ((uintptr_t)stream <= 2) misuse("cuStreamGetCtx: a default stream");
  *context = known(machine().streams, stream, __func__, "stream")->context;
  return kSuccess;
}

DRIVER int cuCtxGetDevice(int* device) {
  ENTER();
  *device = need_context(__func__)->device;
  return kSuccess;
}

DRIVER int cuStreamIsCapturing(void* stream, int* status) {
  ENTER();
  if ((uintptr_t)stream < 2 && captures > 0) return kCaptureImplicit;
  Stream* in = stream_of(stream, __func__);
  *status = !in->capture ? 0 : in->capture->invalidated ? 2 : 1;
  return kSuccess;
}

DRIVER int cuThreadExchangeStreamCaptureMode(int* mode) {
  ENTER();
  if (*mode < 0 || *mode > 2) return kInvalidValue;
  std::swap(*mode, capture_mode);
  return kSuccess;
}

DRIVER int cuStreamBeginCapture_v2(void* stream, int mode) {
  ENTER();
  Stream* in = stream_of(stream, __func__);
  if (in->capture || (uintptr_t)stream < 2) return kCaptureUnsupported;
  if (mode != 1) misuse("%s: other threads could not allocate meanwhile", __func__);  // THREAD_LOCAL
  in->capture = std::make_shared<Capture>();
  in->capture->of(in);
  ++captures;
  return kSuccess;
}

DRIVER int cuStreamEndCapture(void* stream, void** graph) {
  // Under any context; and it ends the capture even where it fails.
  Stream* in = known(machine().streams, stream, __func__, "stream");
  auto capture = in->capture;
  const bool origin = capture && capture->branches.front().stream == in;
  std::vector<Capture::Branch> branches;
  if (origin) {
    branches.swap(capture->branches);
    for (const auto& one : branches) one.stream->capture = nullptr;
    --captures;
  }
  *graph = nullptr;
  ENTER();
  if (!origin) return kInvalidValue;
  if (capture->invalidated) return kCaptureInvalidated;
  for (const auto& one : branches)
    if (one.stream != in && (one.steps.back().kind != Step::kRecord || !capture->awaited.count(one.steps.back().event)))
      return kCaptureUnjoined;
  auto* one = new Graph{std::move(branches), capture->events};
  m.graphs.insert(one);
  *graph = one;
  return kSuccess;
}

DRIVER int cuGraphInstantiateWithFlags(void** executable, void* graph, unsigned long long flags) {
  ENTER();
  Graph* from = known(m.graphs, graph, __func__, "graph");
  if (forbidden_now()) return kCaptureUnsupported;
  if (flags) return kInvalidValue;
  auto* one = new Graph{from->branches, from->events};
  for (size_t i = 1; i < one->branches.size(); ++i) {
    one->helpers.push_back(new_stream(one->branches[i].stream->context));
    m.streams.erase(one->helpers.back());  // not to be counted
  }
  m.executables.insert(one);
  *executable = one;
  return kSuccess;
}

DRIVER int cuGraphLaunch(void* executable, void* stream) {
  Lock submitting(machine().submitting);
  ENTER();
  Graph* one = known(m.executables, executable, __func__, "executable graph");
  Stream* in = stream_of(stream, __func__);
  if (in->capture) misuse("%s: into a capture", __func__);
  auto passed = std::make_shared<std::vector<bool>>(one->events);
  for (size_t i = 0; i < one->branches.size(); ++i)
    for (const Step& step : one->branches[i].steps) {
      Work work = step.work;
      for (const auto& used : work.uses)
        if (m.memory.count(used->start) == 0 || m.memory[used->start] != used)
          misuse("%s: a graph whose memory is gone", __func__);
      const size_t event = step.event;
      if (step.kind == Step::kRecord) work.run = [&m, passed, event] {
          Lock lock(m.lock);
          (*passed)[event] = true;
          m.progress.notify_all();
        };
      if (step.kind == Step::kAwait) work.run = [&m, passed, event] {
          Lock lock(m.lock);
          m.progress.wait(lock, [&] { return bool((*passed)[event]); });
        };
      submit(i == 0 ? in : one->helpers[i - 1], std::move(work));
    }
  return kSuccess;
}

DRIVER int cuGraphDestroy(void* graph) {
  ENTER();
  m.graphs.erase(known(m.graphs, graph, __func__, "graph"));
  return kSuccess;
}

DRIVER int cuGraphExecDestroy(void* executable) {
  ENTER();
  Graph* one = known(m.executables, executable, __func__, "executable graph");
  m.executables.erase(one);
  // What is queued is still done.
  for (Stream* helper : one->helpers) helper->destroyed = true, helper->more.notify_one();
  return kSuccess;
}

// What drivers answer about each kind of memory, right or not (measured on two H200, driver 580).
int pointer_attribute(void* to, int which, uint64_t address) {
  auto one = holder(address);
  const bool device = one && one->context;
  switch (which) {
    case 2: *(unsigned*)to = !one ? 0 : device ? 2 : 1; return kSuccess;                 // MEMORY_TYPE
    case 3:                                                                              // DEVICE_POINTER
      if (!current) return kInvalidContext;
      if (!one || !reaches(current, *one)) return *(uint64_t*)to = 0, kInvalidValue;
      *(uint64_t*)to = address;
      return kSuccess;
    // Of mapped memory it is one for all that is ever mapped there.
    case 7: *(uint64_t*)to = !one ? 0 : one->mapped ? one->mapped->id : one->id; return kSuccess;  // BUFFER_ID
    case 8: *(unsigned*)to = one && one->managed; return kSuccess;                       // IS_MANAGED
    case 9: *(int*)to = device ? one->context->device : -2; return kSuccess;             // DEVICE_ORDINAL
    case 10:                                                                             // IS_LEGACY_CUDA_IPC_CAPABLE
      *(unsigned*)to = device && !one->pool && !one->mapped && !one->managed && one->opened.empty();
      return kSuccess;
    case 11: *(uint64_t*)to = !one ? 0 : uint64_t(one->mapped ? one->mapped->start : one->start); return kSuccess;
    case 12: *(size_t*)to = !one ? 0 : one->mapped ? one->mapped->bytes : one->bytes; return kSuccess;  // RANGE_SIZE
    case 16:  // ACCESS_FLAGS: of a pool it says yes before the pool does.
      *(unsigned*)to = !one ? 0 : one->pool || (current && reaches(current, *one)) ? 3 : 0;
      return kSuccess;
    case 17: *(void**)to = one ? (void*)one->pool : nullptr; return kSuccess;            // MEMPOOL_HANDLE
    case 18: *(size_t*)to = one ? one->bytes : 0; return kSuccess;                       // MAPPING_SIZE
    case 19: *(uint64_t*)to = one ? uint64_t(one->start) : 0; return kSuccess;           // MAPPING_BASE_ADDR
    default: misuse("cuPointerGetAttribute: teach the stand-in the attribute %d", which);
  }
}

DRIVER int cuPointerGetAttribute(void* to, int which, uint64_t address) {
  ENTER();
  if (!holder(address)) return kInvalidValue;
  return pointer_attribute(to, which, address);
}

// What cannot be answered is zero here, and no error.
DRIVER int cuPointerGetAttributes(unsigned count, const int* which, void** answers, uint64_t address) {
  ENTER();
  for (unsigned i = 0; i < count; ++i) pointer_attribute(answers[i], which[i], address);
  return kSuccess;
}

// Virtual memory management: only what is granted is reached, by the device that has the memory too. Pieces are a page
// at least, and are mapped, granted and unmapped whole.
constexpr size_t kPage = 4096;
struct PhysicalProperties {
  unsigned allocation, handles;
  Location location;
};

DRIVER int cuMemAddressReserve(uint64_t* address, size_t bytes, size_t, uint64_t, unsigned long long flags) {
  ENTER();
  if (bytes == 0 || bytes % kPage || flags) return kInvalidValue;
  auto* one = new Reserved{(char*)aligned_alloc(kPage, bytes), bytes, ++m.ids};
  if (!one->start) return kOutOfMemory;
  m.reserved.insert(one);
  *address = uint64_t(one->start);
  return kSuccess;
}

DRIVER int cuMemAddressFree(uint64_t address, size_t bytes) {
  ENTER();
  for (Reserved* one : m.reserved)
    if (uint64_t(one->start) == address && one->bytes == bytes) {
      for (const auto& memory : m.memory)
        if (memory.second->mapped == one) misuse("%s: something is mapped there", __func__);
      m.reserved.erase(one);
      free(one->start);
      return kSuccess;
    }
  return kInvalidValue;
}

DRIVER int cuMemCreate(void** handle, size_t bytes, const PhysicalProperties* properties, unsigned long long flags) {
  ENTER();
  const Location& at = properties->location;
  if (properties->allocation != 1 || at.kind != 1 || at.id < 0 || at.id >= m.devices || flags) return kInvalidValue;
  if (bytes == 0 || bytes % kPage) return kInvalidValue;
  m.physical.insert(static_cast<Physical*>(*handle = new Physical{at.id, bytes}));
  return kSuccess;
}

DRIVER int cuMemRelease(void* handle) {
  ENTER();
  // What is mapped stays.
  m.physical.erase(known(m.physical, handle, __func__, "memory"));
  return kSuccess;
}

DRIVER int cuMemMap(uint64_t address, size_t bytes, size_t offset, void* handle, unsigned long long flags) {
  ENTER();
  Physical* from = known(m.physical, handle, __func__, "memory");
  if (offset || flags || bytes != from->bytes || address % kPage) return kInvalidValue;
  Reserved* in = nullptr;
  for (Reserved* one : m.reserved)
    if (address >= uint64_t(one->start) && address + bytes <= uint64_t(one->start) + one->bytes) in = one;
  if (!in) return kInvalidValue;
  for (uint64_t at = address; at < address + bytes; at += kPage)
    if (holder(at)) return kInvalidValue;
  Context*& context = m.primary[size_t(from->device)];
  if (!context) m.contexts.insert(context = new Context{from->device, {}});
  auto one = std::make_shared<Allocation>();
  one->start = (char*)address, one->bytes = bytes, one->context = context, one->pool = nullptr, one->coherent = true;
  one->mapped = in;
  memset(one->start, 0xC7, bytes);
  m.memory[one->start] = one;
  return kSuccess;
}

DRIVER int cuMemUnmap(uint64_t address, size_t bytes) {
  ENTER();
  for (uint64_t at = address; at < address + bytes;) {
    auto one = holder(at);
    if (!one || !one->mapped || uint64_t(one->start) != at || at + one->bytes > address + bytes) return kInvalidValue;
    if (!one->users.empty()) misuse("%s: memory that a stream has work queued on", __func__);
    at += one->bytes;
    m.memory.erase(one->start);
  }
  return kSuccess;
}

// Of what is not mapped it says no, whoever reaches it.
DRIVER int cuMemGetAccess(unsigned long long* flags, const Location* at, uint64_t address) {
  ENTER();
  if (at->kind != 1 || at->id < 0 || at->id >= m.devices) return kInvalidValue;
  auto one = holder(address);
  if (!one) return kInvalidValue;
  *flags = one->mapped && one->granted.count(at->id) ? 3 : 0;
  return kSuccess;
}

DRIVER int cuMemSetAccess(uint64_t address, size_t bytes, const PoolAccess* access, size_t count) {
  ENTER();
  if (forbidden_now()) return kCaptureUnsupported;
  if (bytes == 0) return kInvalidValue;
  std::vector<std::shared_ptr<Allocation>> pieces;
  // Whole ones, without a hole.
  for (uint64_t at = address; at < address + bytes;) {
    auto one = holder(at);
    if (!one || !one->mapped || uint64_t(one->start) != at || at + one->bytes > address + bytes) return kInvalidValue;
    at += one->bytes;
    pieces.push_back(one);
  }
  for (size_t i = 0; i < count; ++i) {
    const Location& at = access[i].location;
    if (at.kind != 1 || at.id < 0 || at.id >= m.devices) return kInvalidValue;
    if (access[i].flags != 3 && access[i].flags != 0) return kInvalidValue;
    for (const auto& one : pieces) {
      if (m.unreachable.count({at.id, one->context->device})) return kPeerAccessUnsupported;
      if (access[i].flags) one->granted.insert(at.id); else one->granted.erase(at.id);
    }
  }
  return kSuccess;
}

// Memory that only tests have: the backend never asks for it.
DRIVER int cuMemAllocManaged(uint64_t* address, size_t bytes, unsigned flags) {
  ENTER();
  Context* context = need_context(__func__);
  if (bytes == 0 || flags != 1) return kInvalidValue;
  *address = new_memory(bytes, context, nullptr);
  holder(*address)->managed = true;
  return kSuccess;
}

// Of a process that is only thought of.
DRIVER int cuIpcOpenMemHandle_v2(uint64_t* address, const char*, unsigned) {
  ENTER();
  Context* context = need_context(__func__);
  *address = new_memory(1 << 16, context, nullptr);
  holder(*address)->opened = {context};
  return kSuccess;
}

DRIVER int cuMemHostRegister_v2(void* address, size_t bytes, unsigned) {
  ENTER();
  auto one = std::make_shared<Allocation>();
  one->start = (char*)address, one->bytes = bytes, one->context = nullptr, one->pool = nullptr, one->coherent = true;
  m.memory[one->start] = one;
  return kSuccess;
}

// For tests.

// As STANDIN_FAIL, counted from now on; nothing: no fault. Also begins to count calls anew.
DRIVER void standin_arm(const char* text) {
  Machine& m = machine();
  Lock lock(m.lock);
  m.arm(text);
}

// The function whose call was made to fail since then, or "".
DRIVER const char* standin_fired() {
  Machine& m = machine();
  Lock lock(m.lock);
  return m.fired.c_str();
}

DRIVER uint64_t standin_calls() {
  Machine& m = machine();
  Lock lock(m.lock);
  return m.calls;
}

// A context of the caller's own on a device, made current by nobody.
DRIVER void* standin_context(int device) {
  Machine& m = machine();
  Lock lock(m.lock);
  auto* one = new Context{device, {}};
  m.contexts.insert(one);
  return one;
}

// Of one function.
DRIVER uint64_t standin_calls_of(const char* name) {
  Machine& m = machine();
  Lock lock(m.lock);
  return m.calls_of[name];
}

DRIVER int standin_overlapping() { return overlapping; }

DRIVER int standin_capture_mode() { return capture_mode; }

// How many there are.
DRIVER uint64_t standin_alive(const char* what) {
  Machine& m = machine();
  Lock lock(m.lock);
  const std::string name = what;
  uint64_t count = 0;
  if (name == "contexts")
    for (int n : m.retained) count += uint64_t(n);
  else if (name == "pools")
    count = m.pools.size();
  else if (name == "streams")
    count = m.streams.size();
  else if (name == "events")
    count = m.events.size();
  else if (name == "modules")
    count = m.modules.size();
  else if (name == "graphs")
    count = m.graphs.size() + m.executables.size();
  else if (name == "allocations" || name == "pinned")
    for (const auto& one : m.memory) count += (one.second->context != nullptr) == (name == "allocations");
  else
    misuse("standin_alive: of what? %s", what);
  return count;
}
