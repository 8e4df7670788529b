// Copies by vectors, for targets without something better: a target header includes this after its
// Block, load_pieces and store_pieces and before copy.h.
#pragma once

namespace crossccl {

template <uint32_t K, class T> CROSSCCL_DEVICE void load_vectors(T* x, const T* from, uint64_t step) {
  load_pieces<K, kVector / sizeof(T)>(x, from, step);
}
template <uint32_t K, class T> CROSSCCL_DEVICE void store_vectors(T* to, const T* x, uint64_t step) {
  store_pieces<K, kVector / sizeof(T)>(to, x, step);
}

// 16 bytes at `from`, which is `shift` bytes (1 to 15) behind a vector, out of the two aligned vectors
// that hold them. Little-endian, as every target is.
CROSSCCL_DEVICE void load_shifted(uint64_t* x, const uint8_t* from, uint32_t shift) {
  uint64_t w[4];
  load_vectors<2>(w, (const uint64_t*)(from - shift), 2);
  const bool far = shift >= 8;
  const uint64_t a = far ? w[1] : w[0], b = far ? w[2] : w[1], c = far ? w[3] : w[2];
  const uint32_t bits = shift % 8 * 8;
  // In two steps: a shift by 64 is undefined.
  x[0] = a >> bits | b << 1 << (63 - bits);
  x[1] = b >> bits | c << 1 << (63 - bits);
}

// Through the target, which may have to say what kind of memory it is.
CROSSCCL_DEVICE void copy_byte(uint8_t* to, const uint8_t* from) {
  uint8_t x;
  load_pieces<1, 1>(&x, from, 1);
  store_pieces<1, 1>(to, &x, 1);
}

// All threads of the block together; any alignment. Stores are whole vectors but for the ends. No byte
// outside of the range is read: what lies beside it may be another's, who is writing it.
CROSSCCL_DEVICE void copy_tile_by_vectors(const Block& b, uint8_t* to, const uint8_t* from, uint64_t bytes) {
  // Vectors of a thread in flight.
  constexpr uint32_t batch = 4;
  uint64_t head = (kVector - (uint64_t)to % kVector) % kVector;
  const uint32_t shift = ((uint64_t)from + head) % kVector;
  // Shifted, the first and the last vector's neighbours must lie in the range.
  if (shift > head) head += kVector;
  const uint64_t tail = shift == 0 ? 0 : kVector - shift;
  uint64_t body = head + tail < bytes ? (bytes - head - tail) / kVector * kVector : 0;
  if (body == 0) head = bytes;
  const uint64_t step = b.threads * kVector;
  uint64_t i = head + b.thread * kVector;
  const uint64_t end = head + body;
  if (shift == 0) {
    uint64_t x[batch * 2];
    for (; i + (batch - 1) * step < end; i += batch * step) {
      load_vectors<batch>(x, (const uint64_t*)(from + i), step / 8);
      store_vectors<batch>((uint64_t*)(to + i), x, step / 8);
    }
    for (; i < end; i += step) {
      load_vectors<1>(x, (const uint64_t*)(from + i), 0);
      store_vectors<1>((uint64_t*)(to + i), x, 0);
    }
  } else {
    for (; i < end; i += step) {
      uint64_t x[2];
      load_shifted(x, from + i, shift);
      store_vectors<1>((uint64_t*)(to + i), x, 0);
    }
  }
  CROSSCCL_ROLLED for (uint64_t k = b.thread; k < head; k += b.threads) copy_byte(to + k, from + k);
  CROSSCCL_ROLLED for (uint64_t k = end + b.thread; k < bytes && body != 0; k += b.threads) copy_byte(to + k, from + k);
}

}  // namespace crossccl
