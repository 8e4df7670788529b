//! HIP's functions, by HIP's names. Each answers a code, which stays this thread's last error until it is asked for.

use std::{
    cell::Cell,
    ffi::{CStr, c_char, c_int, c_uint, c_void},
    sync::{Arc, Mutex, PoisonError},
};

use crate::{
    code_object, codes,
    machine::Spec,
    memory::Kind,
    runtime::{Command, Core, Event, Function, Module, runtime},
    settings,
};

thread_local! {
    static LAST: Cell<i32> = const { Cell::new(0) };
    static DEVICE: Cell<u32> = const { Cell::new(0) };
    static MODE: Cell<i32> = const { Cell::new(codes::CAPTURE_GLOBAL) };
}

type Answer = Result<(), i32>;

/// A call of a function that is to fail.
struct Injected {
    function: String,
    /// Calls before it.
    left: u64,
    code: i32,
}

static INJECTED: Mutex<Option<Vec<Injected>>> = Mutex::new(None);

/// Lets the `nth` call from now of `function`, counted from 1, do nothing and answer `code`.
///
/// # Safety
/// `function` is a text that ends in a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crossccl_emulator_inject(function: *const c_char, nth: u64, code: c_int) {
    // SAFETY: the caller's promise.
    let function = unsafe { CStr::from_ptr(function) }.to_string_lossy().into_owned();
    let mut injected = INJECTED.lock().unwrap_or_else(PoisonError::into_inner);
    injected.get_or_insert_with(from_environment).push(Injected { function, left: nth.saturating_sub(1), code });
}

/// `CROSSCCL_EMULATOR_INJECT=hipMalloc:3:2,hipEventQuery:1:719`: function, which call, code.
fn from_environment() -> Vec<Injected> {
    let Ok(text) = std::env::var("CROSSCCL_EMULATOR_INJECT") else { return Vec::new() };
    let one = |text: &str| {
        let mut parts = text.split(':');
        let (function, nth, code) = (parts.next()?, parts.next()?.parse::<u64>().ok()?, parts.next()?.parse().ok()?);
        Some(Injected { function: function.to_owned(), left: nth.checked_sub(1)?, code })
    };
    text.split(',')
        .filter(|t| !t.is_empty())
        .map(|t| {
            one(t).unwrap_or_else(|| settings::end(&format!("CROSSCCL_EMULATOR_INJECT: {t} is not FUNCTION:NTH:CODE")))
        })
        .collect()
}

fn injected(function: &str) -> Answer {
    let mut injected = INJECTED.lock().unwrap_or_else(PoisonError::into_inner);
    let all = injected.get_or_insert_with(from_environment);
    let Some(at) = all.iter_mut().position(|i| {
        let due = i.function == function && i.left == 0;
        i.left -= u64::from(i.function == function && i.left > 0);
        due
    }) else {
        return Ok(());
    };
    Err(all.swap_remove(at).code)
}

fn answer(function: &str, body: impl FnOnce() -> Answer) -> c_int {
    let code = injected(function).and_then(|()| body()).err().unwrap_or(codes::SUCCESS);
    // What is not ready yet is no error that stays.
    if code != codes::SUCCESS && code != codes::NOT_READY {
        LAST.set(code);
    }
    code
}

macro_rules! functions {
    ($(fn $name:ident($($argument:ident: $kind:ty),* $(,)?) $body:block)*) => { $(
        /// HIP's function of this name.
        ///
        /// # Safety
        /// As HIP has it.
        #[unsafe(no_mangle)]
        #[allow(non_snake_case)]
        pub unsafe extern "C" fn $name($($argument: $kind),*) -> c_int {
            answer(stringify!($name), || $body)
        }
    )* };
}

/// The emulator's mark: no runtime of real devices has it.
#[unsafe(no_mangle)]
pub extern "C" fn crossccl_emulator_version() -> u32 {
    1
}

/// Wave-instructions that all devices have executed.
#[unsafe(no_mangle)]
pub extern "C" fn crossccl_emulator_steps() -> u64 {
    crate::runtime::STEPS.load(std::sync::atomic::Ordering::Relaxed)
}

/// Lets the order from now on follow this seed.
#[unsafe(no_mangle)]
pub extern "C" fn crossccl_emulator_reseed(seed: u64) {
    runtime().lock().seed = Some(seed);
}

/// HIP's function of this name.
#[unsafe(no_mangle)]
#[allow(non_snake_case)]
pub extern "C" fn hipGetErrorName(code: c_int) -> *const c_char {
    codes::name(code).as_ptr()
}

/// HIP's function of this name; the code's name.
#[unsafe(no_mangle)]
#[allow(non_snake_case)]
pub extern "C" fn hipGetErrorString(code: c_int) -> *const c_char {
    codes::name(code).as_ptr()
}

/// HIP's function of this name.
#[unsafe(no_mangle)]
#[allow(non_snake_case)]
pub extern "C" fn hipGetLastError() -> c_int {
    LAST.replace(codes::SUCCESS)
}

/// HIP's function of this name.
#[unsafe(no_mangle)]
#[allow(non_snake_case)]
pub extern "C" fn hipPeekAtLastError() -> c_int {
    LAST.get()
}

/// Writes to where the caller wants an answer.
fn set<T>(to: *mut T, value: T) -> Answer {
    if to.is_null() {
        return Err(codes::INVALID_VALUE);
    }
    // SAFETY: HIP's functions ask for a place that can be written.
    unsafe { to.write(value) };
    Ok(())
}

fn device(number: c_int) -> Result<u32, i32> {
    let devices = runtime().settings.devices;
    u32::try_from(number).ok().filter(|d| (*d as usize) < devices).ok_or(codes::INVALID_DEVICE)
}

/// The current device, if there is one.
fn current() -> Result<u32, i32> {
    device(DEVICE.get() as c_int)
}

/// A call that a capture may not see.
fn allowed(core: &mut Core) -> Answer {
    core.unsafe_call(MODE.get())
}

/// Looks up a stream and lets `work` do something with it, then tells the devices.
fn on_stream(handle: *mut c_void, work: impl FnOnce(&mut Core, u64) -> Answer) -> Answer {
    let device = current()?;
    let runtime = runtime();
    let mut core = runtime.lock();
    let stream = core.stream(handle as u64, device)?;
    let done = work(&mut core, stream);
    drop(core);
    runtime.wake();
    done
}

fn synchronize(handle: *mut c_void) -> Answer {
    let device = current()?;
    let runtime = runtime();
    let stream = {
        let mut core = runtime.lock();
        let stream = core.stream(handle as u64, device)?;
        core.break_capture(stream)?;
        stream
    };
    runtime.wait(|core| core.is_done(stream).or(if core.streams.contains_key(&stream) { None } else { Some(Ok(())) }))
}

/// Memory of `bytes` bytes of this kind.
fn allocate(to: *mut *mut c_void, bytes: usize, kind: Kind, flags: c_uint) -> Answer {
    let device = current()?;
    if to.is_null() {
        return Err(codes::INVALID_VALUE);
    }
    if bytes == 0 {
        return set(to, std::ptr::null_mut());
    }
    let runtime = runtime();
    let mut core = runtime.lock();
    allowed(&mut core)?;
    let address = core.allocate(kind, device, flags, bytes, &runtime.settings)?;
    set(to, address as *mut c_void)
}

/// Gives memory back when nothing runs on its device any more, as HIP does.
fn free(address: *mut c_void, host: bool) -> Answer {
    if address.is_null() {
        return Ok(());
    }
    let start = address as u64;
    let runtime = runtime();
    let device = {
        let mut core = runtime.lock();
        allowed(&mut core)?;
        let found = core.map.find(start).filter(|a| a.start == start && (a.kind == Kind::Host) == host);
        found.ok_or(codes::INVALID_VALUE)?.device
    };
    let answer = runtime.wait(|core| core.is_idle(device).then(|| core.release(start)));
    runtime.wake();
    answer
}

/// Whether `bytes` at `address` are the host's or lie in one allocation.
fn copyable(core: &Core, address: u64, bytes: usize) -> Answer {
    match core.map.find(address) {
        None => Ok(()),
        Some(a) if address + bytes as u64 <= a.end => Ok(()),
        Some(_) => Err(codes::INVALID_VALUE),
    }
}

fn copy(to: *mut c_void, from: *const c_void, bytes: usize, stream: *mut c_void) -> Answer {
    if bytes == 0 {
        return Ok(());
    }
    if to.is_null() || from.is_null() {
        return Err(codes::INVALID_VALUE);
    }
    on_stream(stream, |core, stream| {
        let (to, from) = (to as u64, from as u64);
        copyable(core, to, bytes)?;
        copyable(core, from, bytes)?;
        core.enqueue(stream, Command::Copy { to, from, bytes })
    })
}

fn fill(to: *mut c_void, byte: c_int, bytes: usize, stream: *mut c_void) -> Answer {
    if bytes == 0 {
        return Ok(());
    }
    on_stream(stream, |core, stream| {
        let to = to as u64;
        // The host's pageable memory is no device's.
        core.map.find(to).filter(|a| to + bytes as u64 <= a.end).ok_or(codes::INVALID_VALUE)?;
        core.enqueue(stream, Command::Fill { to, byte: byte as u8, bytes })
    })
}

/// Bytes of `hipDeviceProp_t` and where the architecture's name is in it: of HIP 5, and of 6 and later.
const PROPERTIES: (usize, usize) = (792, 396);
const PROPERTIES_R0600: (usize, usize) = (1472, 1160);

fn properties(to: *mut c_void, number: c_int, (bytes, at): (usize, usize)) -> Answer {
    device(number)?;
    if to.is_null() {
        return Err(codes::INVALID_VALUE);
    }
    let mut all = vec![0u8; bytes];
    let (name, architecture) = (b"crossccl emulator: no hardware", runtime().settings.target.full_name.as_bytes());
    all[..name.len()].copy_from_slice(name);
    all[at..at + architecture.len()].copy_from_slice(architecture);
    // SAFETY: the caller's structure has this size.
    unsafe { std::ptr::copy_nonoverlapping(all.as_ptr(), to.cast(), bytes) };
    Ok(())
}

/// `hipPointerAttribute_t`
#[repr(C)]
struct PointerAttributes {
    kind: c_int,
    device: c_int,
    device_address: *mut c_void,
    host_address: *mut c_void,
    managed: c_int,
    flags: c_uint,
}

/// `hipMemoryType`, since HIP 6.
const UNREGISTERED: c_int = 0;
const HOST: c_int = 1;
const DEVICE_MEMORY: c_int = 2;

/// The launch's arguments, one after the other as the kernel has them.
///
/// # Safety
/// As for `hipModuleLaunchKernel`.
unsafe fn gather(
    kernel: &code_object::Kernel,
    parameters: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Result<Vec<u8>, i32> {
    let bytes = kernel.arguments.iter().map(|(at, size)| at + size).max().unwrap_or(0);
    let mut all = vec![0u8; bytes];
    if !extra.is_null() {
        // HIP_LAUNCH_PARAM_BUFFER_POINTER, it, HIP_LAUNCH_PARAM_BUFFER_SIZE, where that is, HIP_LAUNCH_PARAM_END.
        // SAFETY: the caller's promise.
        let five = unsafe { std::slice::from_raw_parts(extra, 5) };
        if !parameters.is_null() || [five[0] as usize, five[2] as usize, five[4] as usize] != [1, 2, 3] {
            return Err(codes::INVALID_VALUE);
        }
        // SAFETY: the caller's promise.
        let given = unsafe { std::slice::from_raw_parts(five[1].cast::<u8>(), *five[3].cast::<usize>()) };
        let both = given.len().min(bytes);
        all[..both].copy_from_slice(&given[..both]);
        return Ok(all);
    }
    for (k, (at, size)) in kernel.arguments.iter().enumerate() {
        if parameters.is_null() {
            return Err(codes::INVALID_VALUE);
        }
        // SAFETY: one pointer an argument, to as many bytes as that has.
        unsafe {
            let from = *parameters.add(k);
            if from.is_null() {
                return Err(codes::INVALID_VALUE);
            }
            std::ptr::copy_nonoverlapping(from.cast::<u8>(), all.as_mut_ptr().add(*at), *size);
        }
    }
    Ok(all)
}

functions! {
    fn hipInit(flags: c_uint) {
        if flags != 0 { Err(codes::INVALID_VALUE) } else { current().map(drop) }
    }
    fn hipRuntimeGetVersion(version: *mut c_int) {
        set(version, 60_443_483)
    }
    fn hipDriverGetVersion(version: *mut c_int) {
        set(version, 60_443_483)
    }
    fn hipGetDeviceCount(count: *mut c_int) {
        let devices = runtime().settings.devices;
        set(count, devices as c_int)?;
        if devices == 0 { Err(codes::NO_DEVICE) } else { Ok(()) }
    }
    fn hipGetDevice(to: *mut c_int) {
        set(to, current()? as c_int)
    }
    fn hipSetDevice(number: c_int) {
        DEVICE.set(device(number)?);
        Ok(())
    }
    fn hipDeviceSynchronize() {
        let device = current()?;
        runtime().wait(|core| core.is_idle(device).then_some(Ok(())))
    }
    fn hipDeviceGetAttribute(to: *mut c_int, attribute: c_int, number: c_int) {
        device(number)?;
        set(to, match attribute {
            // L2CacheSize
            19 => 4 << 20,
            // MultiprocessorCount
            63 => runtime().settings.units as c_int,
            // FineGrainSupport
            10016 => 1,
            // WallClockRate, in kHz
            10017 => 100_000,
            _ => return Err(codes::INVALID_VALUE),
        })
    }
    fn hipGetDeviceProperties(to: *mut c_void, number: c_int) {
        properties(to, number, PROPERTIES)
    }
    fn hipGetDevicePropertiesR0600(to: *mut c_void, number: c_int) {
        properties(to, number, PROPERTIES_R0600)
    }
    fn hipDeviceCanAccessPeer(can: *mut c_int, from: c_int, to: c_int) {
        let (from, to) = (device(from)?, device(to)?);
        set(can, c_int::from(from != to))
    }
    fn hipExtGetLinkTypeAndHopCount(one: c_int, other: c_int, kind: *mut u32, hops: *mut u32) {
        let (one, other) = (device(one)?, device(other)?);
        // HSA_AMD_LINK_INFO_TYPE_XGMI
        set(kind, 4)?;
        set(hops, u32::from(one != other))
    }
    fn hipDeviceEnablePeerAccess(peer: c_int, flags: c_uint) {
        let (from, peer) = (current()?, device(peer)?);
        if flags != 0 {
            return Err(codes::INVALID_VALUE);
        }
        if from == peer {
            return Err(codes::INVALID_DEVICE);
        }
        if runtime().lock().reach(from, peer) { Ok(()) } else { Err(codes::PEER_ACCESS_ALREADY_ENABLED) }
    }

    fn hipMalloc(to: *mut *mut c_void, bytes: usize) {
        allocate(to, bytes, Kind::Device, 0)
    }
    fn hipExtMallocWithFlags(to: *mut *mut c_void, bytes: usize, flags: c_uint) {
        // Default, fine-grained, uncached.
        let kind = match flags {
            0 => Kind::Device,
            1 | 3 => Kind::Uncached,
            _ => return Err(codes::INVALID_VALUE),
        };
        allocate(to, bytes, kind, flags)
    }
    fn hipHostMalloc(to: *mut *mut c_void, bytes: usize, flags: c_uint) {
        // Portable, mapped, write-combined, of the user's node, coherent. Memory that is not coherent is not modelled.
        if flags & !(1 | 2 | 4 | 0x2000_0000 | 0x4000_0000) != 0 {
            return Err(codes::INVALID_VALUE);
        }
        allocate(to, bytes, Kind::Host, flags)
    }
    fn hipFree(address: *mut c_void) {
        free(address, false)
    }
    fn hipHostFree(address: *mut c_void) {
        free(address, true)
    }
    fn hipMemcpyAsync(to: *mut c_void, from: *const c_void, bytes: usize, kind: c_int, stream: *mut c_void) {
        if !(0..=4).contains(&kind) {
            return Err(codes::INVALID_VALUE);
        }
        copy(to, from, bytes, stream)
    }
    fn hipMemcpy(to: *mut c_void, from: *const c_void, bytes: usize, kind: c_int) {
        if !(0..=4).contains(&kind) {
            return Err(codes::INVALID_VALUE);
        }
        copy(to, from, bytes, std::ptr::null_mut())?;
        synchronize(std::ptr::null_mut())
    }
    fn hipMemsetAsync(to: *mut c_void, byte: c_int, bytes: usize, stream: *mut c_void) {
        fill(to, byte, bytes, stream)
    }
    fn hipMemset(to: *mut c_void, byte: c_int, bytes: usize) {
        fill(to, byte, bytes, std::ptr::null_mut())?;
        synchronize(std::ptr::null_mut())
    }
    fn hipPointerGetAttributes(to: *mut c_void, address: *const c_void) {
        if to.is_null() || address.is_null() {
            return Err(codes::INVALID_VALUE);
        }
        let core = runtime().lock();
        let plain = PointerAttributes {
            kind: UNREGISTERED,
            device: -2,
            device_address: std::ptr::null_mut(),
            host_address: std::ptr::null_mut(),
            managed: 0,
            flags: 0,
        };
        let address = address.cast_mut();
        let found = core.map.find(address as u64).map_or(plain, |a| PointerAttributes {
            kind: if a.kind == Kind::Host { HOST } else { DEVICE_MEMORY },
            device: a.device as c_int,
            device_address: address,
            host_address: if a.kind == Kind::Host { address } else { std::ptr::null_mut() },
            managed: 0,
            flags: a.flags,
        });
        set(to.cast(), found)
    }
    fn hipMemGetAccess(flags: *mut u64, location: *const c_void, address: *mut c_void) {
        // It is about memory that was mapped by hipMemMap, which this has not.
        let _ = (flags, location, address);
        Err(codes::INVALID_VALUE)
    }
    fn hipMemGetAddressRange(start: *mut *mut c_void, bytes: *mut usize, address: *mut c_void) {
        let core = runtime().lock();
        let found = *core.map.find(address as u64).ok_or(codes::NOT_FOUND)?;
        if !start.is_null() {
            set(start, found.start as *mut c_void)?;
        }
        if bytes.is_null() { Ok(()) } else { set(bytes, (found.end - found.start) as usize) }
    }

    fn hipModuleLoadData(to: *mut *mut c_void, image: *const c_void) {
        let device = current()?;
        if image.is_null() {
            return Err(codes::INVALID_VALUE);
        }
        let runtime = runtime();
        allowed(&mut runtime.lock())?;
        // SAFETY: HIP asks for a whole image.
        let loaded = unsafe { code_object::extent(image.cast()) }.and_then(|given| match &runtime.settings.object {
            Some(file) => {
                let file = std::fs::read(file).map_err(|e| format!("{file}: {e}"))?;
                code_object::load(&file, runtime.settings.target)
            }
            None => code_object::load(given, runtime.settings.target),
        });
        let object = loaded.map_err(|why| {
            eprintln!("crossccl emulator: the code object is not loaded: {why}");
            codes::INVALID_IMAGE
        })?;
        let mut core = runtime.lock();
        let base = core.allocate(Kind::Image, device, 0, object.image.len().max(1), &runtime.settings)?;
        // SAFETY: new memory of this size.
        unsafe { std::ptr::copy_nonoverlapping(object.image.as_ptr(), base as *mut u8, object.image.len()) };
        let module = core.number();
        core.modules.insert(module, Module { object, device, base });
        set(to, module as *mut c_void)
    }
    fn hipModuleUnload(module: *mut c_void) {
        let runtime = runtime();
        let mut core = runtime.lock();
        allowed(&mut core)?;
        let gone = core.modules.remove(&(module as u64)).ok_or(codes::INVALID_HANDLE)?;
        core.functions.retain(|_, f| f.module != module as u64);
        drop(core);
        let answer = runtime.wait(|core| core.is_idle(gone.device).then(|| core.release(gone.base)));
        runtime.wake();
        answer
    }
    fn hipModuleGetFunction(to: *mut *mut c_void, module: *mut c_void, name: *const c_char) {
        if name.is_null() {
            return Err(codes::INVALID_VALUE);
        }
        // SAFETY: HIP asks for a text that ends in a zero.
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
        let mut core = runtime().lock();
        let object = core.modules.get(&(module as u64)).ok_or(codes::INVALID_HANDLE)?.object.clone();
        if !object.kernels.contains_key(&*name) {
            return Err(codes::NOT_FOUND);
        }
        let function = core.number();
        core.functions.insert(function, Function { module: module as u64, kernel: name.into_owned() });
        set(to, function as *mut c_void)
    }
    fn hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(
        blocks: *mut c_int, function: *mut c_void, threads: c_int, shared: usize,
    ) {
        let core = runtime().lock();
        let function = core.functions.get(&(function as u64)).ok_or(codes::INVALID_HANDLE)?;
        let kernel = &core.modules[&function.module].object.kernels[&function.kernel];
        let threads = u32::try_from(threads).ok().filter(|t| *t > 0).ok_or(codes::INVALID_VALUE)?;
        let shared = u32::try_from(shared).map_err(|_| codes::INVALID_VALUE)?;
        set(blocks, if threads > kernel.most_threads { 0 } else { kernel.blocks_a_unit(threads, shared) as c_int })
    }
    fn hipModuleLaunchKernel(
        function: *mut c_void,
        grid_x: c_uint, grid_y: c_uint, grid_z: c_uint,
        block_x: c_uint, block_y: c_uint, block_z: c_uint,
        shared: c_uint, stream: *mut c_void, parameters: *mut *mut c_void, extra: *mut *mut c_void,
    ) {
        let spec = {
            let core = runtime().lock();
            let function = core.functions.get(&(function as u64)).ok_or(codes::INVALID_HANDLE)?;
            let module = &core.modules[&function.module];
            let kernel = &module.object.kernels[&function.kernel];
            // One dimension is all that is modelled.
            if [grid_y, grid_z, block_y, block_z] != [1; 4] {
                return Err(codes::NOT_SUPPORTED);
            }
            if grid_x == 0 || block_x == 0 || block_x > kernel.most_threads || kernel.blocks_a_unit(block_x, shared) == 0 {
                return Err(codes::INVALID_CONFIGURATION);
            }
            // SAFETY: the caller's promise.
            let arguments = unsafe { gather(kernel, parameters, extra)? };
            Spec {
                device: module.device,
                object: module.object.clone(),
                kernel: function.kernel.clone(),
                base: module.base,
                blocks: grid_x,
                threads: block_x,
                shared,
                arguments,
            }
        };
        on_stream(stream, |core, stream| {
            if core.streams[&stream].device != spec.device {
                return Err(codes::INVALID_HANDLE);
            }
            core.enqueue(stream, Command::Launch(Box::new(spec)))
        })
    }

    fn hipStreamCreateWithFlags(to: *mut *mut c_void, flags: c_uint) {
        let device = current()?;
        if flags > 1 {
            return Err(codes::INVALID_VALUE);
        }
        let mut core = runtime().lock();
        allowed(&mut core)?;
        set(to, core.open_stream(device, flags == 0) as *mut c_void)
    }
    fn hipStreamGetFlags(stream: *mut c_void, flags: *mut c_uint) {
        on_stream(stream, |core, stream| set(flags, c_uint::from(!core.is_blocking(stream))))
    }
    fn hipStreamGetDevice(stream: *mut c_void, device: *mut c_int) {
        on_stream(stream, |core, stream| set(device, core.streams[&stream].device as c_int))
    }
    fn hipStreamDestroy(stream: *mut c_void) {
        on_stream(stream, |core, stream| core.destroy_stream(stream))
    }
    fn hipStreamWaitEvent(stream: *mut c_void, event: *mut c_void, flags: c_uint) {
        if flags != 0 {
            return Err(codes::INVALID_VALUE);
        }
        on_stream(stream, |core, stream| core.await_event(stream, event as u64))
    }
    fn hipStreamSynchronize(stream: *mut c_void) {
        synchronize(stream)
    }
    fn hipStreamQuery(stream: *mut c_void) {
        let device = current()?;
        let mut core = runtime().lock();
        let stream = core.stream(stream as u64, device)?;
        core.break_capture(stream)?;
        core.is_done(stream).unwrap_or(Err(codes::NOT_READY))
    }
    fn hipStreamIsCapturing(stream: *mut c_void, status: *mut c_int) {
        let device = current()?;
        let mut core = runtime().lock();
        let stream = core.stream(stream as u64, device)?;
        set(status, core.capture_status(stream))
    }
    fn hipThreadExchangeStreamCaptureMode(mode: *mut c_int) {
        if mode.is_null() {
            return Err(codes::INVALID_VALUE);
        }
        // SAFETY: the caller's.
        let new = unsafe { *mode };
        if !(codes::CAPTURE_GLOBAL..=codes::CAPTURE_RELAXED).contains(&new) {
            return Err(codes::INVALID_VALUE);
        }
        set(mode, MODE.replace(new))
    }
    fn hipStreamBeginCapture(stream: *mut c_void, mode: c_int) {
        if !(codes::CAPTURE_GLOBAL..=codes::CAPTURE_RELAXED).contains(&mode) {
            return Err(codes::INVALID_VALUE);
        }
        on_stream(stream, |core, stream| core.begin_capture(stream, mode))
    }
    fn hipStreamEndCapture(stream: *mut c_void, graph: *mut *mut c_void) {
        let device = current()?;
        let mut core = runtime().lock();
        let stream = core.stream(stream as u64, device)?;
        let made = core.end_capture(stream)?;
        set(graph, made as *mut c_void)
    }
    fn hipGraphInstantiate(
        executable: *mut *mut c_void, graph: *mut c_void, wrong: *mut c_void, text: *mut c_char, bytes: usize,
    ) {
        let _ = (wrong, text, bytes);
        let mut core = runtime().lock();
        allowed(&mut core)?;
        let graph = Arc::clone(core.graphs.get(&(graph as u64)).ok_or(codes::INVALID_VALUE)?);
        let made = core.number();
        core.graphs.insert(made, graph);
        set(executable, made as *mut c_void)
    }
    fn hipGraphLaunch(executable: *mut c_void, stream: *mut c_void) {
        on_stream(stream, |core, stream| {
            let graph = Arc::clone(core.graphs.get(&(executable as u64)).ok_or(codes::INVALID_VALUE)?);
            core.enqueue(stream, Command::Graph(graph))
        })
    }
    fn hipGraphDestroy(graph: *mut c_void) {
        runtime().lock().graphs.remove(&(graph as u64)).map(drop).ok_or(codes::INVALID_VALUE)
    }
    fn hipGraphExecDestroy(executable: *mut c_void) {
        runtime().lock().graphs.remove(&(executable as u64)).map(drop).ok_or(codes::INVALID_VALUE)
    }

    fn hipEventCreateWithFlags(to: *mut *mut c_void, flags: c_uint) {
        // Blocking, without timing, between processes.
        if flags & !7 != 0 {
            return Err(codes::INVALID_VALUE);
        }
        let device = current()?;
        let mut core = runtime().lock();
        let number = core.number();
        core.events.insert(number, Event::new(device));
        set(to, number as *mut c_void)
    }
    fn hipEventDestroy(event: *mut c_void) {
        runtime().lock().events.remove(&(event as u64)).map(drop).ok_or(codes::INVALID_HANDLE)
    }
    fn hipEventElapsedTime(milliseconds: *mut f32, start: *mut c_void, stop: *mut c_void) {
        let core = runtime().lock();
        if !core.query(start as u64)? || !core.query(stop as u64)? {
            return Err(codes::NOT_READY);
        }
        let at = |event: *mut c_void| core.events.get(&(event as u64)).and_then(|e| e.at).ok_or(codes::INVALID_HANDLE);
        let (start, stop) = (at(start)?, at(stop)?);
        set(milliseconds, stop.saturating_duration_since(start).as_secs_f32() * 1e3)
    }
    fn hipEventRecord(event: *mut c_void, stream: *mut c_void) {
        on_stream(stream, |core, stream| core.record(event as u64, stream))
    }
    fn hipEventQuery(event: *mut c_void) {
        if runtime().lock().query(event as u64)? { Ok(()) } else { Err(codes::NOT_READY) }
    }
    fn hipEventSynchronize(event: *mut c_void) {
        runtime().wait(|core| match core.query(event as u64) {
            Ok(false) => None,
            Ok(true) => Some(Ok(())),
            Err(code) => Some(Err(code)),
        })
    }
}
