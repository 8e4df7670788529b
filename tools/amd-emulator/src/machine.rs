//! The devices: which wave runs next, for how long, and what it runs in.
//!
//! The order is random by a seed, and unfair on purpose. Each device has a speed, spread over orders of magnitude and
//! drawn anew now and then; a wave that has just stored a flag is often left standing. Waves that poll sleep, and get
//! a small share of the time while others have work, so that whole test suites run in minutes.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};

use crate::{
    architecture::{ARRAYS, Architecture, CacheKind},
    code_object::{CodeObject, Hidden, Kernel},
    memory::{Cache, Caches, FEW_LINES, Kind, LINE, LINES, Map},
    random::Random,
    wave::{Access, Context, Stop, Wave},
};

/// What the environment says; see the README.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// What the devices are.
    pub(crate) target: &'static Architecture,
    pub(crate) devices: usize,
    pub(crate) seed: u64,
    /// Compute units of a device.
    pub(crate) units: u32,
    /// Dies of a device, each with a cache, where the target has several.
    pub(crate) dies: u32,
    /// Whether there are caches at all.
    pub(crate) caches: bool,
    /// Orders of magnitude between the fastest and the slowest device.
    pub(crate) spread: f64,
    /// Instructions of a launch before it counts as stuck.
    pub(crate) steps: u64,
    /// Bytes of a device's memory.
    pub(crate) bytes: u64,
    /// A file to be loaded instead of every code object.
    pub(crate) object: Option<String>,
    /// Whether speed is told, each second of work.
    pub(crate) report: bool,
    /// Whether a fault ends the process.
    pub(crate) abort: bool,
}

/// A launch, as it was asked for.
#[derive(Clone)]
pub(crate) struct Spec {
    pub(crate) device: u32,
    pub(crate) object: Arc<CodeObject>,
    pub(crate) kernel: String,
    /// Where the object's image lies.
    pub(crate) base: u64,
    pub(crate) blocks: u32,
    pub(crate) threads: u32,
    pub(crate) shared: u32,
    pub(crate) arguments: Vec<u8>,
}

/// A launch that has ended.
pub(crate) struct Finished {
    pub(crate) token: u64,
    pub(crate) fault: Option<String>,
}

struct Launch {
    spec: Spec,
    token: u64,
    /// Memory of the launch: arguments, then the dispatch packet.
    arguments: Box<[u64]>,
    packet: Box<[u64; 8]>,
    caches: Levels,
    next: u32,
    live: u32,
    /// Of a unit, as parts of [`UNIT`].
    cost: u64,
    steps: u64,
}

impl Launch {
    fn kernel(&self) -> &Kernel {
        &self.spec.object.kernels[&self.spec.kernel]
    }
}

/// The caches of a launch.
#[derive(Default)]
struct Levels {
    /// Of units, of arrays of them, and of dies or the device.
    firsts: Vec<Cache>,
    seconds: Vec<Cache>,
    lasts: Vec<Cache>,
    /// See [`CacheKind`]: a unit has two, and the last ones are told of stores.
    pairs: bool,
    probed: bool,
}

impl Levels {
    fn new(kind: CacheKind, units: usize, dies: usize) -> Self {
        let (firsts, seconds, lasts) = match kind {
            CacheKind::Dies => (0, 0, dies),
            CacheKind::Units => (units, 0, 1),
            CacheKind::Pairs => (2 * units, units.min(ARRAYS as usize), 0),
        };
        let caches = |count, lines| (0..count).map(|_| Cache::new(lines)).collect();
        Levels {
            firsts: caches(firsts, FEW_LINES),
            seconds: caches(seconds, LINES),
            lasts: caches(lasts, LINES),
            pairs: kind == CacheKind::Pairs,
            probed: kind == CacheKind::Units,
        }
    }

    /// What the memory operations of block `number` go through, of its waves on either side of a pair of units.
    fn of(&mut self, device: u32, number: u32, side: u32) -> Caches<'_> {
        let place = if self.pairs { 2 * number + side } else { number };
        Caches {
            device,
            first: pick(&mut self.firsts, place),
            second: pick(&mut self.seconds, number),
            last: pick(&mut self.lasts, number),
            probed: self.probed,
        }
    }

    fn all(&mut self) -> impl Iterator<Item = &mut Cache> {
        self.firsts.iter_mut().chain(&mut self.seconds).chain(&mut self.lasts)
    }
}

/// The cache of number `number`, counted around.
fn pick(caches: &mut [Cache], number: u32) -> Option<&mut Cache> {
    let count = caches.len().max(1);
    caches.get_mut(number as usize % count)
}

struct Block {
    launch: usize,
    number: u32,
    waves: Vec<usize>,
    shared: Vec<u8>,
    /// Waves that have not ended, and of those the ones at the barrier.
    alive: u32,
    arrived: u32,
    /// Ended waves with operations outstanding.
    draining: u32,
}

struct Runner {
    wave: Wave,
    block: usize,
    /// Of a pair of compute units.
    side: u32,
    /// It has passed a barrier with something outstanding.
    passed: bool,
}

#[derive(Default)]
struct Device {
    speed: f64,
    ready: Vec<usize>,
    sleeping: Vec<usize>,
    /// Launches with blocks that wait for room.
    waiting: VecDeque<usize>,
    used: u64,
    /// Lines that its launches read last.
    history: Vec<u64>,
}

/// Lines that are known of a device's launches before.
const HISTORY: usize = 1024;

/// Divisible by every number of blocks that a unit holds.
const UNIT: u64 = 720_720;

/// The devices and what runs on them.
pub(crate) struct Machine {
    settings: Settings,
    devices: Vec<Device>,
    launches: Slab<Launch>,
    blocks: Slab<Block>,
    runners: Slab<Runner>,
    stalled: BinaryHeap<Reverse<(u64, usize)>>,
    /// Waves that have ended, or wait at a barrier, with operations outstanding. (Those of the second kind were forgotten
    /// once: a flag that was set before a barrier was never seen, since only waves that ran got on with theirs.)
    draining: Vec<usize>,
    /// Most of those at barriers, whose turn comes later: all at once would hide missing waits.
    late: Vec<usize>,
    /// Boxes to be used again.
    #[allow(clippy::vec_box)]
    spare: Vec<Box<Access>>,
    random: Random,
    tick: u64,
    next_speeds: u64,
    finished: Vec<Finished>,
    began: Instant,
    /// All instructions so far.
    pub(crate) steps: u64,
}

/// How a slice of time ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slice {
    /// Nothing runs.
    Idle,
    /// Only waves that poll.
    Polling,
    /// There is more to do.
    Busy,
}

impl Machine {
    pub(crate) fn new(settings: Settings) -> Self {
        let devices = (0..settings.devices).map(|_| Device { speed: 1.0, ..Default::default() }).collect();
        Machine {
            random: Random::new(settings.seed),
            settings,
            devices,
            launches: Slab::default(),
            blocks: Slab::default(),
            runners: Slab::default(),
            stalled: BinaryHeap::new(),
            draining: Vec::new(),
            late: Vec::new(),
            spare: Vec::new(),
            tick: 0,
            next_speeds: 0,
            finished: Vec::new(),
            began: Instant::now(),
            steps: 0,
        }
    }

    pub(crate) fn reseed(&mut self, seed: u64) {
        self.settings.seed = seed;
        self.random = Random::new(seed);
        self.next_speeds = 0;
    }

    pub(crate) fn seed(&self) -> u64 {
        self.settings.seed
    }

    /// Starts a launch; its end is among what [`finished`](Self::finished) answers, with `token`.
    pub(crate) fn start(&mut self, spec: Spec, token: u64, map: &Map) {
        let kernel = &spec.object.kernels[&spec.kernel];
        let held = kernel.blocks_a_unit(spec.threads, spec.shared);
        if held == 0 {
            self.finished.push(Finished { token, fault: Some("a block does not fit on a unit".to_owned()) });
            return;
        }
        let of_blocks = |number: u32| number.min(spec.blocks).max(1) as usize;
        let dies = if self.random.once_in(2) { 1 } else { of_blocks(self.settings.dies) };
        let caches = if self.settings.caches {
            Levels::new(self.settings.target.caches, of_blocks(self.settings.units), dies)
        } else {
            Levels::default()
        };
        let mut launch = Launch {
            arguments: arguments(&spec, kernel),
            packet: packet(&spec),
            caches,
            token,
            next: 0,
            live: 0,
            cost: UNIT / u64::from(held),
            steps: 0,
            spec,
        };
        if self.settings.caches {
            self.fill_caches(&mut launch, map);
        }
        let device = launch.spec.device as usize;
        let launch = self.launches.insert(launch);
        self.devices[device].waiting.push_back(launch);
    }

    /// Lines as they are now, that will be stale when peers have written: near what the arguments point to, and what
    /// the device read of late.
    fn fill_caches(&mut self, launch: &mut Launch, map: &Map) {
        let device = launch.spec.device;
        // The nearest caches keep what they read of any memory.
        let any = !launch.caches.firsts.is_empty();
        let kept = |kind: Kind| kind == Kind::Device || (any && kind != Kind::Image);
        let mut lines = Vec::new();
        for word in &launch.arguments {
            let Some(found) = map.find(*word).filter(|a| kept(a.kind)) else { continue };
            let near = (found.end - word).min(1 << 16).div_ceil(LINE);
            lines.extend((0..near.min(16)).map(|_| word + self.random.below(near) * LINE));
        }
        lines.extend(self.devices[device as usize].history.iter().copied());
        for line in lines {
            if let Ok(found) = map.check(device, line & !(LINE - 1), 1, false)
                && kept(found.kind)
                && self.random.once_in(2)
            {
                let block = self.random.below(launch.spec.blocks.into()) as u32;
                let side = self.random.below(2) as u32;
                launch.caches.of(device, block, side).touch(&found, line);
            }
        }
        launch.caches.all().for_each(|c| c.history.clear());
    }

    pub(crate) fn finished(&mut self) -> Vec<Finished> {
        std::mem::take(&mut self.finished)
    }

    /// Runs for about `time`, until nothing runs, or until nothing but polling has run for a while.
    pub(crate) fn run(&mut self, map: &Map, time: Duration) -> Slice {
        let (begin, mut turns, mut polls) = (Instant::now(), 0, 0);
        loop {
            turns += 1;
            if turns % 32 == 0 && begin.elapsed() >= time {
                return Slice::Busy;
            }
            if !self.finished.is_empty() {
                return Slice::Busy;
            }
            self.dispatch();
            self.tick += 1;
            if self.tick >= self.next_speeds {
                self.next_speeds = self.tick + self.random.magnitude(4.0) + 100;
                for device in &mut self.devices {
                    device.speed = 1.0 / self.random.magnitude(self.settings.spread) as f64;
                }
            }
            while let Some(Reverse((until, runner))) = self.stalled.peek().copied() {
                if until > self.tick {
                    break;
                }
                self.stalled.pop();
                self.make_ready(runner);
            }
            if !self.late.is_empty() && self.random.once_in(512) {
                let which = self.random.below(self.late.len() as u64) as usize;
                self.draining.push(self.late.swap_remove(which));
            }
            if !self.draining.is_empty() && self.random.once_in(4) {
                self.drain(map);
            }
            let ready: f64 = self.devices.iter().filter(|d| !d.ready.is_empty()).map(|d| d.speed).sum();
            let sleeping = self.devices.iter().map(|d| d.sleeping.len()).sum::<usize>();
            if ready == 0.0 && sleeping == 0 {
                self.draining.append(&mut self.late);
                if !self.draining.is_empty() {
                    self.drain(map);
                } else if let Some(Reverse((_, runner))) = self.stalled.pop() {
                    self.make_ready(runner);
                } else {
                    return if self.finished.is_empty() { Slice::Idle } else { Slice::Busy };
                }
                continue;
            }
            let runner = if sleeping > 0 && (ready == 0.0 || self.random.once_in(8)) {
                polls += usize::from(ready == 0.0);
                // Nobody finds anything new: what was left standing goes on, or the host must do something.
                if polls > 2 * sleeping + 16 {
                    polls = 0;
                    self.draining.append(&mut self.late);
                    if !self.draining.is_empty() {
                        self.drain(map);
                    } else if let Some(Reverse((_, runner))) = self.stalled.pop() {
                        self.make_ready(runner);
                    } else {
                        return Slice::Polling;
                    }
                    continue;
                }
                self.take_sleeper(sleeping)
            } else {
                polls = 0;
                self.take_ready(ready)
            };
            self.burst(runner, map);
        }
    }

    fn take_sleeper(&mut self, sleeping: usize) -> usize {
        let mut which = self.random.below(sleeping as u64) as usize;
        for device in &mut self.devices {
            if which < device.sleeping.len() {
                return device.sleeping.swap_remove(which);
            }
            which -= device.sleeping.len();
        }
        unreachable!("counted")
    }

    fn take_ready(&mut self, all: f64) -> usize {
        let mut share = (self.random.next() >> 11) as f64 / (1u64 << 53) as f64 * all;
        let last = self.devices.iter().rposition(|d| !d.ready.is_empty()).unwrap_or(0);
        for (k, device) in self.devices.iter_mut().enumerate() {
            if device.ready.is_empty() {
                continue;
            }
            share -= device.speed;
            if share < 0.0 || k == last {
                let which = self.random.below(device.ready.len() as u64) as usize;
                return device.ready.swap_remove(which);
            }
        }
        unreachable!("counted")
    }

    fn device_of(&self, runner: usize) -> usize {
        let block = &self.blocks[self.runners[runner].block];
        self.launches[block.launch].spec.device as usize
    }

    fn make_ready(&mut self, runner: usize) {
        let device = self.device_of(runner);
        self.devices[device].ready.push(runner);
    }

    /// Calls `work` with a wave and what it runs in.
    fn with<R>(&mut self, runner: usize, map: &Map, work: impl FnOnce(&mut Wave, &mut Context<'_>) -> R) -> R {
        let Runner { wave, block, side, .. } = &mut self.runners[runner];
        let block = &mut self.blocks[*block];
        let launch = &mut self.launches[block.launch];
        let range = |words: &[u64]| (words.as_ptr() as u64, words.as_ptr() as u64 + size_of_val(words) as u64);
        let began = self.began;
        let object = &launch.spec.object;
        let mut context = Context {
            program: &object.program,
            architecture: object.architecture,
            map,
            device: launch.spec.device,
            one_cache: launch.caches.lasts.len() == 1,
            shared: &mut block.shared,
            spare: &mut self.spare,
            random: &mut self.random,
            own: [range(&launch.arguments), range(&launch.packet[..])],
            base: launch.spec.base,
            caches: launch.caches.of(launch.spec.device, block.number, *side),
            // 100 MHz, of real time: hosts and kernels have deadlines in common.
            clock: &|| began.elapsed().as_nanos() as u64 / 10,
            steps: 0,
        };
        let answer = work(wave, &mut context);
        let steps = context.steps;
        launch.steps += steps;
        self.steps += steps;
        answer
    }

    fn burst(&mut self, runner: usize, map: &Map) {
        let budget = match self.random.below(8) {
            0 => 1 + self.random.below(4),
            1..=4 => 1 + self.random.below(64),
            _ => 1 + self.random.below(1024),
        };
        let early = self.random.once_in(2);
        let stop = self.with(runner, map, |wave, context| {
            if early {
                match wave.complete_one(context, false) {
                    Err(fault) => return Stop::Fault(fault),
                    Ok(true) => return Stop::Exposed,
                    Ok(false) => {}
                }
            }
            wave.run(context, budget as u32)
        });
        let block = self.runners[runner].block;
        let launch = self.blocks[block].launch;
        if self.launches[launch].steps > self.settings.steps {
            let text = format!("{} instructions and no end: stuck?", self.launches[launch].steps);
            return self.fail(runner, text);
        }
        match stop {
            Stop::Budget | Stop::Waits => self.make_ready(runner),
            Stop::Published => {
                if self.random.once_in(8) {
                    let until = self.tick + self.random.magnitude(2.7);
                    self.stalled.push(Reverse((until, runner)));
                } else {
                    self.make_ready(runner);
                }
            }
            Stop::Exposed => {
                let until = self.tick + self.random.magnitude(3.3);
                self.stalled.push(Reverse((until, runner)));
            }
            Stop::Sleeps => {
                let device = self.device_of(runner);
                self.devices[device].sleeping.push(runner);
            }
            Stop::Barrier => {
                if !self.runners[runner].wave.is_drained()
                    && !self.draining.contains(&runner)
                    && !self.late.contains(&runner)
                {
                    if self.random.once_in(8) { &mut self.draining } else { &mut self.late }.push(runner);
                }
                self.blocks[block].arrived += 1;
                self.release(block);
            }
            Stop::Ends => {
                let drained = self.runners[runner].wave.is_drained();
                let b = &mut self.blocks[block];
                b.alive -= 1;
                b.waves.retain(|w| *w != runner);
                self.draining.retain(|w| *w != runner);
                self.late.retain(|w| *w != runner);
                if drained {
                    self.runners.remove(runner);
                } else {
                    b.draining += 1;
                    self.draining.push(runner);
                }
                self.release(block);
                self.end(block);
            }
            Stop::Fault(why) => self.fail(runner, why),
        }
    }

    /// Lets the waves of a block pass the barrier if all that live are there.
    fn release(&mut self, block: usize) {
        let b = &mut self.blocks[block];
        if b.arrived == 0 || b.arrived < b.alive {
            return;
        }
        b.arrived = 0;
        let waves = b.waves.clone();
        for w in waves {
            // Whoever passes with something outstanding may be the last to get on with it: once, or kernels that count on
            // no barrier for their packets would be too slow for any deadline.
            let runner = &mut self.runners[w];
            let first = !runner.wave.is_drained() && !std::mem::replace(&mut runner.passed, true);
            if first && self.random.once_in(2) {
                let until = self.tick + self.random.magnitude(3.3);
                self.stalled.push(Reverse((until, w)));
            } else {
                self.make_ready(w);
            }
        }
    }

    /// An operation of a wave that has ended, or waits at a barrier, takes effect.
    fn drain(&mut self, map: &Map) {
        let which = self.random.below(self.draining.len() as u64) as usize;
        let runner = self.draining[which];
        if let Err(why) = self.with(runner, map, |wave, context| wave.complete_one(context, true)) {
            return self.fail(runner, why);
        }
        if self.runners[runner].wave.is_drained() {
            self.draining.swap_remove(which);
            let block = self.runners[runner].block;
            if self.blocks[block].waves.contains(&runner) {
                return;
            }
            self.runners.remove(runner);
            self.blocks[block].draining -= 1;
            self.end(block);
        }
    }

    /// Ends a block that is done, and its launch with the last one.
    fn end(&mut self, block: usize) {
        let b = &self.blocks[block];
        if b.alive > 0 || b.draining > 0 {
            return;
        }
        let launch = b.launch;
        self.blocks.remove(block);
        let l = &mut self.launches[launch];
        l.live -= 1;
        let device = &mut self.devices[l.spec.device as usize];
        device.used -= l.cost;
        if l.live > 0 || l.next < l.spec.blocks {
            return;
        }
        // What a launch wrote is in memory when it is complete.
        device.history.clear();
        l.caches.lasts.iter_mut().for_each(Cache::write_back);
        // As many as a device of a cache a die has, however many there are.
        let each = (HISTORY / l.caches.all().count().max(1)).max(1);
        for cache in l.caches.all() {
            cache.history.truncate(each);
            device.history.append(&mut cache.history);
        }
        self.finished.push(Finished { token: l.token, fault: None });
        self.launches.remove(launch);
    }

    /// Ends a launch that did what no launch may.
    fn fail(&mut self, runner: usize, why: String) {
        let block = self.runners[runner].block;
        let (launch, number) = (self.blocks[block].launch, self.blocks[block].number);
        let l = &self.launches[launch];
        let program = &l.spec.object.program;
        let at = self.runners[runner].wave.at.saturating_sub(1);
        let address = program.instructions.get(at).map_or(0, |i| i.address);
        let text = format!(
            "device {}, {}, block {number}: {why}; near {address:#x}: {}",
            l.spec.device,
            l.spec.kernel,
            program.text(at)
        );
        let device = &mut self.devices[l.spec.device as usize];
        device.used -= l.cost * u64::from(l.live);
        device.waiting.retain(|w| *w != launch);
        let gone: Vec<usize> = self.blocks.keys().filter(|b| self.blocks[*b].launch == launch).collect();
        let waves: Vec<usize> = self.runners.keys().filter(|r| gone.contains(&self.runners[*r].block)).collect();
        device.ready.retain(|r| !waves.contains(r));
        device.sleeping.retain(|r| !waves.contains(r));
        self.stalled.retain(|Reverse((_, r))| !waves.contains(r));
        self.draining.retain(|r| !waves.contains(r));
        self.late.retain(|r| !waves.contains(r));
        waves.into_iter().for_each(|w| drop(self.runners.remove(w)));
        gone.into_iter().for_each(|b| drop(self.blocks.remove(b)));
        let token = self.launches.remove(launch).token;
        self.finished.push(Finished { token, fault: Some(text) });
    }

    /// Starts blocks for which there is room.
    fn dispatch(&mut self) {
        for d in 0..self.devices.len() {
            while let Some(launch) = self.devices[d].waiting.front().copied() {
                let l = &mut self.launches[launch];
                let room = u64::from(self.settings.units) * UNIT;
                if self.devices[d].used + l.cost > room {
                    break;
                }
                self.devices[d].used += l.cost;
                let number = l.next;
                (l.next, l.live) = (l.next + 1, l.live + 1);
                if l.next == l.spec.blocks {
                    self.devices[d].waiting.pop_front();
                }
                self.start_block(launch, number);
            }
        }
    }

    fn start_block(&mut self, launch: usize, number: u32) {
        let l = &self.launches[launch];
        let kernel = l.kernel();
        let junk = self.random.next() as u8;
        let threads = l.spec.threads;
        let shared = vec![junk; (kernel.shared + l.spec.shared) as usize];
        let lanes = l.spec.object.architecture.lanes;
        let waves = threads.div_ceil(lanes);
        let block = Block { launch, number, waves: Vec::new(), shared, alive: waves, arrived: 0, draining: 0 };
        let block = self.blocks.insert(block);
        let (packet, arguments) = (l.packet.as_ptr() as u64, l.arguments.as_ptr() as u64);
        for w in 0..waves {
            let l = &self.launches[launch];
            let kernel = l.kernel();
            let mut wave = Wave::new(kernel.entry, kernel.vector_registers as usize, lanes, &mut self.random);
            if let Some(at) = kernel.dispatch_at {
                wave.set_pair(at, packet);
            }
            if let Some(at) = kernel.arguments_at {
                wave.set_pair(at, arguments);
            }
            for (at, value) in kernel.block_at.iter().zip([number, 0, 0]) {
                if let Some(at) = at {
                    wave.scalar[usize::from(*at)] = value;
                }
            }
            let active = (threads - w * lanes).min(lanes);
            wave.set_pair(crate::isa::EXEC, u64::MAX >> (64 - active));
            // x in the low 10 bits; y and z, above, are 0.
            wave.vector[0] = std::array::from_fn(|l| w * lanes + l as u32);
            let side = if l.kernel().on_pairs { w % 2 } else { 0 };
            let runner = self.runners.insert(Runner { wave, block, side, passed: false });
            self.blocks[block].waves.push(runner);
            // Waves do not start together.
            let until = self.tick + self.random.below(64);
            self.stalled.push(Reverse((until, runner)));
        }
    }
}

/// The arguments' segment: the caller's, and those that the runtime fills in.
fn arguments(spec: &Spec, kernel: &Kernel) -> Box<[u64]> {
    let mut bytes = spec.arguments.clone();
    bytes.resize(kernel.argument_bytes.max(bytes.len()).next_multiple_of(8), 0);
    for (at, size, what) in &kernel.hidden {
        let along = |axis: u8, x: u32| if axis == 0 { x } else { 1 };
        let value = match what {
            Hidden::BlockCount(axis) => along(*axis, spec.blocks),
            Hidden::GroupSize(axis) => along(*axis, spec.threads),
            Hidden::Zero => 0,
            Hidden::Dimensions => 1,
        };
        bytes[*at..at + size].copy_from_slice(&u64::from(value).to_le_bytes()[..*size]);
    }
    bytes.chunks_exact(8).map(|b| b.iter().rev().fold(0, |all, byte| all << 8 | u64::from(*byte))).collect()
}

/// `hsa_kernel_dispatch_packet_t`, as far as kernels read it.
fn packet(spec: &Spec) -> Box<[u64; 8]> {
    let mut packet = Box::new([0; 8]);
    // Header and dimensions (1), then the block's and the grid's threads.
    packet[0] = 1 << 16 | u64::from(spec.threads) << 32 | 1 << 48;
    packet[1] = 1 | (u64::from(spec.threads) * u64::from(spec.blocks)) << 32;
    packet[2] = 1 | 1 << 32;
    packet[3] = u64::from(spec.shared) << 32;
    packet
}

/// Things with numbers that are used again.
struct Slab<T> {
    items: Vec<Option<T>>,
    free: Vec<usize>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Slab { items: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slab<T> {
    fn insert(&mut self, item: T) -> usize {
        if let Some(k) = self.free.pop() {
            self.items[k] = Some(item);
            return k;
        }
        self.items.push(Some(item));
        self.items.len() - 1
    }
    fn remove(&mut self, k: usize) -> T {
        self.free.push(k);
        self.items[k].take().expect("removed once")
    }
    fn keys(&self) -> impl Iterator<Item = usize> {
        self.items.iter().enumerate().filter(|(_, item)| item.is_some()).map(|(k, _)| k)
    }
}

impl<T> std::ops::Index<usize> for Slab<T> {
    type Output = T;
    fn index(&self, k: usize) -> &T {
        self.items[k].as_ref().expect("it lives")
    }
}
impl<T> std::ops::IndexMut<usize> for Slab<T> {
    fn index_mut(&mut self, k: usize) -> &mut T {
        self.items[k].as_mut().expect("it lives")
    }
}
