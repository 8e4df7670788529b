//! The runtime's side: order, graphs, faults, what is refused.

#![allow(missing_docs)]

mod support;

use std::{
    ffi::c_void,
    time::{Duration, Instant},
};

use amdhip64::*;
use support::{compile, function, launch, memory, ok, read, stream, turn, uncached, write};

#[repr(C)]
struct Arguments {
    word: u64,
    other: u64,
    value: u64,
}

fn event(device: usize) -> *mut c_void {
    let mut event = std::ptr::null_mut();
    ok!(hipSetDevice(device as i32));
    ok!(hipEventCreateWithFlags(&raw mut event, 2));
    event
}

/// A kernel that waits for `value` at an address, on a stream of device 0.
struct Waiting {
    stream: *mut c_void,
    word: *mut c_void,
}

impl Waiting {
    fn new() -> Self {
        let object = compile("runtime", &[]);
        let (stream, word) = (stream(0), uncached(0, 16));
        write(word, &[0u64; 2]);
        let arguments = Arguments { word: word as u64, other: word as u64 + 8, value: 5 };
        assert_eq!(launch(function(0, &object, "wait_for"), 1, 64, stream, &arguments), 0);
        Waiting { stream, word }
    }

    fn let_go(&self) {
        write(self.word, &[5u64]);
    }
}

#[test]
fn streams_run_beside_each_other_and_each_in_order() {
    let _turn = turn();
    let waiting = Waiting::new();
    let (behind, out) = (event(0), memory(0, 8));
    ok!(hipEventRecord(behind, waiting.stream));
    ok!(hipMemsetAsync(out, 7, 8, waiting.stream));
    // SAFETY: the event lives.
    assert_eq!(unsafe { hipEventQuery(behind) }, 600, "hipErrorNotReady");
    // Another stream, of another device, waits for the first.
    let other = stream(0);
    ok!(hipStreamWaitEvent(other, behind, 0));
    std::thread::sleep(Duration::from_millis(20));
    // SAFETY: the stream lives.
    assert_eq!(unsafe { hipStreamQuery(other) }, 600);
    waiting.let_go();
    ok!(hipStreamSynchronize(other));
    ok!(hipEventQuery(behind));
    ok!(hipStreamSynchronize(waiting.stream));
    assert_eq!(read::<u64>(out, 1), [0x0707_0707_0707_0707]);
    assert_eq!(hipGetLastError(), 0, "what is not ready is no error that stays");
}

#[test]
fn a_stream_tells_its_device_whatever_is_current() {
    let _turn = turn();
    let streams = [0, 1].map(stream);
    for current in 0..2 {
        ok!(hipSetDevice(current));
        for (device, stream) in (0..).zip(streams) {
            let mut told = -1;
            ok!(hipStreamGetDevice(stream, &raw mut told));
            assert_eq!(told, device);
        }
    }
    streams.into_iter().for_each(|stream| ok!(hipStreamDestroy(stream)));
}

#[test]
fn loads_into_the_same_registers_stay_in_order() {
    let _turn = turn();
    let object = compile("runtime", &[]);
    let (stream, words, out) = (stream(0), uncached(0, 16), uncached(0, 100 * 8));
    write(words, &[1u64, 2]);
    let arguments = Arguments { word: words as u64, other: out as u64, value: 100 };
    assert_eq!(launch(function(0, &object, "last_of_two_loads"), 1, 64, stream, &arguments), 0);
    ok!(hipStreamSynchronize(stream));
    assert_eq!(read::<u64>(out, 100), [2; 100]);
}

#[test]
fn a_graph_runs_as_often_as_it_is_launched() {
    let _turn = turn();
    let object = compile("runtime", &[]);
    let (first, second, word) = (stream(0), stream(0), uncached(0, 16));
    write(word, &[0u64; 2]);
    let (fork, join) = (event(0), event(0));
    let add = function(0, &object, "add");
    let mut graph = std::ptr::null_mut();
    ok!(hipStreamBeginCapture(first, 1));
    // SAFETY: an allocation is what a capture does not allow; the answer is all that is looked at.
    let mut status = 0;
    ok!(hipStreamIsCapturing(first, &raw mut status));
    assert_eq!(status, 1);
    ok!(hipEventRecord(fork, first));
    ok!(hipStreamWaitEvent(second, fork, 0));
    let arguments = Arguments { word: word as u64, other: 0, value: 3 };
    assert_eq!(launch(add, 1, 64, first, &arguments), 0);
    let arguments = Arguments { word: word as u64 + 8, other: 0, value: 4 };
    assert_eq!(launch(add, 1, 64, second, &arguments), 0);
    ok!(hipEventRecord(join, second));
    ok!(hipStreamWaitEvent(first, join, 0));
    ok!(hipStreamEndCapture(first, &raw mut graph));
    let mut executable = std::ptr::null_mut();
    let nothing = std::ptr::null_mut();
    ok!(hipGraphInstantiate(&raw mut executable, graph, nothing, std::ptr::null_mut(), 0));
    ok!(hipGraphDestroy(graph));
    assert_eq!(read::<u64>(word, 2), [0, 0], "captured, not run");
    for _ in 0..5 {
        ok!(hipGraphLaunch(executable, first));
    }
    ok!(hipStreamSynchronize(first));
    assert_eq!(read::<u64>(word, 2), [15, 20]);
    ok!(hipGraphExecDestroy(executable));
}

#[test]
fn a_branch_that_does_not_come_back_is_refused() {
    let _turn = turn();
    let (first, second, fork) = (stream(0), stream(0), event(0));
    ok!(hipStreamBeginCapture(first, 1));
    ok!(hipEventRecord(fork, first));
    ok!(hipStreamWaitEvent(second, fork, 0));
    let mut graph = std::ptr::null_mut();
    // SAFETY: a local.
    assert_eq!(unsafe { hipStreamEndCapture(first, &raw mut graph) }, 904, "hipErrorStreamCaptureUnjoined");
    ok!(hipStreamBeginCapture(first, 0));
    let mut address = std::ptr::null_mut();
    // SAFETY: locals.
    unsafe {
        assert_eq!(hipMalloc(&raw mut address, 8), 900, "hipErrorStreamCaptureUnsupported");
        assert_eq!(hipStreamEndCapture(first, &raw mut graph), 901, "hipErrorStreamCaptureInvalidated");
    }
    hipGetLastError();
}

/// What a kernel does wrong is told, and the stream answers an error; others go on.
#[test]
fn faults_end_the_launch() {
    let _turn = turn();
    let object = compile("runtime", &[]);
    let good = memory(0, 64);
    let gone = memory(0, 64);
    ok!(hipFree(gone));
    let far = memory(5, 64);
    for (what, address) in [
        ("beyond", good as u64 + 64),
        ("given back", gone as u64),
        ("of a device without access", far as u64),
        ("not aligned", good as u64 + 4),
        ("null", 0),
    ] {
        let stream = stream(0);
        let arguments = Arguments { word: address, other: 0, value: 1 };
        assert_eq!(launch(function(0, &object, "store"), 1, 1, stream, &arguments), 0);
        // SAFETY: the stream lives.
        assert_eq!(unsafe { hipStreamSynchronize(stream) }, 719, "{what}");
    }
    // A wave that is stuck.
    let stream = stream(0);
    let word = uncached(0, 16);
    write(word, &[0u64; 2]);
    let arguments = Arguments { word: word as u64, other: 0, value: 1 };
    assert_eq!(launch(function(0, &object, "wait_for"), 1, 64, stream, &arguments), 0);
    // SAFETY: the stream lives.
    assert_eq!(unsafe { hipStreamSynchronize(stream) }, 719, "stuck");
    hipGetLastError();
}

/// A barrier of all blocks of a grid that the device cannot hold at once never passes.
#[test]
fn blocks_beyond_what_is_resident_wait() {
    let _turn = turn();
    let object = compile("runtime", &[]);
    let all = function(0, &object, "all_blocks");
    let mut held = 0;
    ok!(hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(&raw mut held, all, 1024, 0));
    let mut units = 0;
    ok!(hipDeviceGetAttribute(&raw mut units, 63, 0));
    let most = (held * units) as u32;
    for (blocks, expected) in [(most, 0), (most + 1, 719)] {
        let (stream, word) = (stream(0), uncached(0, 16));
        write(word, &[0u64; 2]);
        let arguments = Arguments { word: word as u64, other: 0, value: blocks.into() };
        assert_eq!(launch(all, blocks, 1024, stream, &arguments), 0);
        // SAFETY: the stream lives.
        assert_eq!(unsafe { hipStreamSynchronize(stream) }, expected, "{blocks} of {most} blocks");
    }
    hipGetLastError();
}

#[test]
fn calls_fail_as_they_are_told_to() {
    let _turn = turn();
    // SAFETY: texts.
    unsafe { crossccl_emulator_inject(c"hipMalloc".as_ptr(), 2, 2) };
    let first = memory(0, 8);
    let mut address = std::ptr::null_mut();
    // SAFETY: a local.
    assert_eq!(unsafe { hipMalloc(&raw mut address, 8) }, 2);
    assert!(address.is_null());
    assert_eq!(hipGetLastError(), 2);
    assert_eq!(hipGetLastError(), 0);
    ok!(hipMalloc(&raw mut address, 8));
    ok!(hipFree(address));
    ok!(hipFree(first));
}

/// Ticks of 10 ns, of real time.
#[test]
fn the_clock_is_the_hosts() {
    let _turn = turn();
    let object = compile("runtime", &[]);
    let (stream, out) = (stream(0), uncached(0, 16));
    let begin = Instant::now();
    let arguments = Arguments { word: out as u64, other: 0, value: 5_000_000 };
    assert_eq!(launch(function(0, &object, "pass_time"), 1, 64, stream, &arguments), 0);
    ok!(hipStreamSynchronize(stream));
    assert!(begin.elapsed() >= Duration::from_millis(50));
    assert!(read::<u64>(out, 1)[0] >= 5_000_000);
}

#[test]
fn what_is_no_code_object_is_refused() {
    let _turn = turn();
    let mut module = std::ptr::null_mut();
    let mut object = compile("runtime", &[]);
    // SAFETY: bytes enough for a header.
    assert_eq!(unsafe { hipModuleLoadData(&raw mut module, [0u8; 64].as_ptr().cast()) }, 200);
    // Another machine: gfx906.
    object[48] = 0x2f;
    // SAFETY: a whole file.
    assert_eq!(unsafe { hipModuleLoadData(&raw mut module, object.as_ptr().cast()) }, 200);
    hipGetLastError();
}

/// An instruction that is not known is no instruction that is left out.
#[test]
fn an_unknown_instruction_is_refused() {
    let _turn = turn();
    let object = compile("runtime", &["UNKNOWN"]);
    let mut module = std::ptr::null_mut();
    // SAFETY: a whole file.
    assert_eq!(unsafe { hipModuleLoadData(&raw mut module, object.as_ptr().cast()) }, 200);
    hipGetLastError();
}
