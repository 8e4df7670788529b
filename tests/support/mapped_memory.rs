//! Memory that a framework maps itself, piece by piece (virtual memory management), for the tests on the stand-ins of
//! the drivers: CUDA's and HIP's functions differ in their names alone.

#![allow(dead_code)]

use std::ffi::{c_int, c_void};

use crossccl::{Algorithm, Backend, Broadcast, Communicator, DType, Error, Rank, RawRank, ReduceOp};

/// A piece is a multiple of this.
pub(crate) const PAGE: usize = 4096;
/// Elements of a rank: from within the second page of a range to within its last but two.
const COUNT: usize = (4 * PAGE + 2000) / 4;
const OFFSET: u64 = PAGE as u64 + 400;

/// The driver's functions.
pub(crate) struct Mapper {
    reserve: unsafe extern "C" fn(*mut u64, usize, usize, u64, u64) -> c_int,
    create: unsafe extern "C" fn(*mut *mut c_void, usize, *const [c_int; 24], u64) -> c_int,
    map: unsafe extern "C" fn(u64, usize, usize, *mut c_void, u64) -> c_int,
    unmap: unsafe extern "C" fn(u64, usize) -> c_int,
    set_access: unsafe extern "C" fn(u64, usize, *const [c_int; 3], usize) -> c_int,
}

impl Mapper {
    /// By `cu` or `hip` before the names; `None` where the driver maps no memory.
    ///
    /// # Safety
    /// The library is the driver's.
    pub(crate) unsafe fn load(library: &libloading::Library, prefix: &str) -> Option<Self> {
        // SAFETY: of these types in both; the driver stays as long as the process.
        unsafe {
            let name = |name: &str| format!("{prefix}{name}");
            Some(Mapper {
                reserve: *library.get(name("MemAddressReserve").as_bytes()).ok()?,
                create: *library.get(name("MemCreate").as_bytes()).ok()?,
                map: *library.get(name("MemMap").as_bytes()).ok()?,
                unmap: *library.get(name("MemUnmap").as_bytes()).ok()?,
                set_access: *library.get(name("MemSetAccess").as_bytes()).ok()?,
            })
        }
    }

    pub(crate) fn reserve(&self, pages: usize) -> u64 {
        let mut address = 0;
        // SAFETY: as the driver declares it; a local.
        assert_eq!(unsafe { (self.reserve)(&mut address, pages * PAGE, 0, 0, 0) }, 0);
        address
    }

    /// One piece, which nobody may touch.
    pub(crate) fn map(&self, address: u64, pages: usize, device: usize) {
        let mut handle = std::ptr::null_mut();
        // allocation, handles, kind and number of the location, the rest
        let mut properties = [0; 24];
        properties[..4].copy_from_slice(&[1, 0, 1, device as c_int]);
        // SAFETY: as the driver declares them; a local.
        unsafe {
            assert_eq!((self.create)(&mut handle, pages * PAGE, &properties, 0), 0);
            assert_eq!((self.map)(address, pages * PAGE, 0, handle, 0), 0);
        }
    }

    pub(crate) fn unmap(&self, address: u64, pages: usize) {
        // SAFETY: as the driver declares it; nothing uses it.
        assert_eq!(unsafe { (self.unmap)(address, pages * PAGE) }, 0);
    }

    pub(crate) fn set_access(&self, address: u64, pages: usize, device: usize, flags: c_int) {
        // SAFETY: as the driver declares it; a local.
        assert_eq!(unsafe { (self.set_access)(address, pages * PAGE, &[1, device as c_int, flags], 1) }, 0);
    }

    /// A reserved range of 8 pages with pieces of 1, 3 and 1 behind its first, which its device alone may touch: as
    /// PyTorch has them.
    pub(crate) fn range(&self, device: usize) -> u64 {
        let start = self.reserve(8);
        for (page, pages) in [(1, 1), (2, 3), (5, 1)] {
            let at = start + page * PAGE as u64;
            self.map(at, pages, device);
            self.set_access(at, pages, device, 3);
        }
        start
    }
}

fn finished<B: Backend>(stream: &B::Stream) {
    assert!(B::wait(&B::record(stream).expect("event"), None).expect("wait"));
}

/// Copies in or out, page by page: a copy of the stand-in's is of one piece.
fn copy<B: Backend>(stream: &B::Stream, address: u64, host: &mut [u32], out: bool) {
    let (mut at, end) = (address, address + 4 * host.len() as u64);
    while at < end {
        let next = end.min((at / PAGE as u64 + 1) * PAGE as u64);
        let there = host.as_mut_ptr().wrapping_byte_add((at - address) as usize) as u64;
        let (to, from) = if out { (there, at) } else { (at, there) };
        // SAFETY: as long as the slice, and waited for.
        unsafe { B::copy(stream, to, from, (next - at) as usize) }.expect("copy");
        at = next;
    }
    finished::<B>(stream);
}

pub(crate) fn write<B: Backend>(stream: &B::Stream, address: u64, value: u32, count: usize) {
    copy::<B>(stream, address, &mut vec![value; count], false);
}

pub(crate) fn read<B: Backend>(stream: &B::Stream, address: u64, count: usize) -> Vec<u32> {
    let mut host = vec![0; count];
    copy::<B>(stream, address, &mut host, true);
    host
}

fn streams<B: Backend>(comm: &Communicator<B>) -> Vec<B::Stream> {
    (0..comm.ranks()).map(|rank| comm.stream(rank).expect("a rank").clone()).collect()
}

/// A broadcast in place: each rank's data, or why not.
pub(crate) fn broadcast<B: Backend>(
    comm: &Communicator<B>,
    at: &[u64],
    count: usize,
    what: impl Into<Broadcast>,
) -> Result<(), Error> {
    let what = what.into();
    let streams = streams(comm);
    let raw: Vec<_> = at.iter().map(|at| RawRank::new(*at, *at)).collect();
    // SAFETY: what is refused is not touched; otherwise memory of that size that lives on, and waited for.
    unsafe { comm.broadcast_raw(&raw, &streams, count, DType::U32, what) }?.wait()
}

/// Both collectives over pieces that their device alone may touch: the peers are let in, whatever was mapped there
/// before.
pub(crate) fn is_granted<B: Backend>(comm: &Communicator<B>, mapper: &Mapper, algorithms: &[Algorithm]) {
    let streams = streams(comm);
    let ranges: Vec<_> = (0..comm.ranks()).map(|rank| mapper.range(rank)).collect();
    let at: Vec<_> = ranges.iter().map(|start| start + OFFSET).collect();
    for round in 0..3 {
        for (root, algorithm) in algorithms.iter().enumerate() {
            (0..at.len()).for_each(|rank| write::<B>(&streams[rank], at[rank], 10 * round + rank as u32, COUNT));
            let root = (root + round as usize) % at.len();
            broadcast(comm, &at, COUNT, Broadcast::from_root(root).algorithm(*algorithm)).expect("outcome");
            for rank in 0..at.len() {
                let got = read::<B>(&streams[rank], at[rank], COUNT);
                assert!(got.iter().all(|got| *got == 10 * round + root as u32), "{algorithm}: rank {rank}");
            }
        }
        (0..at.len()).for_each(|rank| write::<B>(&streams[rank], at[rank], rank as u32 + 1, COUNT));
        // In place, of which each rank's part is somewhere else.
        let (count, part) = (COUNT / at.len() * at.len(), COUNT / at.len());
        let raw: Vec<_> =
            (0..at.len()).map(|rank| RawRank::new(at[rank], at[rank] + (4 * rank * part) as u64)).collect();
        // SAFETY: memory of that size that lives on; waited for.
        let sum = unsafe { comm.reduce_scatter_raw(&raw, &streams, &vec![count; at.len()], DType::U32, ReduceOp::Sum) };
        sum.expect("launch").wait().expect("outcome");
        let expected = (1..=at.len() as u32).sum::<u32>();
        for rank in 0..at.len() {
            assert_eq!(read::<B>(&streams[rank], raw[rank].recv, part), vec![expected; part], "rank {rank}");
        }
        // Other memory at the same addresses, as a cache gives back and takes.
        let rank = round as usize % at.len();
        let middle = ranges[rank] + 2 * PAGE as u64;
        mapper.unmap(middle, 3);
        mapper.map(middle, 3, rank);
        mapper.set_access(middle, 3, rank, 3);
    }
}

/// Holes, and grants that the driver refuses: by name, before anything is launched on any rank. `calls_of` counts calls
/// since `arm`.
pub(crate) fn is_refused<B: Backend>(
    comm: &Communicator<B>,
    mapper: &Mapper,
    set_access: &str,
    launch: &str,
    arm: impl Fn(&str),
    calls_of: impl Fn(&str) -> u64,
) {
    let ranges: Vec<_> = (0..comm.ranks()).map(|rank| mapper.range(rank)).collect();
    let at: Vec<_> = ranges.iter().map(|start| start + OFFSET).collect();
    let refused = |fault: &str, at: &[u64], count: usize| {
        arm(fault);
        let outcome = broadcast(comm, at, count, 1);
        assert_eq!(calls_of(launch), 0, "something was launched");
        arm("");
        assert_eq!(comm.failure(), None);
        outcome.expect_err("it is refused")
    };
    // Of rank 0, for its two peers; then that of rank 1 for its first.
    for (call, rank, peer) in [("1+", 0, 1), ("2", 0, 2), ("2", 1, 0)] {
        let error = refused(&format!("{set_access}:{call}:801"), &at, COUNT);
        let Error::NotPeerAccessible { operation: "broadcast", rank: whose, peer: whom, reason, .. } = &error else {
            panic!("{error}")
        };
        assert!(reason.starts_with(&format!("{set_access}: ")), "{error}");
        if call == "1+" {
            assert_eq!((*whose, *whom), (Rank(rank), Rank(peer)), "{error}");
        }
    }
    let end = |count: usize| format!("{} bytes from {:#x} on", count, at[0]);
    let error = refused("", &at, COUNT + 2000);
    let Error::InvalidArgument { argument: "output", rank: Some(Rank(0)), expected, got, .. } = error else {
        panic!("{error}")
    };
    let there = 6 * PAGE - OFFSET as usize;
    assert_eq!((expected, got), (format!("{} mapped bytes", 4 * (COUNT + 2000)), end(there)));
    // Over the end of what is reserved.
    let error = refused("", &at, 8 * PAGE);
    assert!(matches!(error, Error::InvalidArgument { argument: "output", .. }), "{error}");
    let error = refused("", &[ranges[0], at[1], at[2]], 4);
    let hole = format!("{:#x}, which no device knows", ranges[0]);
    assert!(matches!(&error, Error::InvalidArgument { argument: "output", got, .. } if *got == hole), "{error}");
    // Of another device, in the middle of a range.
    mapper.unmap(ranges[2] + 2 * PAGE as u64, 3);
    mapper.map(ranges[2] + 2 * PAGE as u64, 3, 0);
    let error = refused("", &at, COUNT);
    let other = format!("memory of device 0 at {:#x}", ranges[2] + 2 * PAGE as u64);
    assert!(matches!(&error, Error::InvalidArgument { rank: Some(Rank(2)), got, .. } if *got == other), "{error}");
    mapper.unmap(ranges[2] + 2 * PAGE as u64, 3);
    mapper.map(ranges[2] + 2 * PAGE as u64, 3, 2);
    // Not even its own device was let in; and all goes well where the driver does as it is asked.
    broadcast(comm, &at, COUNT, 1).expect("outcome");
    let streams = streams(comm);
    write::<B>(&streams[1], at[1], 7, COUNT);
    broadcast(comm, &at, COUNT, 1).expect("outcome");
    assert!(at.iter().zip(&streams).all(|(at, stream)| read::<B>(stream, *at, COUNT) == [7; COUNT]));
}

/// The stand-in punishes as hardware does: a grant that was taken back under a graph ends every context.
pub(crate) fn ends_the_contexts<B: Backend>(comm: &Communicator<B>, mapper: &Mapper, illegal: i64) {
    let streams = streams(comm);
    let at: Vec<_> = (0..comm.ranks()).map(|rank| mapper.range(rank) + OFFSET).collect();
    let raw: Vec<_> = at.iter().map(|at| RawRank::new(*at, *at)).collect();
    // SAFETY: memory of that size that lives on.
    let graph = unsafe {
        comm.capture(&streams, || comm.broadcast_raw(&raw, &streams, COUNT, DType::U32, 0)?.wait()).expect("graph")
    };
    // SAFETY: as above.
    unsafe { graph.launch() }.expect("launch").wait().expect("outcome");
    mapper.set_access(at[0] - OFFSET + 5 * PAGE as u64, 1, 1, 0);
    // SAFETY: as above, or what this is about.
    let outcome = unsafe { graph.launch() }.and_then(|launched| launched.wait());
    let told = |outcome| matches!(outcome, Err(Error::Driver { code, .. }) if code == illegal);
    assert!(told(outcome.clone()), "{outcome:?}");
    let allocated = comm.buffer::<u8>(2, 1).map(drop);
    assert!(told(allocated.clone()), "{allocated:?}");
}
