// One kernel an operation: out[i] = f(a[i], b[i], c[i]) on 64-bit words, of which f takes what it needs.
typedef unsigned int u32;
typedef int i32;
typedef unsigned long long u64;
typedef long long i64;
typedef unsigned short u16;

struct Arguments {
  const u64 *a, *b, *c;
  u64* out;
  u32 count;
};

template <class To, class From> __attribute__((device)) static inline To as(From from) {
  To to;
  __builtin_memcpy(&to, &from, sizeof to);
  return to;
}
#define F(x) as<float>(u32(x))
#define D(x) as<double>(x)
#define BITS(x) u64(as<u32>(float(x)))
#define BITS64(x) as<u64>(double(x))

#define OPERATION(name, value)                                                                                   \
  extern "C" __attribute__((global)) __attribute__((amdgpu_flat_work_group_size(1, 256))) void name(Arguments g) { \
    for (u32 i = __builtin_amdgcn_workgroup_id_x() * 256 + __builtin_amdgcn_workitem_id_x(); i < g.count;        \
         i += 1024) {                                                                                            \
      const u64 a = g.a[i], b = g.b[i], c = g.c[i];                                                              \
      (void)a, (void)b, (void)c;                                                                                 \
      g.out[i] = value;                                                                                          \
    }                                                                                                            \
  }

OPERATION(add_u64, a + b)
OPERATION(sub_u64, a - b)
OPERATION(mul_u64, a* b)
OPERATION(mulhi_u64, u64((unsigned __int128)a * b >> 64))
OPERATION(div_u64, a / (b | 1))
OPERATION(rem_u64, a % (b >> 40 | 1))
OPERATION(div_i64, u64(i64(a) / (i64(b) >> 20 | 1)))
OPERATION(div_u32, u32(a) / (u32(b) >> 7 | 1))
OPERATION(rem_u32, u32(a) % (u32(b) | 1))
OPERATION(div_i32, u64(i32(a) / (i32(b) >> 3 | 1)))
OPERATION(shl_u64, a << (b & 63))
OPERATION(shr_u64, a >> (b & 63))
OPERATION(sar_i64, u64(i64(a) >> (b & 63)))
OPERATION(shl_u32, u32(a) << (b & 31))
OPERATION(sar_i32, u64(i64(i32(a) >> (b & 31))))
OPERATION(less_u64, u64(a < b) | u64(i64(a) < i64(b)) << 1 | u64(u32(a) < u32(b)) << 2 | u64(i32(a) < i32(b)) << 3)
OPERATION(bits, u64(__builtin_popcountll(a)) | u64(__builtin_clzll(b | 1)) << 8 | u64(__builtin_ctzll(c | 1ull << 63)) << 16)
OPERATION(funnel, u32((a << 32 | u32(b)) >> (c & 31)) | u64(__builtin_bswap32(u32(a))) << 32)
OPERATION(bytes, u64(i64((signed char)(a)) + i64((signed char)(a >> 8)) + u64(b >> 24 & 255)))
OPERATION(add_f32, BITS(F(a) + F(b)))
OPERATION(mul_f32, BITS(F(a) * F(b)))
OPERATION(fma_f32, BITS(__builtin_fmaf(F(a), F(b), F(c))))
OPERATION(div_f32, BITS(F(a) / F(b)))
OPERATION(div_f32_by_few, BITS(F(a) / float(2 + b % 63)))
OPERATION(min_f32, BITS(__builtin_fminf(F(a), F(b))))
OPERATION(max_f32, BITS(__builtin_fmaxf(F(a), F(b))))
OPERATION(less_f32, u64(F(a) < F(b)) | u64(F(a) <= F(b)) << 1 | u64(F(a) == F(b)) << 2 | u64(F(a) != F(b)) << 3 |
                        u64(!(F(a) < F(b))) << 4 | u64(!(F(a) >= F(b))) << 5 | u64(F(a) != F(a)) << 6)
OPERATION(add_f64, BITS64(D(a) + D(b)))
OPERATION(mul_f64, BITS64(D(a) * D(b)))
OPERATION(div_f64, BITS64(D(a) / D(b)))
OPERATION(div_f64_by_few, BITS64(D(a) / double(2 + b % 63)))
OPERATION(less_f64, u64(D(a) < D(b)) | u64(D(a) >= D(b)) << 1 | u64(D(a) == D(b)) << 2 | u64(!(D(a) > D(b))) << 3)
OPERATION(f16_of_f32, u64(as<u16>(_Float16(F(a)))))
OPERATION(f32_of_f16, BITS(float(as<_Float16>(u16(a)))))
OPERATION(bf16_of_f32, u64(u16((u32(a) + 0x7fffu + (u32(a) >> 16 & 1)) >> 16)))
OPERATION(f32_of_u32, BITS(float(u32(a))))
OPERATION(f32_of_i32, BITS(float(i32(a))))
OPERATION(f64_of_u32, BITS64(double(u32(a)) + double(i32(b))))
OPERATION(f32_of_f64, BITS(float(D(a))))
OPERATION(f64_of_f32, BITS64(double(F(a))))
