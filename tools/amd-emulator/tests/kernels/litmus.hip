// A sum over devices in rounds: stage, flag, wait, add up the staged. Correct as it stands; each macro plants a bug.
typedef unsigned u32;
typedef float f32x4 __attribute__((ext_vector_type(4)));
#define FENCE(order, scope) __builtin_amdgcn_fence(order, scope)
#if defined(__GFX11__)
#define WAIT_FOR_STORES() asm volatile("s_waitcnt_vscnt null, 0x0" ::: "memory")
#else
#define WAIT_FOR_STORES() asm volatile("s_waitcnt vmcnt(0)" ::: "memory")
#endif

struct Arguments {
  float* staging[8];  // two buffers of `count`; ordinary memory
  u32* flags[8];      // one word a rank; uncached
  float* data;
  u32 rank, ranks, count, rounds;
};

// The compiler orders what is before and after it, the hardware does not.
#define UNORDERED_BARRIER() asm volatile("s_barrier" ::: "memory")

__attribute__((device, unused)) static inline void barrier() {
  FENCE(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  FENCE(__ATOMIC_ACQUIRE, "workgroup");
}

#ifdef DEVICE_SCOPE
#define SCOPE "agent"
#else
#define SCOPE ""
#endif

extern "C" __attribute__((global)) __attribute__((amdgpu_flat_work_group_size(1, 256))) void sum(Arguments a) {
  const u32 thread = __builtin_amdgcn_workitem_id_x();
  for (u32 round = 1; round <= a.rounds; ++round) {
#ifdef SINGLE_BUFFER
    const u32 half = 0;
#else
    const u32 half = round % 2 * a.count;
#endif
    for (u32 i = thread * 4; i < a.count; i += 1024)
      *(f32x4*)(a.staging[a.rank] + half + i) = *(const f32x4*)(a.data + i);
#ifdef DRAIN
    // The stores are done, in the cache.
    WAIT_FOR_STORES();
#elif !defined(NO_RELEASE)
    FENCE(__ATOMIC_RELEASE, SCOPE);
    WAIT_FOR_STORES();
#endif
#if defined(BARE_BARRIER) || defined(ONE_ACQUIRES)
    UNORDERED_BARRIER();
#else
    barrier();
#endif
    if (thread < a.ranks) {
#ifdef AS_COMPILED
      __hip_atomic_store(a.flags[thread] + a.rank, round, __ATOMIC_RELEASE, __HIP_MEMORY_SCOPE_SYSTEM);
#else
      FENCE(__ATOMIC_RELEASE, SCOPE);
      WAIT_FOR_STORES();
      __hip_atomic_store(a.flags[thread] + a.rank, round, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
#endif
#if !defined(NO_WAIT) && !defined(LAST_WAVE_POLLS)
      while (__hip_atomic_load(a.flags[a.rank] + thread, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM) < round)
        __builtin_amdgcn_s_sleep(1);
#endif
    }
#ifdef LAST_WAVE_POLLS
    if (255 - thread < a.ranks)
      while (__hip_atomic_load(a.flags[a.rank] + 255 - thread, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM) < round)
        __builtin_amdgcn_s_sleep(1);
#endif
#ifdef ONE_ACQUIRES
    if (thread < 32) FENCE(__ATOMIC_ACQUIRE, SCOPE);
    UNORDERED_BARRIER();
#else
    barrier();
#endif
#if !defined(NO_ACQUIRE) && !defined(ONE_ACQUIRES)
    FENCE(__ATOMIC_ACQUIRE, SCOPE);
#endif
    for (u32 i = thread * 4; i < a.count; i += 1024) {
      f32x4 s = {0, 0, 0, 0};
      for (u32 r = 0; r < a.ranks; ++r) s += *(const f32x4*)(a.staging[r] + half + i);
      *(f32x4*)(a.data + i) = s;
    }
  }
}
