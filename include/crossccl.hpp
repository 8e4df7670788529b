// crossccl.h for C++17: a rank's handle that destroys itself, element types from pointers, exceptions.
#ifndef CROSSCCL_HPP
#define CROSSCCL_HPP

#include <cstdint>
#include <stdexcept>
#include <utility>
#include <vector>

#include "crossccl.h"

namespace crossccl {

// What a call that failed had to say.
class Error : public std::runtime_error {
 public:
  explicit Error(crosscclResult_t result) : std::runtime_error(crosscclGetLastError(nullptr)), result_(result) {}
  crosscclResult_t result() const noexcept { return result_; }

 private:
  crosscclResult_t result_;
};

inline void check(crosscclResult_t result) {
  if (result != crosscclSuccess) throw Error(result);
}

// The element type of T. Types of 16 bits have none here: call the functions of crossccl.h.
template <class T>
struct Datatype;
#define CROSSCCL_DATATYPE(type, name) \
  template <>                         \
  struct Datatype<type> {             \
    static constexpr crosscclDataType_t value = name; \
  };
CROSSCCL_DATATYPE(std::int8_t, crosscclInt8)
CROSSCCL_DATATYPE(std::uint8_t, crosscclUint8)
CROSSCCL_DATATYPE(std::int32_t, crosscclInt32)
CROSSCCL_DATATYPE(std::uint32_t, crosscclUint32)
CROSSCCL_DATATYPE(std::int64_t, crosscclInt64)
CROSSCCL_DATATYPE(std::uint64_t, crosscclUint64)
CROSSCCL_DATATYPE(float, crosscclFloat32)
CROSSCCL_DATATYPE(double, crosscclFloat64)
#undef CROSSCCL_DATATYPE

// One rank. Used by one thread at a time; moved, not copied.
//
// Buffers must outlive what was enqueued with them: until synchronize returns, and after a failure, of which synchronize throws,
// until a reset or until every rank of the communicator is gone, since peers may still read them. So declare buffers before
// the ranks, or keep them where an exception does not unwind them.
class Rank {
 public:
  // All ranks of a new communicator, on devices 0 to ranks - 1.
  static std::vector<Rank> all(int ranks, crosscclConfig_t config = CROSSCCL_CONFIG_INITIALIZER) {
    std::vector<crosscclComm_t> comms(ranks > 0 ? ranks : 1);
    std::vector<Rank> owners;
    owners.reserve(comms.size());
    check(crosscclCommInitAllConfig(comms.data(), ranks, nullptr, &config));
    for (crosscclComm_t comm : comms) owners.push_back(Rank(comm));
    return owners;
  }
  // Takes over a handle.
  explicit Rank(crosscclComm_t comm) noexcept : comm_(comm) {}
  Rank(Rank&& other) noexcept : comm_(std::exchange(other.comm_, nullptr)) {}
  Rank& operator=(Rank&& other) noexcept {
    std::swap(comm_, other.comm_);
    return *this;
  }
  // Waits for what was enqueued, within the time limit. A failure that nobody asked for is lost: synchronize first.
  ~Rank() {
    if (comm_ != nullptr) crosscclCommDestroy(comm_);
  }

  crosscclComm_t handle() const noexcept { return comm_; }
  int rank() const { return ask(crosscclCommUserRank); }
  int count() const { return ask(crosscclCommCount); }

  template <class T>
  void broadcast(const T* send, T* recv, std::size_t count, int root, crosscclStream_t stream = nullptr) {
    check(crosscclBroadcast(send, recv, count, Datatype<T>::value, root, comm_, stream));
  }
  // In place: on the root what is sent, elsewhere what is written.
  template <class T>
  void broadcast(T* data, std::size_t count, int root, crosscclStream_t stream = nullptr) {
    broadcast<T>(data, data, count, root, stream);
  }
  template <class T>
  void reduce_scatter(const T* send, T* recv, std::size_t recvcount, crosscclRedOp_t op, crosscclStream_t stream = nullptr) {
    check(crosscclReduceScatter(send, recv, recvcount, Datatype<T>::value, op, comm_, stream));
  }
  void synchronize() { check(crosscclCommSynchronize(comm_)); }
  // Whether all that was enqueued is complete by then; synchronize tells the outcome.
  bool wait_for(std::int64_t timeout_ms) { return over(crosscclCommWait, timeout_ms); }
  void abort() { check(crosscclCommAbort(comm_)); }
  void reset(std::int64_t timeout_ms) { check(crosscclCommReset(comm_, timeout_ms)); }
  // Whether the reset is over by then; the rank counts as there until it is, or until reset has thrown.
  bool reset_for(std::int64_t timeout_ms) { return over(crosscclCommResetWait, timeout_ms); }

 private:
  int ask(crosscclResult_t (*question)(crosscclComm_t, int*)) const {
    int answer = 0;
    check(question(comm_, &answer));
    return answer;
  }
  bool over(crosscclResult_t (*wait)(crosscclComm_t, std::int64_t, int*), std::int64_t timeout_ms) {
    int done = 0;
    check(wait(comm_, timeout_ms, &done));
    return done != 0;
  }
  crosscclComm_t comm_;
};

// A group of this thread's calls, launched together by end(). Left by an exception, it launches nothing.
class Group {
 public:
  Group() { check(crosscclGroupStart()); }
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;
  void end() {
    open_ = false;
    check(crosscclGroupEnd());
  }
  ~Group() {
    if (!open_) return;
    // A group with a failure in it launches nothing: this call is one, inside a group.
    crosscclCommSynchronize(nullptr);
    crosscclGroupEnd();
  }

 private:
  bool open_ = true;
};

}  // namespace crossccl

#endif  // CROSSCCL_HPP
