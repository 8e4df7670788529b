//! The CPU as a machine of virtual devices: a backend for use (tests, laptops, inference on CPUs),
//! not a mock. A rank is a thread, a block is a thread, and the kernels are the same source that the
//! GPUs run.

mod device;
pub(crate) mod driver;
mod memory;
mod stream;

use std::time::Instant;

pub use device::CpuDevice;
pub use stream::{CpuEvent, CpuStream};

use super::{Backend, Fault, Link, MemoryKind, Properties};
use crate::{
    abi::{Arguments, MAX_BLOCKS, MAX_RANKS},
    plan::Kernel,
};

/// The CPU backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cpu;

/// A kernel of the CPU backend.
#[derive(Clone, Copy, Debug)]
pub struct CpuFunction(driver::Entry);

// SAFETY: memory comes from the allocator, zeroed and aligned; a stream is a queue that one thread at a time works off;
// events count its jobs; kernels are found by name.
unsafe impl Backend for Cpu {
    const NAME: &'static str = "cpu";
    type Device = CpuDevice;
    type Stream = CpuStream;
    type Event = CpuEvent;
    type Function = CpuFunction;
    type Entered = ();
    type Graph = std::convert::Infallible;
    const INLINE: bool = true;

    fn device_count() -> Result<usize, Fault> {
        Ok(MAX_RANKS)
    }

    fn open(ordinal: usize) -> Result<CpuDevice, Fault> {
        CpuDevice::open(ordinal)
    }

    fn ordinal(device: &CpuDevice) -> usize {
        device.ordinal()
    }

    fn properties(device: &CpuDevice, ranks: usize, _sharing: usize) -> Result<Properties, Fault> {
        Ok(device.properties(ranks))
    }

    fn can_access_peer(_from: &CpuDevice, _to: &CpuDevice) -> Result<bool, Fault> {
        Ok(true)
    }

    fn link(_from: &CpuDevice, _to: &CpuDevice) -> Result<Link, Fault> {
        Ok(Link::Memory)
    }

    fn enable_peer_access(_from: &CpuDevice, _to: &CpuDevice) -> Result<(), Fault> {
        Ok(())
    }

    fn allocate(_device: &CpuDevice, _kind: MemoryKind, bytes: usize) -> Result<u64, Fault> {
        memory::allocate(bytes)
    }

    unsafe fn free(_device: &CpuDevice, _kind: MemoryKind, address: u64, bytes: usize) {
        // SAFETY: the caller's promise.
        unsafe { memory::free(address, bytes) }
    }

    fn load(_device: &CpuDevice) -> Result<Vec<CpuFunction>, Fault> {
        let exported = driver::kernels()?;
        Kernel::all()
            .map(|kernel| {
                let name = kernel.name();
                let found = exported.iter().find(|(n, _)| *n == name);
                found
                    .map(|(_, entry)| CpuFunction(*entry))
                    .ok_or_else(|| Fault::new("load", 0, format!("no kernel {name}")))
            })
            .collect()
    }

    fn resident_blocks(_device: &CpuDevice, _function: CpuFunction) -> Result<u32, Fault> {
        // Blocks are threads: as many as asked for run at the same time, by turns.
        Ok(MAX_BLOCKS)
    }

    fn enter(_device: &CpuDevice) -> Result<(), Fault> {
        Ok(())
    }

    fn create_stream(device: &CpuDevice) -> Result<CpuStream, Fault> {
        CpuStream::new(device)
    }

    fn create_inline_stream(device: &CpuDevice) -> Result<CpuStream, Fault> {
        Ok(CpuStream::inline(device))
    }

    fn is_inline(stream: &CpuStream) -> bool {
        stream.is_inline()
    }

    fn device_of(stream: &CpuStream) -> CpuDevice {
        stream.device()
    }

    unsafe fn launch(
        stream: &CpuStream,
        _kernel: Kernel,
        function: CpuFunction,
        blocks: u32,
        arguments: &Arguments,
    ) -> Result<(), Fault> {
        stream.launch(function.0, blocks, arguments)
    }

    unsafe fn copy(stream: &CpuStream, to: u64, from: u64, bytes: usize) -> Result<(), Fault> {
        stream.copy(to, from, bytes);
        Ok(())
    }

    unsafe fn fill(stream: &CpuStream, to: u64, byte: u8, bytes: usize) -> Result<(), Fault> {
        stream.fill(to, byte, bytes);
        Ok(())
    }

    fn record(stream: &CpuStream) -> Result<CpuEvent, Fault> {
        Ok(stream.record())
    }

    fn wait_event(stream: &CpuStream, event: &CpuEvent) -> Result<(), Fault> {
        stream.wait_event(event);
        Ok(())
    }

    fn wait(event: &CpuEvent, deadline: Option<Instant>) -> Result<bool, Fault> {
        Ok(event.wait(deadline))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// kernel_list.def and plan/kernel.rs name the same kernels.
    #[test]
    fn every_kernel_is_exported_and_nothing_else() {
        let mut exported: Vec<_> = driver::kernels().unwrap().into_iter().map(|(n, _)| n.to_owned()).collect();
        let mut known: Vec<_> = Kernel::all().map(Kernel::name).collect();
        exported.sort();
        known.sort();
        assert_eq!(exported, known);
    }

    #[test]
    fn a_stream_works_in_order_and_across_streams() {
        let device = CpuDevice::open(0).unwrap();
        let (one, two) = (CpuStream::new(&device).unwrap(), CpuStream::new(&device).unwrap());
        let mut data = vec![0u8; 1 << 20];
        let at = data.as_mut_ptr() as u64;
        one.fill(at, 1, 1 << 20);
        one.fill(at, 2, 1 << 19);
        two.wait_event(&one.record());
        two.copy(at + (1 << 19), at, 1 << 18);
        assert!(two.record().wait(None));
        assert!(data[..(1 << 19) + (1 << 18)].iter().all(|x| *x == 2));
        assert!(data[(1 << 19) + (1 << 18)..].iter().all(|x| *x == 1));
    }

    /// Who waits works as well: one job at a time all the same, in order.
    #[test]
    fn jobs_follow_one_another_whoever_runs_them() {
        const JOBS: usize = 2000;
        const BYTES: usize = 4 << 10;
        let stream = CpuStream::new(&CpuDevice::open(0).unwrap()).unwrap();
        let mut data = vec![0u8; (JOBS + 1) * BYTES];
        data[..BYTES].fill(7);
        let at = data.as_mut_ptr() as u64;
        let ends = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let events = std::sync::Arc::new(std::sync::Mutex::new(ends.1));
            for _ in 0..3 {
                let events = events.clone();
                scope.spawn(move || {
                    while let Ok(event) = { events.lock().unwrap().recv() } {
                        let event: CpuEvent = event;
                        assert!(event.wait(None));
                    }
                });
            }
            for job in 0..JOBS {
                // Reads what the job before wrote.
                stream.copy(at + ((job + 1) * BYTES) as u64, at + (job * BYTES) as u64, BYTES);
                ends.0.send(stream.record()).unwrap();
            }
            drop(ends.0);
        });
        assert!(stream.record().wait(None));
        assert!(data.iter().all(|x| *x == 7));
    }

    /// Of an inline stream nothing is done before somebody waits, and then by that thread, in order, across streams too.
    #[test]
    fn an_inline_stream_is_worked_off_by_who_waits() {
        let device = CpuDevice::open(0).unwrap();
        let [one, two] = [0, 1].map(|_| CpuStream::inline(&device));
        let mut data = vec![0u8; 3000];
        let at = data.as_mut_ptr() as u64;
        let byte = |i: usize| {
            // SAFETY: inside, and nobody writes it now.
            unsafe { (at as *const u8).add(i).read_volatile() }
        };
        one.fill(at, 1, 2000);
        one.fill(at, 2, 1000);
        let first = one.record();
        two.wait_event(&first);
        two.copy(at + 2000, at, 1000);
        one.fill(at, 3, 1000);
        assert_eq!([byte(0), byte(2000)], [0, 0]);
        // What stands in front is done, in the other stream too; what stands behind is not.
        assert!(two.record().wait(None));
        assert_eq!([byte(0), byte(1000), byte(2000)], [2, 1, 2]);
        assert!(first.wait(Some(Instant::now())));
        drop(two);
        let last = one.record();
        drop(one);
        assert!(last.wait(Some(Instant::now() + std::time::Duration::from_secs(1))));
        assert_eq!(byte(0), 3);
        drop(data);
    }

    /// With a deadline, what others could keep from ending is not begun: false at once, and done by a later wait.
    #[test]
    fn an_inline_stream_begins_with_a_deadline_what_ends_by_then() {
        use std::time::Duration;

        use crate::{Broadcast, Error};
        let comm = crate::Communicator::<Cpu>::builder(0..2).inline_streams(true).timeout(None).build().unwrap();
        let mut ranks = comm.into_ranks();
        let (other, one) = (ranks.pop().unwrap(), ranks.pop().unwrap());
        let mut data = [0, 1].map(|_| one.buffer::<u8>(10).unwrap());
        let [first, second] = &mut data;
        let begin = Instant::now();
        let soon = |ms| Some(Instant::now() + Duration::from_millis(ms));
        let endless = one.broadcast_in_place(first, 1).unwrap();
        let end = one.stream().record();
        // Another stream that waits for it leaves its wait where it is.
        let behind = CpuStream::inline(&one.stream().device());
        behind.wait_event(&end);
        assert!(!end.wait(soon(60_000)) && !behind.record().wait(soon(60_000)));
        other.abort();
        assert!(behind.record().wait(soon(60_000)) && end.wait(soon(0)));
        assert_eq!(endless.wait(), Err(Error::Aborted));
        // Kept: without it the next call would be refused.
        let _other = std::thread::scope(|scope| {
            let thread = scope.spawn(move || {
                other.reset(Duration::from_secs(10)).unwrap();
                other
            });
            one.reset(Duration::from_secs(10)).unwrap();
            thread.join().unwrap()
        });

        // One with a limit, which fits or does not.
        let limited = one.broadcast_in_place(second, Broadcast::from_root(1).timeout(Duration::from_millis(50)));
        let end = one.stream().record();
        assert!(!end.wait(soon(40)) && end.wait(soon(60_000)));
        assert!(matches!(limited.unwrap().wait(), Err(Error::Timeout { .. })));
        assert!(begin.elapsed() < Duration::from_secs(5), "took {:?}", begin.elapsed());
    }

    /// A kernel that runs on the caller's thread does not flush denormals because the caller does, and leaves
    /// the caller's mode alone.
    #[cfg(target_arch = "x86_64")]
    #[test]
    fn f9_the_mode_of_whoever_waits_does_not_matter() {
        use std::hint::black_box;

        fn mode() -> u32 {
            let mut mode = 0u32;
            // SAFETY: stores the register to `mode`.
            unsafe { std::arch::asm!("stmxcsr [{}]", in(reg) &mut mode, options(nostack)) };
            mode
        }
        fn set(mode: u32) {
            // SAFETY: the values given are valid; no test depends on the mode but this one, on its own thread.
            unsafe { std::arch::asm!("ldmxcsr [{}]", in(reg) &mode, options(nostack)) };
        }
        let before = mode();
        let flushing = before | 0x8040;
        let comm = crate::Communicator::<Cpu>::builder(0..2).build().unwrap();
        let inputs = [0, 1].map(|r| comm.buffer_from(r, &[1e-40f32; 2]).unwrap());
        let mut outputs = [0, 1].map(|r| comm.buffer::<f32>(r, 1).unwrap());
        // Mostly this thread is the first to come to rank 0's launch.
        for _ in 0..200 {
            set(flushing);
            let flushed = black_box(1e-40f32) + black_box(1e-40);
            let outcome = comm.reduce_scatter(&inputs, &mut outputs, crate::ReduceOp::Sum).unwrap().wait();
            let after = mode();
            set(before);
            assert_eq!((flushed, outcome), (0.0, Ok(())));
            // The flags of what happened are not the mode.
            assert_eq!(after & !0x3f, flushing & !0x3f);
            let sums = outputs.each_ref().map(|o| o.to_vec().unwrap()[0].to_bits());
            assert_eq!(sums, [(1e-40f32 + 1e-40).to_bits(); 2]);
        }
    }

    #[test]
    fn an_allocation_that_cannot_be_is_an_error() {
        assert_eq!(memory::allocate(usize::MAX / 2).unwrap_err().call, "allocate");
        assert_eq!(memory::allocate(usize::MAX).unwrap_err().call, "allocate");
    }
}
