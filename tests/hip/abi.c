/* The numbers of src/backend/hip/sys.rs against the headers of HIP. `scripts/check-hip-abi` takes them from there, each
   as SYS_ and its name, and compiles this, which is all: a difference is an error of the compiler. */
#define __HIP_PLATFORM_AMD__ 1
#include <hip/hip_runtime_api.h>
#include <hip/hip_version.h>
#include <hsa/hsa_ext_amd.h>
#include <stddef.h>
#include <stdint.h>

#define SAME(ours, theirs) _Static_assert((long long)(ours) == (long long)(theirs), #ours " is not " #theirs)
#define SIZED(type, bytes) _Static_assert(sizeof(type) == (bytes), #type " has other bytes than " #bytes)

/* What sys.rs takes them for. */
SIZED(hipError_t, 4);
SIZED(hipDeviceAttribute_t, 4);
SIZED(hipMemcpyKind, 4);
SIZED(hipStreamCaptureMode, 4);
SIZED(hipStreamCaptureStatus, 4);
SIZED(hipStream_t, 8);
SIZED(size_t, 8);
/* MemoryLocation and MemoryAccess. */
SIZED(hipMemLocation, 8);
SAME(4, offsetof(hipMemLocation, id));
SIZED(hipMemAccessDesc, 12);
SAME(8, offsetof(hipMemAccessDesc, flags));

SAME(SYS_SUCCESS, hipSuccess);
SAME(SYS_INVALID_VALUE, hipErrorInvalidValue);
SAME(SYS_OUT_OF_MEMORY, hipErrorOutOfMemory);
SAME(SYS_NO_DEVICE, hipErrorNoDevice);
SAME(SYS_INVALID_DEVICE, hipErrorInvalidDevice);
SAME(SYS_NOT_READY, hipErrorNotReady);
SAME(SYS_PEER_ACCESS_ALREADY_ENABLED, hipErrorPeerAccessAlreadyEnabled);
SAME(SYS_NOT_SUPPORTED, hipErrorNotSupported);

SAME(SYS_MULTIPROCESSORS, hipDeviceAttributeMultiprocessorCount);
SAME(SYS_L2_CACHE, hipDeviceAttributeL2CacheSize);
SAME(SYS_LINK_XGMI, HSA_AMD_LINK_INFO_TYPE_XGMI);
SAME(SYS_FINE_GRAIN_SUPPORT, hipDeviceAttributeFineGrainSupport);
SAME(SYS_STREAM_NON_BLOCKING, hipStreamNonBlocking);
SAME(SYS_STREAM_PER_THREAD, (intptr_t)hipStreamPerThread);
SAME(SYS_EVENT_DISABLE_TIMING, hipEventDisableTiming);
SAME(SYS_FINE_GRAINED, hipDeviceMallocFinegrained);
SAME(SYS_HOST_PORTABLE, hipHostMallocPortable);
SAME(SYS_HOST_MAPPED, hipHostMallocMapped);
SAME(SYS_HOST_COHERENT, hipHostMallocCoherent);
SAME(SYS_COPY_DEFAULT, hipMemcpyDefault);
SAME(SYS_MEMORY_ON_DEVICE, hipMemLocationTypeDevice);
SAME(SYS_MEMORY_READ_WRITE, hipMemAccessFlagsProtReadWrite);
SAME(SYS_CAPTURE_NONE, hipStreamCaptureStatusNone);
SAME(SYS_CAPTURE_THREAD_LOCAL, hipStreamCaptureModeThreadLocal);
SAME(SYS_CAPTURE_RELAXED, hipStreamCaptureModeRelaxed);

/* PointerAttributes, of which ours has room behind. */
SIZED(hipPointerAttribute_t, 32);
SAME(0, offsetof(hipPointerAttribute_t, device) - 4);
SAME(8, offsetof(hipPointerAttribute_t, devicePointer));
SAME(16, offsetof(hipPointerAttribute_t, hostPointer));
SAME(24, offsetof(hipPointerAttribute_t, isManaged));
SAME(28, offsetof(hipPointerAttribute_t, allocationFlags));

/* DeviceProperties. In HIP 6 the name stands for the structure of the newer function. */
_Static_assert(sizeof(hipDeviceProp_t) <= SYS_PROPERTIES_BYTES, "hipDeviceProp_t does not fit into DeviceProperties");
SAME(SYS_NAME_AT, offsetof(hipDeviceProp_t, name));
SIZED(((hipDeviceProp_t *)0)->name, SYS_NAME_BYTES);
SIZED(((hipDeviceProp_t *)0)->gcnArchName, SYS_NAME_BYTES);

#if HIP_VERSION_MAJOR < 6
SAME(SYS_ARCHITECTURE_AT, offsetof(hipDeviceProp_t, gcnArchName));
SAME(SYS_MEMORY_HOST_HIP5, hipMemoryTypeHost);
SAME(SYS_MEMORY_DEVICE_HIP5, hipMemoryTypeDevice);
#else
SAME(SYS_ARCHITECTURE_AT_R0600, offsetof(hipDeviceProp_tR0600, gcnArchName));
SAME(SYS_MEMORY_UNREGISTERED, hipMemoryTypeUnregistered);
SAME(SYS_MEMORY_HOST, hipMemoryTypeHost);
SAME(SYS_MEMORY_DEVICE, hipMemoryTypeDevice);
SAME(SYS_UNCACHED, hipDeviceMallocUncached);
SAME(SYS_WALL_CLOCK_RATE, hipDeviceAttributeWallClockRate);
#endif
