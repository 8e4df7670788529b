/*
 * crossccl: broadcast and reduce-scatter between the accelerators of one machine. Made by cbindgen from src/capi/mod.rs,
 * where to change it.
 *
 * Names, argument order and numbers are NCCL's, so that porting is renaming. What differs: one process makes all ranks, by
 * crosscclCommInitAll; a rank that does not come, or comes with something else, becomes a failure that names it, after which
 * crosscclCommReset goes on; crosscclCommAbort frees nothing. crosscclCommSynchronize tells the outcome: an event or a
 * synchronized stream does not.
 *
 * A rank's handle is used by one thread at a time, but for crosscclCommAbort and crosscclCommGetAsyncError. One thread may
 * drive all ranks. Every call answers a crosscclResult_t; crosscclGetLastError has the text.
 */

#ifndef CROSSCCL_H
#define CROSSCCL_H

#include <stddef.h>
#include <stdint.h>

/* NCCL's other names of the types. */
#define crosscclChar crosscclInt8
#define crosscclInt crosscclInt32
#define crosscclHalf crosscclFloat16
#define crosscclFloat crosscclFloat32
#define crosscclDouble crosscclFloat64

/* Every default: crosscclConfig_t config = CROSSCCL_CONFIG_INITIALIZER; */
#define CROSSCCL_CONFIG_INITIALIZER \
  { sizeof(crosscclConfig_t), CROSSCCL_CONFIG_MAGIC, CROSSCCL_VERSION_CODE, 0, 0, 0, 0, 0, 0 }

// The version of this header. Programs and library must have the first two in common before 1.0, then the first.
#define CROSSCCL_MAJOR 0

#define CROSSCCL_MINOR 1

#define CROSSCCL_PATCH 0

// What crosscclGetVersion answers: 10000 * major + 100 * minor + patch.
#define CROSSCCL_VERSION_CODE 100

// That a configuration was initialized, by CROSSCCL_CONFIG_INITIALIZER.
#define CROSSCCL_CONFIG_MAGIC 214024414

// What a call answers. Numbers below 16 are NCCL's.
typedef enum {
  // Done, or enqueued.
  crosscclSuccess = 0,
  // A driver or the operating system refused something.
  crosscclUnhandledDriverError = 1,
  // The machine is not fit: devices do not reach each other, or have no memory for signals.
  crosscclSystemError = 2,
  // A bug of crossccl.
  crosscclInternalError = 3,
  // An argument is wrong. Nothing was launched (but see crosscclGroupEnd).
  crosscclInvalidArgument = 4,
  // The call is wrong at this place: a handle in two threads, a group that was not begun. Nothing was launched (but see
  // crosscclGroupEnd).
  crosscclInvalidUsage = 5,
  // A rank did not come in time.
  crosscclTimeout = 16,
  // The ranks called different things.
  crosscclMismatch = 17,
  // crosscclCommAbort was called.
  crosscclAborted = 18,
  // An earlier collective failed, and nobody has called crosscclCommReset since. Nothing was launched (but see
  // crosscclGroupEnd).
  crosscclPoisoned = 19,
  // Valid, but not offered. Nothing was launched.
  crosscclUnsupported = 20,
  // The library was built without that backend, or without its kernels.
  crosscclNotCompiled = 21,
  // No device, or no driver.
  crosscclNoDevice = 22,
  // A rank that the call needs was destroyed before it made the same call.
  crosscclRankGone = 23,
} crosscclResult_t;

// Which kind of device.
typedef enum {
  // Of the GPU backends that the library was built with, the first that has a device; the CPU where it was built with none.
  // Never the CPU instead of a GPU.
  crosscclBackendAuto = 0,
  crosscclBackendCpu = 1,
  crosscclBackendCuda = 2,
  crosscclBackendRocm = 3,
} crosscclBackend_t;

// Element types, with NCCL's numbers. NCCL's float8 types (10, 11) are answered with crosscclUnsupported.
typedef enum {
  crosscclInt8 = 0,
  crosscclUint8 = 1,
  crosscclInt32 = 2,
  crosscclUint32 = 3,
  crosscclInt64 = 4,
  crosscclUint64 = 5,
  crosscclFloat16 = 6,
  crosscclFloat32 = 7,
  crosscclFloat64 = 8,
  crosscclBfloat16 = 9,
} crosscclDataType_t;

// What a reduce-scatter does, with NCCL's numbers; always in the order of the ranks.
typedef enum {
  crosscclSum = 0,
  crosscclProd = 1,
  crosscclMax = 2,
  crosscclMin = 3,
  // The sum divided by the number of ranks, before the one rounding.
  crosscclAvg = 4,
} crosscclRedOp_t;

// Which peers must have come with the same call before a rank touches anything.
typedef enum {
  // Those that it depends on: a broadcast's receiver waits for the root.
  crosscclAgreementDependent = 0,
  // All: where the ranks disagree, every one fails.
  crosscclAgreementStrict = 1,
} crosscclAgreement_t;

// A rank of a communicator. Not an address: what was destroyed, or never was, is answered with an error.
typedef struct crosscclComm crosscclComm;

typedef crosscclComm *crosscclComm_t;

// Options of a communicator. Begin with CROSSCCL_CONFIG_INITIALIZER; a field that is left 0 has its default. Fields that
// later versions append are 0 where they change nothing: a library that does not know one which is set answers an error.
typedef struct {
  // Bytes of this struct, the magic number, and CROSSCCL_VERSION_CODE: by the initializer.
  size_t size;
  unsigned int magic;
  unsigned int version;
  // A crosscclBackend_t.
  int backend;
  // A crosscclAgreement_t.
  int agreement;
  // How long a rank waits for another, in milliseconds; 0 for 30 s, -1 for ever.
  int64_t timeout_ms;
  // The most blocks of a launch, up to 128; 0 for that.
  int max_blocks;
  // 1 where ranks may share a device.
  int virtual_ranks;
  // Bytes of each rank's signal buffer for the staged two-stage broadcast; 0 for 2 MiB, -1 for none, without that
  // algorithm.
  int64_t payload_bytes;
} crosscclConfig_t;

// A stream of the rank's device: a cudaStream_t, CUstream or hipStream_t. NULL is the device's default stream, and on the
// CPU, which has none, the rank's own; there no other exists. It must live until the rank was given another one, or is
// destroyed. Ranks that share a device need streams that do not wait for each other, so the default stream for one of them at
// most; a call behind one of a peer that waits for it is refused. A call on a stream that is being captured becomes part of that graph: its replays keep one order with other
// calls on all ranks, are over before the communicator is reset or destroyed, and crosscclCommGetAsyncError, not
// crosscclCommSynchronize, tells whether one failed.
typedef void *crosscclStream_t;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// The version of the library: see CROSSCCL_VERSION_CODE.
crosscclResult_t crosscclGetVersion(int *version);

// What a result means, in general; never NULL. crosscclGetLastError says what happened.
const char *crosscclGetErrorString(crosscclResult_t result);

// What the last call of this thread that failed had to say: which rank, which argument, what to do; or what
// crosscclCommGetAsyncError found. Never NULL; valid until the next of either in this thread, or its end. The communicator is
// ignored, and may be NULL.
const char *crosscclGetLastError(crosscclComm_t comm);

// Makes a communicator of ndev ranks, rank r on the r-th device of devlist (NULL for 0 to ndev - 1), and writes a handle for
// each rank to comms: NULL where it fails, but for a wrong ndev, with which nothing is written. As crosscclCommInitAllConfig
// without a configuration.
crosscclResult_t crosscclCommInitAll(crosscclComm_t *comms,
                                     int ndev,
                                     const int *devlist);

// The same with options; NULL for the defaults. Opens the devices, tests that all reach each other, allocates signal buffers,
// loads every kernel: later calls do none of it.
crosscclResult_t crosscclCommInitAllConfig(crosscclComm_t *comms,
                                           int ndev,
                                           const int *devlist,
                                           const crosscclConfig_t *config);

// Waits for what this rank enqueued, and ends the handle; with the last rank's, the communicator ends. What does not end by
// its time limit and 30 s more is aborted, on all ranks; of a rank without a limit, after 30 s. The handle is gone also where
// the answer is a failure that nobody had asked for, but for crosscclInvalidUsage: another thread is in a call with it, or a
// group of this thread has a call of its communicator. A rank's buffers are free once every rank of the communicator was
// destroyed (peers read them). Where a stream does not come to rest, the answer is crosscclAborted with a text that says so,
// and what that rank's calls touch stays in use until the work in front of them is over.
crosscclResult_t crosscclCommDestroy(crosscclComm_t comm);

// Ends every wait in flight, of all ranks, with crosscclAborted, within about a millisecond. From any thread. Unlike NCCL's it
// frees nothing: crosscclCommReset makes the communicator usable again, crosscclCommDestroy ends it.
crosscclResult_t crosscclCommAbort(crosscclComm_t comm);

// Writes why the communicator refuses work, crosscclSuccess where it does not, without waiting. From any thread; after a
// failure its text is this thread's crosscclGetLastError.
crosscclResult_t crosscclCommGetAsyncError(crosscclComm_t comm,
                                           crosscclResult_t *asyncError);

// Waits until everything that this rank enqueued is complete, and tells the outcome: an event of the stream passes after a
// failure as well.
crosscclResult_t crosscclCommSynchronize(crosscclComm_t comm);

// Waits for what this rank enqueued, timeout_ms at most (0 only asks), and writes to done: 1 once all of it is
// complete, else 0. It does not tell the outcome: crosscclCommSynchronize does, at once then. For programs that must
// look for something else while they wait, for signals say.
crosscclResult_t crosscclCommWait(crosscclComm_t comm, int64_t timeout_ms, int *done);

// Makes the communicator usable again after a failure. Every rank's handle must call it, each in a thread of its own; it
// returns when all have, or after timeout_ms (above 0). Until then buffers of the failed call may still be touched.
crosscclResult_t crosscclCommReset(crosscclComm_t comm,
                                   int64_t timeout_ms);

// As crosscclCommReset, but waits timeout_ms at most (0 only asks) and writes to done: 1 once the reset is over, with
// its outcome as the answer; else 0. Until then the rank counts as there: call this again. crosscclCommReset waits for
// the last time: where not all ranks come in its time, it answers crosscclTimeout, and the rank is not there any more.
// In between, the handle takes no collective.
crosscclResult_t crosscclCommResetWait(crosscclComm_t comm, int64_t timeout_ms, int *done);

// The same as crosscclCommReset in one thread: comms are the ncomm handles of a communicator's ranks, all of them, in
// any order.
crosscclResult_t crosscclCommResetAll(const crosscclComm_t *comms, int ncomm);

// Writes the number of ranks.
crosscclResult_t crosscclCommCount(crosscclComm_t comm, int *count);

// Writes the handle's rank.
crosscclResult_t crosscclCommUserRank(crosscclComm_t comm, int *rank);

// Writes the number of the rank's device (NCCL: ncclCommCuDevice).
crosscclResult_t crosscclCommDevice(crosscclComm_t comm, int *device);

// Writes on which kind of device it is, for who left the choice to the library.
crosscclResult_t crosscclCommBackend(crosscclComm_t comm, crosscclBackend_t *backend);

// Writes the rank's own stream, which was made with the communicator and goes with the handle.
crosscclResult_t crosscclCommStream(crosscclComm_t comm, crosscclStream_t *stream);

// Copies count elements from the root's sendbuff to every rank's recvbuff. Other ranks' sendbuff is ignored; in place where
// the root's are the same. Only enqueues: crosscclCommSynchronize tells the outcome. Until it is complete, and after a failure
// until a reset, nobody else uses recvbuff or writes sendbuff; both are memory of the rank's device. Before anything
// is launched, memory of a pool and memory that a framework maps (cuMemMap, hipMemMap; PyTorch's expandable_segments)
// is granted to the other ranks' devices. Memory that they cannot reach, managed memory and host memory are
// crosscclInvalidArgument.
crosscclResult_t crosscclBroadcast(const void *sendbuff,
                                   void *recvbuff,
                                   size_t count,
                                   crosscclDataType_t datatype,
                                   int root,
                                   crosscclComm_t comm,
                                   crosscclStream_t stream);

// Reduces the ranks' sendbuff, recvcount elements for each rank, and writes part r to recvbuff of rank r: recvcount elements.
// In place where recvbuff is the rank's part of its sendbuff. Otherwise as crosscclBroadcast.
crosscclResult_t crosscclReduceScatter(const void *sendbuff,
                                       void *recvbuff,
                                       size_t recvcount,
                                       crosscclDataType_t datatype,
                                       crosscclRedOp_t op,
                                       crosscclComm_t comm,
                                       crosscclStream_t stream);

// Begins a group of this thread's collectives: they are checked at once, and launched together by crosscclGroupEnd. One thread
// can drive all ranks without one, since collectives only enqueue; with one, nothing is launched where one of them is
// refused. Groups nest.
crosscclResult_t crosscclGroupStart(void);

// Launches the group, in the order of its calls, or answers the first failure of a call since crosscclGroupStart, and then
// nothing was launched. Otherwise, whatever the answer, some may have been: where one cannot be launched (an earlier collective has
// failed meanwhile, a handle is in use or gone, the driver refuses), those of its communicator that were launched already
// are stopped, and buffers stay in use until a reset.
crosscclResult_t crosscclGroupEnd(void);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* CROSSCCL_H */
