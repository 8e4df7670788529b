// What a target must provide: the contract in prose. A target header (kernels-cpu/target_cpu.h and
// its siblings) defines everything below in namespace crossccl and then includes the algorithms.
// Nothing else in kernels-common may ask which compiler reads it.
//
// Macros
//   CROSSCCL_DEVICE            qualifier of a device function, internal linkage, inlined; constexpr may follow
//   CROSSCCL_METHOD            qualifier of a device member function or lambda-like functor
//   CROSSCCL_UNROLL            before a loop with a constant trip count
//   CROSSCCL_ROLLED            before a loop that is not worth code: waits, failures, ends of a range. Compilers of
//                              GPUs unroll all they see, and half of each kernel was copies of such loops
//   CROSSCCL_PLANTED           0 (see planted.h)
//
// Geometry
//   struct Block { uint32_t block, blocks, thread, threads; void sync() const; bool any(bool) const; }
//     thread and threads may be constants
//     sync   barrier of the block; what its threads wrote before is seen by its threads after
//     any    barrier; true for all threads if it is true for one
//     All blocks of a launch run at the same time (I6), in no particular order.
//
// Memory shared with peers: 64-bit words, atomic, at the widest scope the machine has (peers on
// other devices and the host see them)
//   uint64_t load_relaxed(const uint64_t*)        void store_relaxed(uint64_t*, uint64_t)
//   uint64_t load_acquire(const uint64_t*)        void store_release(uint64_t*, uint64_t)
//     Release makes everything that the *block* did before (its threads joined by sync()) visible
//     to whoever acquires the value.
//   kRelaxedCredits            whether a credit ("I have finished reading") is stored relaxed: what it is a credit for are
//                              loads whose values the block used before its barrier. The portable answer is false
//   void load_packets(uint64_t* w, const uint64_t*)       void store_packets(uint64_t*, uint64_t, uint64_t)
//     Two neighbours, the first aligned to 16 bytes: each is loaded and stored whole, as by load_relaxed and
//     store_relaxed; which of the two first, nobody knows. Loaded again, memory is looked at again.
// Records: packets that release and acquire as well
//   void publish_launches()    What the launches before this one in the stream wrote is released by what this thread stores
//                              by store_published from now on
//   void store_published(uint64_t*, uint64_t, uint64_t)      As store_packets
//   void load_published(uint64_t* w, const uint64_t*)        As load_packets
//   void see_published(const uint64_t*)         What was released by the stores whose words this thread has loaded is seen
//                              from now on; one of them is named
// Memory of the own rank, shared between its blocks
//   bool     claim(uint64_t* word, uint64_t value)        0 -> value, true for the one winner
//   uint64_t add_ticket(uint64_t* word)                   old value. What it is drawn for are loads whose values the block used
//                              before its barrier: it may order nothing else (kRelaxedCredits)
//
// The launches before and behind this one in the stream, on targets that start a launch before the one before it is
// over (nothing elsewhere)
//   void await_previous()      that one is complete and what it wrote is seen; to be called before anything is read
//   void release_next()        the next may start. It waits in turn, so this is never too early
//
// Vectors
//   kBatch<T, N>               vectors of T that a thread reduces over N ranks at a time (0: the number is not
//                              known): what its registers, or its nearest cache, hold
//   kUnalignedVectors          true where 16-byte accesses need no alignment
//   void load_pieces<K, V>(T* x, const T* from, uint64_t step)
//   void store_pieces<K, V>(T* to, const T* x, uint64_t step)
//     K pieces of V elements, `step` elements apart, into and out of a thread's own array, which is aligned
//     to kVector. A piece is a vector, or half or a quarter of a vector or two where types are converted and by
//     packets, or one element, of which the array may be aligned to itself. Ordinary cached accesses, never through a read-only path (I11).
//     All that is moved goes through these two.
//   kTile                      bytes that one block copies at a time; a multiple of kVector
//   kLeastTile                 the least that it takes where no other rank depends on which block moves what: divides kTile.
//                              kTile where a block is a thread
//   void copy_tile(const Block&, uint8_t* to, const uint8_t* from, uint64_t bytes)
//     All threads of the block together; any alignment, no overlap; vectors.h offers
//     copy_tile_by_vectors for targets without something better.
//
// Registers
//   uint64_t anew(uint64_t x)       x, as something that the compiler knows nothing about: what is computed from it is
//                                   computed there, not once before a loop and kept
//
// Bits
//   uint32_t lowest_bit(uint64_t)   position of the lowest bit that is set; one is
//
// Time
//   uint64_t clock_ticks()     monotonic; the host knows its rate
//   kTriesPerLook              polls between two looks at the clock: 1 where that is cheap
//   kLooksPerHostLook          slow looks between two at the host's word: 1 where that is near
//   kSlowLook                  ticks between two slow looks at the poison word (about 20 us)
//   void relax(uint32_t tries) called between two polls; tries counts the polls so far
//
// Numbers: exact, round to nearest even, denormals kept
//   float half_to_float(uint16_t)          uint16_t float_to_half(float)    a quiet NaN stays one
//   float bf16_to_float(uint16_t)          uint16_t float_to_bf16(float)    likewise
//   No contraction, no fast-math, no flush to zero may be in force (design: numerics contract).
#pragma once
