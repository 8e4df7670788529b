// Small kernels for the runtime's tests.
typedef unsigned int u32;
typedef unsigned long long u64;
typedef __attribute__((address_space(1))) u64 word;

struct Arguments {
  u64 *word, *other, value;
};
#define KERNEL extern "C" __attribute__((global)) __attribute__((amdgpu_flat_work_group_size(1, 1024))) void
#define LOAD(p) __hip_atomic_load((word*)(p), __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM)
#define STORE(p, v) __hip_atomic_store((word*)(p), v, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM)

KERNEL wait_for(Arguments a) {
  while (LOAD(a.word) != a.value) __builtin_amdgcn_s_sleep(1);
}

KERNEL add(Arguments a) {
  if (__builtin_amdgcn_workitem_id_x() == 0)
    __hip_atomic_fetch_add((word*)a.word, a.value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
}

KERNEL store(Arguments a) { STORE(a.word, a.value); }

// Every block comes, and waits for all.
KERNEL all_blocks(Arguments a) {
  if (__builtin_amdgcn_workitem_id_x() == 0) {
    __hip_atomic_fetch_add((word*)a.word, u64(1), __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
    while (LOAD(a.word) < a.value) __builtin_amdgcn_s_sleep(1);
  }
  __builtin_amdgcn_s_barrier();
}

__attribute__((device)) static inline u64 ticks() {
#if defined(__GFX11__)
  return __builtin_amdgcn_s_sendmsg_rtnl(0x83);  // MSG_RTN_GET_REALTIME
#else
  return __builtin_amdgcn_s_memrealtime();
#endif
}

KERNEL pass_time(Arguments a) {
  const u64 begin = ticks();
  u64 now = begin;
  while (now - begin < a.value) {
    __builtin_amdgcn_s_sleep(1);
    now = ticks();
  }
  STORE(a.word, now - begin);
#ifdef UNKNOWN
  asm volatile("s_ttracedata");
#endif
}

// The first load's value is not needed, and nothing is waited for between them.
KERNEL last_of_two_loads(Arguments a) {
  for (u64 k = 0; k < a.value; ++k) {
    u64 x;
    asm volatile("global_load_dwordx2 %0, %1, off\n global_load_dwordx2 %0, %1, off offset:8\n s_waitcnt vmcnt(0)"
                 : "=&v"(x) : "v"((word*)a.word) : "memory");
    STORE(a.other + k, x);
  }
}
