//! A wave: its lanes, their registers, and the instructions. Lanes that a target's waves do not have are never active.

use std::collections::VecDeque;

use half::f16;

use crate::{
    architecture::{Architecture, CacheKind},
    floats,
    isa::{EXEC, Instruction, Modifiers, Op, Part, Program, Rest, SC0, SC1, Source, Target, VCC},
    memory::{Allocation, Caches, Kind, Map, Past},
    random::Random,
};

/// Lanes that there is room for: those of the widest waves. `Architecture` says how many a target's have.
pub(crate) const LANES: usize = 64;
type Lanes = [u32; LANES];
type Wide = [u64; LANES];

/// Registers and what is outstanding.
pub(crate) struct Wave {
    pub(crate) scalar: [u32; 128],
    pub(crate) vector: Vec<Lanes>,
    condition: bool,
    pub(crate) at: usize,
    /// The lanes that its target's waves have, which masks have bits for.
    all: u64,
    /// See [`Op::VKeep`].
    kept: Box<Lanes>,
    /// Vector memory operations in the order of issue.
    pub(crate) outstanding: VecDeque<Issued>,
}

pub(crate) struct Issued {
    /// Counted with stores, by targets that count them apart.
    apart: bool,
    /// `None` is complete.
    access: Option<Box<Access>>,
}

/// An outstanding vector memory operation.
pub(crate) struct Access {
    what: What,
    op: Op,
    width: u8,
    scope: u8,
    /// Peers may see it once it is done, whatever is outstanding.
    published: bool,
    target: Option<u8>,
    lanes: u64,
    /// From the lowest address to behind the highest.
    range: (u64, u64),
    address: Wide,
    data: [Lanes; 4],
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum What {
    Load,
    Store,
    Atomic,
    WriteBack,
}

/// What a wave runs in.
pub(crate) struct Context<'a> {
    pub(crate) program: &'a Program,
    pub(crate) map: &'a Map,
    pub(crate) architecture: &'static Architecture,
    pub(crate) caches: Caches<'a>,
    pub(crate) device: u32,
    /// One cache for all of the device: what is done at its scope needs no write-back and no invalidation.
    pub(crate) one_cache: bool,
    pub(crate) shared: &'a mut [u8],
    #[allow(clippy::vec_box)]
    pub(crate) spare: &'a mut Vec<Box<Access>>,
    pub(crate) random: &'a mut Random,
    /// Memory of the launch itself: arguments and the dispatch packet.
    pub(crate) own: [(u64, u64); 2],
    /// Where the code object lies.
    pub(crate) base: u64,
    pub(crate) clock: &'a dyn Fn() -> u64,
    pub(crate) steps: u64,
}

/// Why a burst ended.
#[derive(Debug)]
pub(crate) enum Stop {
    Budget,
    /// It waits for memory.
    Waits,
    /// It issued what peers may see: a moment in which others should run.
    Published,
    /// Peers see a store of its, and not yet what it writes back: others should run for long.
    Exposed,
    Sleeps,
    Barrier,
    Ends,
    Fault(String),
}

impl Access {
    fn new() -> Box<Self> {
        Box::new(Access {
            what: What::Load,
            op: Op::Load,
            width: 0,
            scope: 0,
            published: false,
            target: None,
            lanes: 0,
            range: (0, 0),
            address: [0; LANES],
            data: [[0; LANES]; 4],
        })
    }

    /// Whether `newer`, of the same wave, must not take effect before this.
    fn precedes(&self, newer: &Access) -> bool {
        match (self.what, newer.what) {
            // A write-back covers the stores before it, and nothing waits for it but `s_waitcnt`.
            (What::WriteBack, _) => false,
            (What::Load, What::WriteBack) => false,
            (_, What::WriteBack) => true,
            _ => self.overlaps(newer) || self.shares_registers(newer),
        }
    }

    /// Loads of a wave return in order, of which compilers make use: one whose value nobody needs may be followed by
    /// another into the same registers, without a wait between them. (Such a pair, the other way round, once made a
    /// broadcast's mismatch tell of launches that never were.)
    fn shares_registers(&self, other: &Access) -> bool {
        let registers =
            |a: &Access| a.target.map(|v| (usize::from(v), usize::from(v) + usize::from(a.width).div_ceil(4)));
        matches!((registers(self), registers(other)), (Some(a), Some(b)) if a.0 < b.1 && b.0 < a.1)
    }

    fn overlaps(&self, other: &Access) -> bool {
        if self.range.0 >= other.range.1 || other.range.0 >= self.range.1 {
            return false;
        }
        // Exact where few lanes reach far; many lanes are taken for the whole range.
        if self.lanes.count_ones() > 8 || other.lanes.count_ones() > 8 {
            return true;
        }
        bits(self.lanes).any(|a| {
            bits(other.lanes).any(|b| {
                self.address[a] < other.address[b] + u64::from(other.width)
                    && other.address[b] < self.address[a] + u64::from(self.width)
            })
        })
    }
}

/// The bits that are set.
fn bits(mask: u64) -> impl Iterator<Item = usize> {
    let mut left = mask;
    std::iter::from_fn(move || {
        let bit = left.trailing_zeros() as usize;
        left &= left.wrapping_sub(1);
        (bit < LANES).then_some(bit)
    })
}

impl Wave {
    pub(crate) fn new(entry: usize, registers: usize, lanes: u32, random: &mut Random) -> Self {
        // Whoever reads what nobody wrote shall not find zeros.
        let junk = random.next() as u32;
        Wave {
            scalar: [junk ^ 0x5bad_5bad; 128],
            vector: vec![[junk; LANES]; registers],
            condition: false,
            at: entry,
            all: u64::MAX >> (64 - lanes),
            kept: Box::new([junk; LANES]),
            outstanding: VecDeque::new(),
        }
    }

    fn exec(&self) -> u64 {
        self.pair(EXEC)
    }
    fn pair(&self, at: u8) -> u64 {
        u64::from(self.scalar[at as usize]) | u64::from(self.scalar[at as usize + 1]) << 32
    }
    pub(crate) fn set_pair(&mut self, at: u8, x: u64) {
        self.scalar[at as usize] = x as u32;
        self.scalar[at as usize + 1] = (x >> 32) as u32;
    }

    /// A scalar source.
    fn read(&self, source: Source) -> u32 {
        match source {
            Source::Scalar(s) => self.scalar[s as usize],
            Source::Constant(c) => c as u32,
            Source::Vector(v) => self.vector[v as usize][self.exec().trailing_zeros() as usize % LANES],
            Source::None | Source::Kept => 0,
        }
    }
    fn read_wide(&self, source: Source) -> u64 {
        match source {
            Source::Scalar(s) => self.pair(s),
            Source::Constant(c) => c,
            _ => 0,
        }
    }
    /// A mask of lanes, as many bits as a wave has lanes.
    fn read_mask(&self, source: Source) -> u64 {
        self.all
            & match source {
                Source::Scalar(s) if self.is_narrow() => self.scalar[s as usize].into(),
                other => self.read_wide(other),
            }
    }
    fn write_mask(&mut self, target: Target, x: u64) {
        if self.is_narrow() { self.write(target, x as u32) } else { self.write_wide(target, x) }
    }
    fn lane_count(&self) -> usize {
        self.all.count_ones() as usize
    }
    fn is_narrow(&self) -> bool {
        self.all != u64::MAX
    }
    fn write(&mut self, target: Target, x: u32) {
        if let Target::Scalar(s) = target {
            self.scalar[s as usize] = x;
        }
    }
    fn write_wide(&mut self, target: Target, x: u64) {
        if let Target::Scalar(s) = target {
            self.set_pair(s, x);
        }
    }

    /// A source of all lanes; `buffer` is where it is made if it is no register as it stands.
    #[inline(always)]
    fn lanes<'a>(&'a self, i: &Instruction, at: usize, sign: u32, buffer: &'a mut Lanes) -> &'a Lanes {
        match i.source[at] {
            Source::Vector(v) if !i.modified => &self.vector[v as usize],
            source => {
                match source {
                    Source::Vector(v) => *buffer = self.vector[v as usize],
                    Source::Kept => *buffer = *self.kept,
                    other => *buffer = [self.read(other); LANES],
                }
                if i.modified {
                    modify(buffer, &i.modifiers, at, sign);
                }
                buffer
            }
        }
    }
    #[inline(always)]
    fn wide<'a>(&self, i: &Instruction, at: usize, buffer: &'a mut Wide) -> &'a Wide {
        match i.source[at] {
            Source::Vector(v) => {
                let (low, high) = (&self.vector[v as usize], &self.vector[v as usize + 1]);
                for l in 0..LANES {
                    buffer[l] = u64::from(low[l]) | u64::from(high[l]) << 32;
                }
            }
            other => *buffer = [self.read_wide(other); LANES],
        }
        if i.modified {
            for x in buffer.iter_mut() {
                if i.modifiers.absolute >> at & 1 != 0 {
                    *x &= i64::MAX as u64;
                }
                if i.modifiers.negate >> at & 1 != 0 {
                    *x ^= 1 << 63;
                }
            }
        }
        buffer
    }

    #[inline(always)]
    fn put(&mut self, i: &Instruction, lanes: u64, from: &Lanes) {
        let Target::Vector(v) = i.target else { return };
        let to = &mut self.vector[v as usize];
        if i.modified && i.modifiers.target != Part::Whole {
            return put_part(to, lanes, from, &i.modifiers);
        }
        put_lanes(to, lanes, from);
    }
    #[inline(always)]
    fn put_wide(&mut self, i: &Instruction, lanes: u64, from: &Wide) {
        let Target::Vector(v) = i.target else { return };
        let (mut low, mut high) = ([0; LANES], [0; LANES]);
        for l in 0..LANES {
            low[l] = from[l] as u32;
            high[l] = (from[l] >> 32) as u32;
        }
        put_lanes(&mut self.vector[v as usize], lanes, &low);
        put_lanes(&mut self.vector[v as usize + 1], lanes, &high);
    }

    /// Runs up to `budget` instructions.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn run(&mut self, context: &mut Context<'_>, budget: u32) -> Stop {
        // SAFETY: `settings` has seen that the processor has what the function asks for.
        unsafe { self.run_wide(context, budget) }
    }

    /// Made for processors with wide vectors, once: it is a large function.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma,bmi1,bmi2,popcnt,lzcnt,f16c")]
    fn run_wide(&mut self, context: &mut Context<'_>, budget: u32) -> Stop {
        self.run_any(context, budget)
    }

    /// Runs up to `budget` instructions.
    #[cfg(not(target_arch = "x86_64"))]
    pub(crate) fn run(&mut self, context: &mut Context<'_>, budget: u32) -> Stop {
        self.run_any(context, budget)
    }

    #[inline(always)]
    fn run_any(&mut self, context: &mut Context<'_>, budget: u32) -> Stop {
        let mut scratch = Scratch { narrow: [[0; LANES]; 3], wide: [[0; LANES]; 3] };
        for _ in 0..budget {
            let Some(i) = context.program.instructions.get(self.at) else {
                return Stop::Fault("it ran beyond its code".to_owned());
            };
            self.at += 1;
            context.steps += 1;
            if let Some(stop) = self.step(i, context, &mut scratch) {
                return stop;
            }
        }
        Stop::Budget
    }

    #[inline(always)]
    #[allow(clippy::cognitive_complexity)]
    fn step(&mut self, i: &Instruction, context: &mut Context<'_>, scratch: &mut Scratch) -> Option<Stop> {
        let exec = self.exec();
        let Scratch { narrow: [ka, kb, kc], wide: [wa, wb, wc] } = scratch;
        let float = f32::from_bits;
        let double = f64::from_bits;

        // Scalar operations: of one or two sources, with or without a condition.
        macro_rules! s1 {
            (|$a:ident| $value:expr) => {{
                let $a = self.read(i.source[0]);
                let value = $value;
                self.write(i.target, value);
            }};
        }
        macro_rules! s2 {
            (|$a:ident, $b:ident| $value:expr) => {{
                let ($a, $b) = (self.read(i.source[0]), self.read(i.source[1]));
                let value = $value;
                self.write(i.target, value);
            }};
        }
        // The condition is "not zero".
        macro_rules! s2c {
            (|$a:ident, $b:ident| $value:expr) => {{
                let ($a, $b) = (self.read(i.source[0]), self.read(i.source[1]));
                let value = $value;
                self.write(i.target, value);
                self.condition = value != 0;
            }};
        }
        macro_rules! w2c {
            (|$a:ident, $b:ident| $value:expr) => {{
                let ($a, $b) = (self.read_wide(i.source[0]), self.read_wide(i.source[1]));
                let value: u64 = $value;
                self.write_wide(i.target, value);
                self.condition = value != 0;
            }};
        }
        macro_rules! shift64 {
            (|$a:ident, $b:ident| $value:expr) => {{
                let ($a, $b) = (self.read_wide(i.source[0]), self.read(i.source[1]));
                let value: u64 = $value;
                self.write_wide(i.target, value);
                self.condition = value != 0;
            }};
        }
        macro_rules! save_exec {
            (|$a:ident| $value:expr) => {{
                let $a = self.read_mask(i.source[0]);
                let value: u64 = $value & self.all;
                self.write_mask(i.target, exec);
                self.set_pair(EXEC, value);
                self.condition = value != 0;
            }};
        }
        macro_rules! compare {
            ($kind:ty, |$a:ident, $b:ident| $value:expr) => {{
                let ($a, $b) = (self.read(i.source[0]) as $kind, self.read(i.source[1]) as $kind);
                self.condition = $value;
            }};
        }
        // Against 16 bits, extended by kind.
        macro_rules! compare_short {
            (signed |$a:ident, $b:ident| $value:expr) => {{
                let ($a, $b) = (self.read(i.source[0]) as i32, i32::from(self.read(i.source[1]) as i16));
                self.condition = $value;
            }};
            (unsigned |$a:ident, $b:ident| $value:expr) => {{
                let ($a, $b) = (self.read(i.source[0]), self.read(i.source[1]) & 0xffff);
                self.condition = $value;
            }};
        }
        macro_rules! branch {
            ($condition:expr) => {
                if $condition {
                    self.at = i.value as usize;
                }
            };
        }
        // Vector operations: `value` for each active lane.
        macro_rules! each {
            ($l:ident, $value:expr) => {{
                let mut out: Lanes = [0; LANES];
                if exec.count_ones() > 6 {
                    for $l in 0..LANES {
                        out[$l] = $value;
                    }
                } else {
                    for $l in bits(exec) {
                        out[$l] = $value;
                    }
                }
                self.put(i, exec, &out);
            }};
        }
        macro_rules! each_wide {
            ($l:ident, $value:expr) => {{
                let mut out: Wide = [0; LANES];
                if exec.count_ones() > 6 {
                    for $l in 0..LANES {
                        out[$l] = $value;
                    }
                } else {
                    for $l in bits(exec) {
                        out[$l] = $value;
                    }
                }
                self.put_wide(i, exec, &out);
            }};
        }
        const SINGLE: u32 = 1 << 31;
        const HALF: u32 = 1 << 15;
        macro_rules! v1 {
            (|$a:ident| $value:expr) => {
                v1!(SINGLE, |$a| $value)
            };
            ($sign:expr, |$a:ident| $value:expr) => {{
                let a = self.lanes(i, 0, $sign, ka);
                each!(l, {
                    let $a = a[l];
                    $value
                })
            }};
        }
        macro_rules! v2 {
            (|$a:ident, $b:ident| $value:expr) => {
                v2!(SINGLE, |$a, $b| $value)
            };
            ($sign:expr, |$a:ident, $b:ident| $value:expr) => {{
                let (a, b) = (self.lanes(i, 0, $sign, ka), self.lanes(i, 1, $sign, kb));
                each!(l, {
                    let ($a, $b) = (a[l], b[l]);
                    $value
                })
            }};
        }
        macro_rules! v3 {
            (|$a:ident, $b:ident, $c:ident| $value:expr) => {{
                let (a, b) = (self.lanes(i, 0, SINGLE, ka), self.lanes(i, 1, SINGLE, kb));
                let c = self.lanes(i, 2, SINGLE, kc);
                each!(l, {
                    let ($a, $b, $c) = (a[l], b[l], c[l]);
                    $value
                })
            }};
        }
        macro_rules! f2 {
            (|$a:ident, $b:ident| $value:expr) => {
                v2!(|a, b| {
                    let ($a, $b) = (float(a), float(b));
                    f32::to_bits($value)
                })
            };
        }
        macro_rules! d2 {
            (|$a:ident, $b:ident| $value:expr) => {{
                let (a, b) = (self.wide(i, 0, wa), self.wide(i, 1, wb));
                each_wide!(l, {
                    let ($a, $b) = (double(a[l]), double(b[l]));
                    f64::to_bits($value)
                })
            }};
        }
        macro_rules! d3 {
            (|$a:ident, $b:ident, $c:ident| $value:expr) => {{
                let (a, b, c) = (self.wide(i, 0, wa), self.wide(i, 1, wb), self.wide(i, 2, wc));
                each_wide!(l, {
                    let ($a, $b, $c) = (double(a[l]), double(b[l]), double(c[l]));
                    f64::to_bits($value)
                })
            }};
        }
        macro_rules! d1 {
            (|$a:ident| $value:expr) => {{
                let a = self.wide(i, 0, wa);
                each_wide!(l, {
                    let $a = double(a[l]);
                    f64::to_bits($value)
                })
            }};
        }
        // Sums with a carry, that goes to a pair of scalars.
        macro_rules! carry {
            (|$a:ident, $b:ident, $c:ident| $value:expr) => {{
                let (a, b) = (self.lanes(i, 0, SINGLE, ka), self.lanes(i, 1, SINGLE, kb));
                let carries = self.read_mask(i.source[2]);
                let (mut out, mut flags): (Lanes, [u8; LANES]) = ([0; LANES], [0; LANES]);
                for l in 0..LANES {
                    let ($a, $b, $c) = (a[l], b[l], (carries >> l & 1) as u32);
                    let (value, flag): (u32, bool) = $value;
                    out[l] = value;
                    flags[l] = u8::from(flag);
                }
                self.put(i, exec, &out);
                let carries = gather(&flags) & exec;
                self.write_mask(i.second, carries);
            }};
        }
        macro_rules! mask {
            ($l:ident, $value:expr) => {{
                let mut flags = [0u8; LANES];
                if exec.count_ones() > 6 {
                    for $l in 0..LANES {
                        flags[$l] = u8::from($value);
                    }
                } else {
                    for $l in bits(exec) {
                        flags[$l] = u8::from($value);
                    }
                }
                let found = gather(&flags) & exec;
                self.write_mask(i.target, found);
            }};
        }
        macro_rules! cmp {
            ($kind:ty, |$a:ident, $b:ident| $value:expr) => {{
                let (a, b) = (self.lanes(i, 0, SINGLE, ka), self.lanes(i, 1, SINGLE, kb));
                mask!(l, {
                    let ($a, $b) = (a[l] as $kind, b[l] as $kind);
                    $value
                })
            }};
        }
        macro_rules! cmp64 {
            ($kind:ty, |$a:ident, $b:ident| $value:expr) => {{
                let (a, b) = (self.wide(i, 0, wa), self.wide(i, 1, wb));
                mask!(l, {
                    let ($a, $b) = (a[l] as $kind, b[l] as $kind);
                    $value
                })
            }};
        }
        macro_rules! cmpf {
            (|$a:ident, $b:ident| $value:expr) => {
                cmp!(u32, |a, b| {
                    let ($a, $b) = (float(a), float(b));
                    $value
                })
            };
        }
        macro_rules! cmpd {
            (|$a:ident, $b:ident| $value:expr) => {
                cmp64!(u64, |a, b| {
                    let ($a, $b) = (double(a), double(b));
                    $value
                })
            };
        }
        macro_rules! pack {
            (|$($x:ident),*| $value:expr) => {{
                let sources = [self.wide(i, 0, wa) as &Wide, self.wide(i, 1, wb), self.wide(i, 2, wc)];
                let (low, high) = (i.modifiers.low, i.modifiers.high);
                let pick = |k: usize, l: usize, which: u8| (sources[k][l] >> (32 * u32::from(which >> k & 1))) as u32;
                let of = |l: usize, which: u8| {
                    let mut k = 0;
                    $(let $x = float(pick(k, l, which)); k += 1;)*
                    let _ = k;
                    f32::to_bits($value)
                };
                each_wide!(l, u64::from(of(l, low)) | u64::from(of(l, high)) << 32)
            }};
        }

        match i.op {
            Op::Nop | Op::SetPriority | Op::SDcacheInv | Op::SIcacheInv | Op::VNop => {}
            Op::Delay | Op::Clause | Op::WaitHazard | Op::Prefetch | Op::Message => {}
            Op::CodeEnd => return Some(Stop::Fault("it ran beyond its code".to_owned())),
            Op::VKeep => {
                if let Source::Vector(v) = i.source[0] {
                    *self.kept = self.vector[v as usize];
                }
            }
            Op::Sleep => return Some(Stop::Sleeps),
            Op::End => return Some(Stop::Ends),
            Op::Barrier => return Some(Stop::Barrier),
            Op::Wait => return self.wait(i.value, false, context),
            Op::WaitStores => return self.wait(i.value, true, context),
            Op::Branch => branch!(true),
            Op::BranchExecZ => branch!(exec == 0),
            Op::BranchExecNz => branch!(exec != 0),
            Op::BranchScc0 => branch!(!self.condition),
            Op::BranchScc1 => branch!(self.condition),
            Op::BranchVccZ => branch!(self.read_mask(Source::Scalar(VCC)) == 0),
            Op::BranchVccNz => branch!(self.read_mask(Source::Scalar(VCC)) != 0),

            Op::SMov => s1!(|a| a),
            Op::SMovK => s1!(|a| a as i16 as u32),
            Op::SMov64 => {
                let x = self.read_wide(i.source[0]);
                self.write_wide(i.target, x);
            }
            Op::SCMov => {
                if self.condition {
                    s1!(|a| a)
                }
            }
            Op::SCMov64 => {
                if self.condition {
                    let x = self.read_wide(i.source[0]);
                    self.write_wide(i.target, x);
                }
            }
            Op::SAddU => s2!(|a, b| {
                let (sum, carry) = a.overflowing_add(b);
                self.condition = carry;
                sum
            }),
            Op::SAddI => s2!(|a, b| {
                let (sum, overflow) = (a as i32).overflowing_add(b as i32);
                self.condition = overflow;
                sum as u32
            }),
            Op::SAddC => s2!(|a, b| {
                let sum = u64::from(a) + u64::from(b) + u64::from(self.condition);
                self.condition = sum >> 32 != 0;
                sum as u32
            }),
            Op::SSubU => s2!(|a, b| {
                self.condition = b > a;
                a.wrapping_sub(b)
            }),
            Op::SSubI => s2!(|a, b| {
                let (difference, overflow) = (a as i32).overflowing_sub(b as i32);
                self.condition = overflow;
                difference as u32
            }),
            Op::SSubB => s2!(|a, b| {
                let take = u64::from(b) + u64::from(self.condition);
                self.condition = take > u64::from(a);
                (u64::from(a)).wrapping_sub(take) as u32
            }),
            Op::SAddK | Op::SMulK => {
                let Target::Scalar(s) = i.target else { return Some(bad(i)) };
                let (a, b) = (self.scalar[s as usize] as i32, i32::from(self.read(i.source[0]) as i16));
                let (value, overflow) =
                    if i.op == Op::SAddK { a.overflowing_add(b) } else { (a.wrapping_mul(b), self.condition) };
                self.write(i.target, value as u32);
                self.condition = overflow;
            }
            Op::SMul => s2!(|a, b| a.wrapping_mul(b)),
            Op::SMulHiU => s2!(|a, b| ((u64::from(a) * u64::from(b)) >> 32) as u32),
            Op::SMulHiI => s2!(|a, b| ((i64::from(a as i32) * i64::from(b as i32)) >> 32) as u32),
            Op::SAnd => s2c!(|a, b| a & b),
            Op::SOr => s2c!(|a, b| a | b),
            Op::SXor => s2c!(|a, b| a ^ b),
            Op::SAndN2 => s2c!(|a, b| a & !b),
            Op::SOrN2 => s2c!(|a, b| a | !b),
            Op::SNand => s2c!(|a, b| !(a & b)),
            Op::SNor => s2c!(|a, b| !(a | b)),
            Op::SXnor => s2c!(|a, b| !(a ^ b)),
            Op::SAnd64 => w2c!(|a, b| a & b),
            Op::SOr64 => w2c!(|a, b| a | b),
            Op::SXor64 => w2c!(|a, b| a ^ b),
            Op::SAndN264 => w2c!(|a, b| a & !b),
            Op::SOrN264 => w2c!(|a, b| a | !b),
            Op::SNand64 => w2c!(|a, b| !(a & b)),
            Op::SNor64 => w2c!(|a, b| !(a | b)),
            Op::SXnor64 => w2c!(|a, b| !(a ^ b)),
            Op::SLshl => s2c!(|a, b| a << (b & 31)),
            Op::SLshr => s2c!(|a, b| a >> (b & 31)),
            Op::SAshr => s2c!(|a, b| ((a as i32) >> (b & 31)) as u32),
            Op::SLshl64 => shift64!(|a, b| a << (b & 63)),
            Op::SLshr64 => shift64!(|a, b| a >> (b & 63)),
            Op::SAshr64 => shift64!(|a, b| ((a as i64) >> (b & 63)) as u64),
            Op::SLshl1Add | Op::SLshl2Add | Op::SLshl3Add | Op::SLshl4Add => s2!(|a, b| {
                let by = i.op as u32 - Op::SLshl1Add as u32 + 1;
                let sum = (u64::from(a) << by) + u64::from(b);
                self.condition = sum >> 32 != 0;
                sum as u32
            }),
            Op::SBfm => s2!(|a, b| ((1u32 << (a & 31)) - 1) << (b & 31)),
            Op::SBfeU => s2c!(|a, b| field(a.into(), b, 31) as u32),
            Op::SBfeI => s2c!(|a, b| signed_field(a.into(), b, 31) as u32),
            Op::SBfeU64 => shift64!(|a, b| field(a, b, 63)),
            Op::SBfeI64 => shift64!(|a, b| signed_field(a, b, 63) as u64),
            Op::SMinU | Op::SMaxU | Op::SMinI | Op::SMaxI => s2!(|a, b| {
                // The condition: the first one was taken.
                self.condition = match i.op {
                    Op::SMinU => a < b,
                    Op::SMaxU => a > b,
                    Op::SMinI => (a as i32) < b as i32,
                    _ => a as i32 > b as i32,
                };
                if self.condition { a } else { b }
            }),
            Op::SCSelect => s2!(|a, b| if self.condition { a } else { b }),
            Op::SCSelect64 => {
                let x = self.read_wide(i.source[usize::from(!self.condition)]);
                self.write_wide(i.target, x);
            }
            Op::SPackLL => s2!(|a, b| a & 0xffff | b << 16),
            Op::SPackLH => s2!(|a, b| a & 0xffff | b & 0xffff_0000),
            Op::SPackHH => s2!(|a, b| a >> 16 | b & 0xffff_0000),
            Op::SNot => s2c!(|a, _b| !a),
            Op::SNot64 => w2c!(|a, _b| !a),
            Op::SBrev => s1!(|a| a.reverse_bits()),
            Op::SAbs => s2c!(|a, _b| (a as i32).unsigned_abs()),
            Op::SSext8 => s1!(|a| a as i8 as u32),
            Op::SSext16 => s1!(|a| a as i16 as u32),
            Op::SBcnt1 => s2c!(|a, _b| a.count_ones()),
            Op::SBcnt164 => {
                let count = self.read_wide(i.source[0]).count_ones();
                self.write(i.target, count);
                self.condition = count != 0;
            }
            Op::SFf1 => s1!(|a| if a == 0 { u32::MAX } else { a.trailing_zeros() }),
            Op::SFf164 => {
                let a = self.read_wide(i.source[0]);
                self.write(i.target, if a == 0 { u32::MAX } else { a.trailing_zeros() });
            }
            Op::SFlbit => s1!(|a| if a == 0 { u32::MAX } else { a.leading_zeros() }),
            Op::SFlbit64 => {
                let a = self.read_wide(i.source[0]);
                self.write(i.target, if a == 0 { u32::MAX } else { a.leading_zeros() });
            }
            Op::SBitset0 | Op::SBitset1 => {
                let Target::Scalar(s) = i.target else { return Some(bad(i)) };
                let bit = 1 << (self.read(i.source[0]) & 31);
                let word = &mut self.scalar[s as usize];
                *word = if i.op == Op::SBitset1 { *word | bit } else { *word & !bit };
            }
            Op::SAndSaveExec => save_exec!(|a| a & exec),
            Op::SOrSaveExec => save_exec!(|a| a | exec),
            Op::SXorSaveExec => save_exec!(|a| a ^ exec),
            Op::SAndN2SaveExec => save_exec!(|a| a & !exec),
            Op::SOrN2SaveExec => save_exec!(|a| a | !exec),
            Op::SAndN1SaveExec => save_exec!(|a| !a & exec),
            Op::SCmpEqI | Op::SCmpEqU => compare!(u32, |a, b| a == b),
            Op::SCmpLgI | Op::SCmpLgU => compare!(u32, |a, b| a != b),
            Op::SCmpGtI => compare!(i32, |a, b| a > b),
            Op::SCmpGeI => compare!(i32, |a, b| a >= b),
            Op::SCmpLtI => compare!(i32, |a, b| a < b),
            Op::SCmpLeI => compare!(i32, |a, b| a <= b),
            Op::SCmpGtU => compare!(u32, |a, b| a > b),
            Op::SCmpGeU => compare!(u32, |a, b| a >= b),
            Op::SCmpLtU => compare!(u32, |a, b| a < b),
            Op::SCmpLeU => compare!(u32, |a, b| a <= b),
            Op::SCmpEqU64 => self.condition = self.read_wide(i.source[0]) == self.read_wide(i.source[1]),
            Op::SCmpLgU64 => self.condition = self.read_wide(i.source[0]) != self.read_wide(i.source[1]),
            Op::SCmpKEqI => compare_short!(signed | a, b | a == b),
            Op::SCmpKLgI => compare_short!(signed | a, b | a != b),
            Op::SCmpKGtI => compare_short!(signed | a, b | a > b),
            Op::SCmpKGeI => compare_short!(signed | a, b | a >= b),
            Op::SCmpKLtI => compare_short!(signed | a, b | a < b),
            Op::SCmpKLeI => compare_short!(signed | a, b | a <= b),
            Op::SCmpKEqU => compare_short!(unsigned | a, b | a == b),
            Op::SCmpKLgU => compare_short!(unsigned | a, b | a != b),
            Op::SCmpKGtU => compare_short!(unsigned | a, b | a > b),
            Op::SCmpKGeU => compare_short!(unsigned | a, b | a >= b),
            Op::SCmpKLtU => compare_short!(unsigned | a, b | a < b),
            Op::SCmpKLeU => compare_short!(unsigned | a, b | a <= b),
            Op::SBitCmp0 => compare!(u32, |a, b| a >> (b & 31) & 1 == 0),
            Op::SBitCmp1 => compare!(u32, |a, b| a >> (b & 31) & 1 == 1),
            Op::SBitCmp064 => self.condition = self.read_wide(i.source[0]) >> (self.read(i.source[1]) & 63) & 1 == 0,
            Op::SBitCmp164 => self.condition = self.read_wide(i.source[0]) >> (self.read(i.source[1]) & 63) & 1 == 1,
            // Of four bytes, as all forms of it are.
            Op::SGetPc => self.write_wide(i.target, context.base + u64::from(i.address) + 4),
            Op::SLoad | Op::SLoad2 | Op::SLoad4 | Op::SLoad8 | Op::SLoad16 => return self.load_scalars(i, context),
            Op::SMemTime | Op::SMemRealTime | Op::MessageTime => {
                let now = (context.clock)();
                self.write_wide(i.target, now);
            }

            Op::VMov => v1!(|a| a),
            Op::VMov64 => {
                let a = self.wide(i, 0, wa);
                each_wide!(l, a[l])
            }
            Op::VNot => v1!(|a| !a),
            Op::VBfrev => v1!(|a| a.reverse_bits()),
            Op::VFfbl => v1!(|a| if a == 0 { u32::MAX } else { a.trailing_zeros() }),
            Op::VFfbhU => v1!(|a| if a == 0 { u32::MAX } else { a.leading_zeros() }),
            Op::VFfbhI => v1!(|a| {
                let x = if (a as i32) < 0 { !a } else { a };
                if x == 0 { u32::MAX } else { x.leading_zeros() }
            }),
            Op::VBcnt => v2!(|a, b| a.count_ones().wrapping_add(b)),
            Op::VReadFirstLane => {
                // With no lane active it is the first of all.
                let lane = if exec == 0 { 0 } else { exec.trailing_zeros() as usize };
                let x = match i.source[0] {
                    Source::Vector(v) => self.vector[v as usize][lane],
                    other => self.read(other),
                };
                self.write(i.target, x);
            }
            Op::VReadLane => {
                let lane = self.read(i.source[1]) as usize % self.lane_count();
                let Source::Vector(v) = i.source[0] else { return Some(bad(i)) };
                let x = self.vector[v as usize][lane];
                self.write(i.target, x);
            }
            Op::VWriteLane => {
                let (x, lane) = (self.read(i.source[0]), self.read(i.source[1]) as usize % self.lane_count());
                let Target::Vector(v) = i.target else { return Some(bad(i)) };
                self.vector[v as usize][lane] = x;
            }
            Op::VMbcntLo | Op::VMbcntHi => {
                let (a, b) = (self.lanes(i, 0, SINGLE, ka), self.lanes(i, 1, SINGLE, kb));
                let high = i.op == Op::VMbcntHi;
                each!(l, {
                    let below = (1u64 << l) - 1;
                    let below = if high { below >> 32 } else { below };
                    (a[l] & below as u32).count_ones().wrapping_add(b[l])
                })
            }
            Op::VAddU => v2!(|a, b| a.wrapping_add(b)),
            Op::VSubU => v2!(|a, b| a.wrapping_sub(b)),
            Op::VSubRevU => v2!(|a, b| b.wrapping_sub(a)),
            Op::VAddCo => carry!(|a, b, _c| a.overflowing_add(b)),
            Op::VSubCo => carry!(|a, b, _c| a.overflowing_sub(b)),
            Op::VSubRevCo => carry!(|a, b, _c| b.overflowing_sub(a)),
            Op::VAddC => carry!(|a, b, c| {
                let sum = u64::from(a) + u64::from(b) + u64::from(c);
                (sum as u32, sum >> 32 != 0)
            }),
            Op::VSubB => carry!(|a, b, c| {
                let take = u64::from(b) + u64::from(c);
                (u64::from(a).wrapping_sub(take) as u32, take > u64::from(a))
            }),
            Op::VSubBRev => carry!(|a, b, c| {
                let take = u64::from(a) + u64::from(c);
                (u64::from(b).wrapping_sub(take) as u32, take > u64::from(b))
            }),
            Op::VAnd => v2!(|a, b| a & b),
            Op::VOr => v2!(|a, b| a | b),
            Op::VXor => v2!(|a, b| a ^ b),
            Op::VXnor => v2!(|a, b| !(a ^ b)),
            Op::VLshlRev => v2!(|a, b| b << (a & 31)),
            Op::VLshrRev => v2!(|a, b| b >> (a & 31)),
            Op::VAshrRev => v2!(|a, b| ((b as i32) >> (a & 31)) as u32),
            Op::VLshlRev64 | Op::VLshrRev64 | Op::VAshrRev64 => {
                let (a, b) = (self.lanes(i, 0, SINGLE, ka), self.wide(i, 1, wb));
                match i.op {
                    Op::VLshlRev64 => each_wide!(l, b[l] << (a[l] & 63)),
                    Op::VLshrRev64 => each_wide!(l, b[l] >> (a[l] & 63)),
                    _ => each_wide!(l, ((b[l] as i64) >> (a[l] & 63)) as u64),
                }
            }
            Op::VLshlAdd64 => {
                let (a, b, c) = (self.wide(i, 0, wa), self.lanes(i, 1, SINGLE, kb), self.wide(i, 2, wc));
                each_wide!(l, (a[l] << (b[l] & 7)).wrapping_add(c[l]))
            }
            Op::VLshlAdd => v3!(|a, b, c| (a << (b & 31)).wrapping_add(c)),
            Op::VAddLshl => v3!(|a, b, c| a.wrapping_add(b) << (c & 31)),
            Op::VLshlOr => v3!(|a, b, c| a << (b & 31) | c),
            Op::VAndOr => v3!(|a, b, c| a & b | c),
            Op::VOr3 => v3!(|a, b, c| a | b | c),
            Op::VAdd3 => v3!(|a, b, c| a.wrapping_add(b).wrapping_add(c)),
            Op::VXad => v3!(|a, b, c| (a ^ b).wrapping_add(c)),
            Op::VMinU => v2!(|a, b| a.min(b)),
            Op::VMaxU => v2!(|a, b| a.max(b)),
            Op::VMinI => v2!(|a, b| (a as i32).min(b as i32) as u32),
            Op::VMaxI => v2!(|a, b| (a as i32).max(b as i32) as u32),
            Op::VMin3U => v3!(|a, b, c| a.min(b).min(c)),
            Op::VMax3U => v3!(|a, b, c| a.max(b).max(c)),
            Op::VMin3I => v3!(|a, b, c| (a as i32).min(b as i32).min(c as i32) as u32),
            Op::VMax3I => v3!(|a, b, c| (a as i32).max(b as i32).max(c as i32) as u32),
            Op::VMed3U => v3!(|a, b, c| a.max(b).min(a.min(b).max(c))),
            Op::VMed3I => v3!(|a, b, c| {
                let (a, b, c) = (a as i32, b as i32, c as i32);
                a.max(b).min(a.min(b).max(c)) as u32
            }),
            Op::VBfeU => v3!(|a, b, c| a >> (b & 31) & ((1u32 << (c & 31)) - 1)),
            Op::VBfeI => v3!(|a, b, c| {
                let width = c & 31;
                if width == 0 { 0 } else { (((a >> (b & 31)) << (32 - width)) as i32 >> (32 - width)) as u32 }
            }),
            Op::VBfi => v3!(|a, b, c| a & b | !a & c),
            Op::VBfm => v2!(|a, b| ((1u32 << (a & 31)) - 1) << (b & 31)),
            Op::VAlignBit => v3!(|a, b, c| ((u64::from(a) << 32 | u64::from(b)) >> (c & 31)) as u32),
            Op::VAlignByte => v3!(|a, b, c| ((u64::from(a) << 32 | u64::from(b)) >> (8 * (c & 3))) as u32),
            Op::VPerm => v3!(|a, b, c| permute(a, b, c)),
            Op::VCndMask => {
                let (a, b) = (self.lanes(i, 0, SINGLE, ka), self.lanes(i, 1, SINGLE, kb));
                let which = self.read_mask(i.source[2]);
                each!(l, if which >> l & 1 == 1 { b[l] } else { a[l] })
            }
            Op::VMulLo => v2!(|a, b| a.wrapping_mul(b)),
            Op::VMulHiU => v2!(|a, b| ((u64::from(a) * u64::from(b)) >> 32) as u32),
            Op::VMulHiI => v2!(|a, b| ((i64::from(a as i32) * i64::from(b as i32)) >> 32) as u32),
            Op::VMulU24 => v2!(|a, b| (a & 0xff_ffff).wrapping_mul(b & 0xff_ffff)),
            Op::VMulHiU24 => v2!(|a, b| ((u64::from(a & 0xff_ffff) * u64::from(b & 0xff_ffff)) >> 32) as u32),
            Op::VMulI24 => v2!(|a, b| low24(a).wrapping_mul(low24(b)) as u32),
            Op::VMadU24 => v3!(|a, b, c| (a & 0xff_ffff).wrapping_mul(b & 0xff_ffff).wrapping_add(c)),
            Op::VMadI24 => v3!(|a, b, c| (low24(a).wrapping_mul(low24(b)) as u32).wrapping_add(c)),
            Op::VMadU64 | Op::VMadI64 => {
                let (a, b) = (self.lanes(i, 0, SINGLE, ka), self.lanes(i, 1, SINGLE, kb));
                let c = self.wide(i, 2, wc);
                let (mut out, mut flags) = ([0; LANES], [0u8; LANES]);
                for l in 0..LANES {
                    let (sum, flag) = if i.op == Op::VMadU64 {
                        (u64::from(a[l]) * u64::from(b[l])).overflowing_add(c[l])
                    } else {
                        let product = i64::from(a[l] as i32) * i64::from(b[l] as i32);
                        let (sum, overflow) = product.overflowing_add(c[l] as i64);
                        (sum as u64, overflow)
                    };
                    out[l] = sum;
                    flags[l] = u8::from(flag);
                }
                self.put_wide(i, exec, &out);
                self.write_mask(i.second, gather(&flags) & exec);
            }
            // Of 16 bits; the upper half becomes 0.
            Op::VLshlRev16 => v2!(|a, b| (b & 0xffff) << (a & 15) & 0xffff),
            Op::VLshrRev16 => v2!(|a, b| (b & 0xffff) >> (a & 15)),
            Op::VAshrRev16 => v2!(|a, b| (i32::from(b as i16) >> (a & 15)) as u32 & 0xffff),
            Op::VAddU16 => v2!(|a, b| a.wrapping_add(b) & 0xffff),
            Op::VSubU16 => v2!(|a, b| a.wrapping_sub(b) & 0xffff),
            Op::VSubRevU16 => v2!(|a, b| b.wrapping_sub(a) & 0xffff),
            Op::VMulLo16 => v2!(|a, b| a.wrapping_mul(b) & 0xffff),
            Op::VMadU16 | Op::VMadU16B => v3!(|a, b, c| a.wrapping_mul(b).wrapping_add(c) & 0xffff),
            Op::VMinU16 => v2!(|a, b| (a & 0xffff).min(b & 0xffff)),
            Op::VMaxU16 => v2!(|a, b| (a & 0xffff).max(b & 0xffff)),
            Op::VMinI16 => v2!(|a, b| u32::from((a as i16).min(b as i16) as u16)),
            Op::VMaxI16 => v2!(|a, b| u32::from((a as i16).max(b as i16) as u16)),
            Op::VPack => v2!(HALF, |a, b| a & 0xffff | b << 16),

            Op::VAddF => f2!(|a, b| a + b),
            Op::VSubF => f2!(|a, b| a - b),
            Op::VSubRevF => f2!(|a, b| b - a),
            Op::VMulF => f2!(|a, b| a * b),
            Op::VMinF => f2!(|a, b| floats::min(a, b)),
            Op::VMaxF => f2!(|a, b| floats::max(a, b)),
            Op::VFmaF => v3!(|a, b, c| float(a).mul_add(float(b), float(c)).to_bits()),
            Op::VFmamkF => v3!(|a, b, c| float(a).mul_add(float(b), float(c)).to_bits()),
            Op::VFmaakF => v3!(|a, b, c| float(a).mul_add(float(b), float(c)).to_bits()),
            Op::VFmacF => {
                let Target::Vector(v) = i.target else { return Some(bad(i)) };
                let (a, b) = (self.lanes(i, 0, SINGLE, ka), self.lanes(i, 1, SINGLE, kb));
                let c = &self.vector[v as usize];
                each!(l, float(a[l]).mul_add(float(b[l]), float(c[l])).to_bits())
            }
            Op::VMadF | Op::VMadmkF | Op::VMadakF => {
                v3!(|a, b, c| floats::multiply_add(float(a), float(b), float(c)).to_bits())
            }
            Op::VMacF => {
                let Target::Vector(v) = i.target else { return Some(bad(i)) };
                let (a, b) = (self.lanes(i, 0, SINGLE, ka), self.lanes(i, 1, SINGLE, kb));
                let c = &self.vector[v as usize];
                each!(l, floats::multiply_add(float(a[l]), float(b[l]), float(c[l])).to_bits())
            }
            Op::VPkAddF => pack!(|x, y| x + y),
            Op::VPkMulF => pack!(|x, y| x * y),
            Op::VPkFmaF => pack!(|x, y, z| x.mul_add(y, z)),
            Op::VPkMov => {
                let (a, b) = (self.wide(i, 0, wa), self.wide(i, 1, wb));
                let (first, second) = (32 * u32::from(i.modifiers.low & 1), 32 * u32::from(i.modifiers.low >> 1 & 1));
                each_wide!(l, a[l] >> first & 0xffff_ffff | (b[l] >> second) << 32)
            }
            Op::VRcpF | Op::VRcpIflagF => v1!(|a| floats::reciprocal(float(a)).to_bits()),
            Op::VTruncF => v1!(|a| float(a).trunc().to_bits()),
            Op::VFloorF => v1!(|a| float(a).floor().to_bits()),
            Op::VCeilF => v1!(|a| float(a).ceil().to_bits()),
            Op::VRndneF => v1!(|a| float(a).round_ties_even().to_bits()),
            Op::VLdexpF => v2!(|a, b| floats::scale(float(a), b as i32).to_bits()),
            Op::VDivScaleF => {
                let (a, b) = (self.lanes(i, 0, SINGLE, ka), self.lanes(i, 1, SINGLE, kb));
                let c = self.lanes(i, 2, SINGLE, kc);
                let (mut out, mut flags) = ([0; LANES], [0u8; LANES]);
                for l in bits(exec) {
                    let (value, flag) = floats::division_scale(float(a[l]), float(b[l]), float(c[l]));
                    out[l] = value.to_bits();
                    flags[l] = u8::from(flag);
                }
                self.put(i, exec, &out);
                self.write_mask(i.second, gather(&flags) & exec);
            }
            Op::VDivFmasF => {
                let scaled = self.read_mask(Source::Scalar(VCC));
                let (a, b) = (self.lanes(i, 0, SINGLE, ka), self.lanes(i, 1, SINGLE, kb));
                let c = self.lanes(i, 2, SINGLE, kc);
                each!(l, floats::division_fused(float(a[l]), float(b[l]), float(c[l]), scaled >> l & 1 == 1).to_bits())
            }
            Op::VDivFixupF => v3!(|a, b, c| floats::division_fixup(float(a), float(b), float(c)).to_bits()),
            Op::VAddD => d2!(|a, b| a + b),
            Op::VMulD => d2!(|a, b| a * b),
            Op::VMinD => d2!(|a, b| floats::min_double(a, b)),
            Op::VMaxD => d2!(|a, b| floats::max_double(a, b)),
            Op::VFmaD => d3!(|a, b, c| a.mul_add(b, c)),
            Op::VFmacD => {
                let Target::Vector(v) = i.target else { return Some(bad(i)) };
                let sum = Instruction { source: [i.source[0], i.source[1], Source::Vector(v)], ..*i };
                let (a, b, c) = (self.wide(&sum, 0, wa), self.wide(&sum, 1, wb), self.wide(&sum, 2, wc));
                each_wide!(l, double(a[l]).mul_add(double(b[l]), double(c[l])).to_bits())
            }
            Op::VRcpD => d1!(|a| floats::reciprocal_double(a)),
            Op::VTruncD => d1!(|a| a.trunc()),
            Op::VFloorD => d1!(|a| a.floor()),
            Op::VRndneD => d1!(|a| a.round_ties_even()),
            Op::VLdexpD => {
                let (a, b) = (self.wide(i, 0, wa), self.lanes(i, 1, SINGLE, kb));
                each_wide!(l, floats::scale_double(double(a[l]), b[l] as i32).to_bits())
            }
            Op::VDivScaleD => {
                let (a, b, c) = (self.wide(i, 0, wa), self.wide(i, 1, wb), self.wide(i, 2, wc));
                let (mut out, mut flags) = ([0; LANES], [0u8; LANES]);
                for l in bits(exec) {
                    let (value, flag) = floats::division_scale_double(double(a[l]), double(b[l]), double(c[l]));
                    out[l] = value.to_bits();
                    flags[l] = u8::from(flag);
                }
                self.put_wide(i, exec, &out);
                self.write_mask(i.second, gather(&flags) & exec);
            }
            Op::VDivFmasD => {
                let scaled = self.read_mask(Source::Scalar(VCC));
                let (a, b, c) = (self.wide(i, 0, wa), self.wide(i, 1, wb), self.wide(i, 2, wc));
                each_wide!(l, {
                    let (a, b, c) = (double(a[l]), double(b[l]), double(c[l]));
                    floats::division_fused_double(a, b, c, scaled >> l & 1 == 1).to_bits()
                })
            }
            Op::VDivFixupD => d3!(|a, b, c| floats::division_fixup_double(a, b, c)),
            Op::VCvtFU => v1!(|a| (a as f32).to_bits()),
            Op::VCvtFI => v1!(|a| (a as i32 as f32).to_bits()),
            // Toward zero, to the nearest that there is; NaN is 0.
            Op::VCvtUF => v1!(|a| float(a) as u32),
            Op::VCvtIF => v1!(|a| float(a) as i32 as u32),
            Op::VCvtDU => {
                let a = self.lanes(i, 0, SINGLE, ka);
                each_wide!(l, f64::from(a[l]).to_bits())
            }
            Op::VCvtDI => {
                let a = self.lanes(i, 0, SINGLE, ka);
                each_wide!(l, f64::from(a[l] as i32).to_bits())
            }
            Op::VCvtUD => {
                let a = self.wide(i, 0, wa);
                each!(l, double(a[l]) as u32)
            }
            Op::VCvtID => {
                let a = self.wide(i, 0, wa);
                each!(l, double(a[l]) as i32 as u32)
            }
            Op::VCvtFD => {
                let a = self.wide(i, 0, wa);
                each!(l, (double(a[l]) as f32).to_bits())
            }
            Op::VCvtDF => {
                let a = self.lanes(i, 0, SINGLE, ka);
                each_wide!(l, f64::from(float(a[l])).to_bits())
            }
            Op::VCvtFH => v1!(HALF, |a| f16::from_bits(a as u16).to_f32().to_bits()),
            Op::VCvtHF => v1!(|a| u32::from(f16::from_f32(float(a)).to_bits())),
            Op::VCvtFUbyte0 => v1!(|a| ((a & 255) as f32).to_bits()),
            Op::VCvtFUbyte1 => v1!(|a| ((a >> 8 & 255) as f32).to_bits()),
            Op::VCvtFUbyte2 => v1!(|a| ((a >> 16 & 255) as f32).to_bits()),
            Op::VCvtFUbyte3 => v1!(|a| ((a >> 24) as f32).to_bits()),

            Op::VCmpEqU | Op::VCmpEqI => cmp!(u32, |a, b| a == b),
            Op::VCmpNeU | Op::VCmpNeI => cmp!(u32, |a, b| a != b),
            Op::VCmpLtU => cmp!(u32, |a, b| a < b),
            Op::VCmpLeU => cmp!(u32, |a, b| a <= b),
            Op::VCmpGtU => cmp!(u32, |a, b| a > b),
            Op::VCmpGeU => cmp!(u32, |a, b| a >= b),
            Op::VCmpLtI => cmp!(i32, |a, b| a < b),
            Op::VCmpLeI => cmp!(i32, |a, b| a <= b),
            Op::VCmpGtI => cmp!(i32, |a, b| a > b),
            Op::VCmpGeI => cmp!(i32, |a, b| a >= b),
            Op::VCmpEqU64 | Op::VCmpEqI64 => cmp64!(u64, |a, b| a == b),
            Op::VCmpNeU64 | Op::VCmpNeI64 => cmp64!(u64, |a, b| a != b),
            Op::VCmpLtU64 => cmp64!(u64, |a, b| a < b),
            Op::VCmpLeU64 => cmp64!(u64, |a, b| a <= b),
            Op::VCmpGtU64 => cmp64!(u64, |a, b| a > b),
            Op::VCmpGeU64 => cmp64!(u64, |a, b| a >= b),
            Op::VCmpLtI64 => cmp64!(i64, |a, b| a < b),
            Op::VCmpLeI64 => cmp64!(i64, |a, b| a <= b),
            Op::VCmpGtI64 => cmp64!(i64, |a, b| a > b),
            Op::VCmpGeI64 => cmp64!(i64, |a, b| a >= b),
            Op::VCmpEqU16 => cmp!(u16, |a, b| a == b),
            Op::VCmpNeU16 => cmp!(u16, |a, b| a != b),
            Op::VCmpLtU16 => cmp!(u16, |a, b| a < b),
            Op::VCmpLeU16 => cmp!(u16, |a, b| a <= b),
            Op::VCmpGtU16 => cmp!(u16, |a, b| a > b),
            Op::VCmpGeU16 => cmp!(u16, |a, b| a >= b),
            Op::VCmpLtI16 => cmp!(i16, |a, b| a < b),
            Op::VCmpLeI16 => cmp!(i16, |a, b| a <= b),
            Op::VCmpGtI16 => cmp!(i16, |a, b| a > b),
            Op::VCmpGeI16 => cmp!(i16, |a, b| a >= b),
            Op::VCmpEqF => cmpf!(|a, b| a == b),
            Op::VCmpLgF => cmpf!(|a, b| a != b && !a.is_nan() && !b.is_nan()),
            Op::VCmpNeqF => cmpf!(|a, b| a != b),
            Op::VCmpLtF => cmpf!(|a, b| a < b),
            Op::VCmpLeF => cmpf!(|a, b| a <= b),
            Op::VCmpGtF => cmpf!(|a, b| a > b),
            Op::VCmpGeF => cmpf!(|a, b| a >= b),
            Op::VCmpUF => cmpf!(|a, b| a.is_nan() || b.is_nan()),
            Op::VCmpOF => cmpf!(|a, b| !(a.is_nan() || b.is_nan())),
            Op::VCmpNltF => cmpf!(|a, b| !matches!(a.partial_cmp(&b), Some(std::cmp::Ordering::Less))),
            Op::VCmpNleF => cmpf!(|a, b| a > b || a.is_nan() || b.is_nan()),
            Op::VCmpNgtF => cmpf!(|a, b| !matches!(a.partial_cmp(&b), Some(std::cmp::Ordering::Greater))),
            Op::VCmpNgeF => cmpf!(|a, b| a < b || a.is_nan() || b.is_nan()),
            Op::VCmpNlgF => cmpf!(|a, b| a == b || a.is_nan() || b.is_nan()),
            Op::VCmpEqD => cmpd!(|a, b| a == b),
            Op::VCmpLgD => cmpd!(|a, b| a != b && !a.is_nan() && !b.is_nan()),
            Op::VCmpNeqD => cmpd!(|a, b| a != b),
            Op::VCmpLtD => cmpd!(|a, b| a < b),
            Op::VCmpLeD => cmpd!(|a, b| a <= b),
            Op::VCmpGtD => cmpd!(|a, b| a > b),
            Op::VCmpGeD => cmpd!(|a, b| a >= b),
            Op::VCmpUD => cmpd!(|a, b| a.is_nan() || b.is_nan()),
            Op::VCmpOD => cmpd!(|a, b| !(a.is_nan() || b.is_nan())),
            Op::VCmpNltD => cmpd!(|a, b| !matches!(a.partial_cmp(&b), Some(std::cmp::Ordering::Less))),
            Op::VCmpNleD => cmpd!(|a, b| a > b || a.is_nan() || b.is_nan()),
            Op::VCmpNgtD => cmpd!(|a, b| !matches!(a.partial_cmp(&b), Some(std::cmp::Ordering::Greater))),
            Op::VCmpNgeD => cmpd!(|a, b| a < b || a.is_nan() || b.is_nan()),
            Op::VCmpNlgD => cmpd!(|a, b| a == b || a.is_nan() || b.is_nan()),

            Op::WriteBack => {
                if context.takes_effect(i.scope) {
                    let mut access = context.spare.pop().unwrap_or_else(Access::new);
                    access.what = What::WriteBack;
                    access.published = false;
                    access.lanes = 1;
                    self.outstanding.push_back(Issued { apart: false, access: Some(access) });
                    return Some(Stop::Waits);
                }
            }
            // At once: loads that follow are fresh, whatever is still outstanding.
            Op::Invalidate => {
                if context.takes_effect(i.scope) {
                    context.caches.last.iter_mut().for_each(|c| c.invalidate());
                }
            }
            Op::InvalidateSecond => context.caches.second.iter_mut().for_each(|c| c.invalidate()),
            Op::InvalidateFirst => context.caches.first.iter_mut().for_each(|c| c.invalidate()),
            Op::InvalidateLast => context.caches.last.iter_mut().for_each(|c| c.invalidate()),
            Op::DsRead
            | Op::DsRead2
            | Op::DsRead3
            | Op::DsRead4
            | Op::DsReadU8
            | Op::DsReadI8
            | Op::DsReadU16
            | Op::DsReadI16
            | Op::DsWrite8
            | Op::DsWrite16
            | Op::DsWrite
            | Op::DsWrite2
            | Op::DsWrite3
            | Op::DsWrite4
            | Op::DsReadTwo
            | Op::DsReadTwo2
            | Op::DsWriteTwo
            | Op::DsWriteTwo2
            | Op::DsOr
            | Op::DsAnd
            | Op::DsAdd
            | Op::DsMax
            | Op::DsBpermute => return self.shared(i, context.shared),
            _ => return self.issue(i, context),
        }
        None
    }

    /// Leaves at most `left` operations outstanding; complete in turn from the oldest, as they are counted.
    fn wait(&mut self, left: i32, apart: bool, context: &mut Context<'_>) -> Option<Stop> {
        let Ok(left) = usize::try_from(left) else { return None };
        loop {
            self.retire();
            // From the oldest that is not complete, of those that are counted together.
            let counted = if self.is_narrow() {
                let mut counted = self.outstanding.iter().filter(|o| o.apart == apart);
                if counted.any(|o| o.access.is_some()) { 1 + counted.count() } else { 0 }
            } else {
                self.outstanding.len()
            };
            if counted <= left {
                return None;
            }
            match self.complete_one(context, true) {
                Err(fault) => return Some(Stop::Fault(fault)),
                Ok(true) => {
                    self.at -= 1;
                    return Some(Stop::Exposed);
                }
                Ok(false) => {}
            }
            // Now and then others run while this wave waits, as often as memory is slow.
            if context.random.once_in(4) {
                self.at -= 1;
                return Some(Stop::Waits);
            }
        }
    }

    /// Forgets what is complete, in order.
    fn retire(&mut self) {
        while self.outstanding.front().is_some_and(|o| o.access.is_none()) {
            self.outstanding.pop_front();
        }
    }

    /// Whether nothing is outstanding any more.
    pub(crate) fn is_drained(&self) -> bool {
        self.outstanding.iter().all(|o| o.access.is_none())
    }

    /// One outstanding operation takes effect, any that no older one of the wave precedes. Whether that was a store
    /// that peers see while a write-back is outstanding. Forced, something does if anything can.
    pub(crate) fn complete_one(&mut self, context: &mut Context<'_>, forced: bool) -> Result<bool, String> {
        let count = self.outstanding.len();
        if count == 0 {
            return Ok(false);
        }
        let mut pick = context.random.below(count as u64) as usize;
        // A write-back takes long: others are taken first, mostly.
        let slow = !context.random.once_in(4);
        let waits = |o: &Issued| o.access.as_ref().is_some_and(|a| !(slow && a.what == What::WriteBack));
        if !self.outstanding.iter().any(waits) {
            if !forced || self.is_drained() {
                return Ok(false);
            }
            // Nothing but write-backs, which do not precede each other.
            while self.outstanding[pick].access.is_none() {
                pick = (pick + 1) % count;
            }
        } else {
            while !waits(&self.outstanding[pick]) {
                pick = (pick + 1) % count;
            }
        }
        // Whom something precedes lets that go first.
        let mut older = 0;
        while older < pick {
            let precedes = match (&self.outstanding[older].access, &self.outstanding[pick].access) {
                (Some(a), Some(b)) => a.precedes(b),
                _ => false,
            };
            if precedes {
                (pick, older) = (older, 0);
            } else {
                older += 1;
            }
        }
        let Some(mut access) = self.outstanding[pick].access.take() else { return Ok(false) };
        // Where nothing is written back, it is the stores themselves that are late.
        let late = |a: &Access| match context.architecture.caches {
            CacheKind::Pairs => a.what == What::Store && !a.published,
            _ => a.what == What::WriteBack,
        };
        let exposed = access.published && self.outstanding.iter().any(|o| o.access.as_deref().is_some_and(late));
        // Lanes need not go together.
        let all = access.lanes;
        if all.count_ones() > 1 && context.random.once_in(8) {
            let some = context.random.next() & all;
            if some != 0 && some != all {
                access.lanes = some;
                let done = access.complete(self, context);
                access.lanes = all & !some;
                self.outstanding[pick].access = Some(access);
                return done.map(|()| exposed);
            }
        }
        let done = access.complete(self, context);
        context.spare.push(access);
        done.map(|()| exposed)
    }

    fn load_scalars(&mut self, i: &Instruction, context: &mut Context<'_>) -> Option<Stop> {
        let Target::Scalar(to) = i.target else { return Some(bad(i)) };
        let offset = match i.source[1] {
            Source::None => i64::from(i.value),
            other => i64::from(self.read(other)),
        };
        // The two lowest bits are ignored, as the hardware does.
        let address = self.read_wide(i.source[0]).wrapping_add_signed(offset) & !3;
        let bytes = u64::from(i.width) * 4;
        let found = match context.find(address, bytes, false) {
            Err(why) => return Some(Stop::Fault(why)),
            Ok(found) => found,
        };
        for k in 0..i.width {
            let mut word = [0; 4];
            let at = address + 4 * u64::from(k);
            context.caches.load_scalar(&found, Past::None, at, &mut word);
            self.scalar[(to + k) as usize] = u32::from_le_bytes(word);
        }
        None
    }

    /// Issues a vector memory operation.
    fn issue(&mut self, i: &Instruction, context: &mut Context<'_>) -> Option<Stop> {
        use Op::*;
        let lanes = self.exec();
        if lanes == 0 {
            return None;
        }
        let (what, dwords) = match i.op {
            LoadU8 | LoadI8 | LoadU16 | LoadI16 | LoadU8Low | LoadU8High | LoadI8Low | LoadI8High | LoadLow
            | LoadHigh | Load | Load2 | Load3 | Load4 => (What::Load, 0),
            Store8 | Store8High | Store16 | Store16High | Store => (What::Store, 1),
            Store2 => (What::Store, 2),
            Store3 => (What::Store, 3),
            Store4 => (What::Store, 4),
            CmpSwap2 => (What::Atomic, 4),
            CmpSwap | Swap2 | Add2 | Sub2 | And2 | Or2 | Xor2 | MinU2 | MaxU2 => (What::Atomic, 2),
            Swap | Add | Sub | And | Or | Xor | MinU | MaxU => (What::Atomic, 1),
            _ => return Some(bad(i)),
        };
        let mut access = context.spare.pop().unwrap_or_else(Access::new);
        let Source::Vector(v) = i.source[0] else { return Some(bad(i)) };
        match i.source[1] {
            Source::Scalar(s) => {
                let base = self.pair(s).wrapping_add_signed(i.value.into());
                for l in 0..LANES {
                    access.address[l] = base.wrapping_add(self.vector[v as usize][l].into());
                }
            }
            _ => {
                let (low, high) = (&self.vector[v as usize], &self.vector[v as usize + 1]);
                for l in 0..LANES {
                    let address = u64::from(low[l]) | u64::from(high[l]) << 32;
                    access.address[l] = address.wrapping_add_signed(i.value.into());
                }
            }
        }
        let (mut from, mut to, mut odd) = (u64::MAX, 0, 0);
        for l in bits(lanes) {
            from = from.min(access.address[l]);
            to = to.max(access.address[l]);
            odd |= access.address[l];
        }
        // The hardware takes multiples of 4 for wide ones; code that relies on it is not what was meant.
        let alignment = if i.width == 12 { 4 } else { u64::from(i.width) };
        if odd % alignment != 0 {
            let bad = bits(lanes).map(|l| access.address[l]).find(|a| a % alignment != 0).unwrap_or(0);
            return Some(Stop::Fault(format!("{bad:#x} is not aligned to {alignment}")));
        }
        access.range = (from, to + u64::from(i.width));
        if let (true, Source::Vector(data)) = (dwords > 0, i.source[2]) {
            access.data[..dwords].copy_from_slice(&self.vector[data as usize..data as usize + dwords]);
        }
        access.what = what;
        access.op = i.op;
        access.width = i.width;
        access.scope = i.scope;
        access.lanes = lanes;
        access.target = match i.target {
            Target::Vector(v) => Some(v),
            _ => None,
        };
        let published = what != What::Load
            && match context.architecture.caches {
                // At the device's scope or wider.
                CacheKind::Dies => i.scope & SC1 != 0,
                // Stores say no scope: flags and packets are narrow and where no cache keeps them.
                CacheKind::Units | CacheKind::Pairs => {
                    i.width <= 8
                        && context
                            .map
                            .find(access.address[lanes.trailing_zeros() as usize])
                            .is_some_and(|a| a.kind != Kind::Device)
                }
            };
        access.published = published;
        let apart = self.is_narrow() && what != What::Load && i.target == Target::None;
        self.outstanding.push_back(Issued { apart, access: Some(access) });
        // The counter has 6 bits: the hardware waits before it overflows.
        if self.outstanding.len() >= 60 {
            self.retire();
            while self.outstanding.len() >= 60 && !self.is_drained() {
                if let Err(fault) = self.complete_one(context, true) {
                    return Some(Stop::Fault(fault));
                }
                self.retire();
            }
        }
        published.then_some(Stop::Published)
    }

    /// LDS, at once and in order.
    fn shared(&mut self, i: &Instruction, shared: &mut [u8]) -> Option<Stop> {
        use Op::*;
        let lanes = self.exec();
        let Source::Vector(address) = i.source[0] else { return Some(bad(i)) };
        let data = match i.source[2] {
            Source::Vector(v) => v as usize,
            _ => 0,
        };
        let target = match i.target {
            Target::Vector(v) => v as usize,
            _ => 0,
        };
        if i.op == DsBpermute {
            let (from, which) = (self.vector[data], self.vector[address as usize]);
            let mut out = [0; LANES];
            for l in bits(lanes) {
                let lane = (which[l].wrapping_add(i.value as u32) / 4) as usize % self.lane_count();
                out[l] = if lanes >> lane & 1 == 1 { from[lane] } else { 0 };
            }
            put_lanes(&mut self.vector[target], lanes, &out);
            return None;
        }
        // Forms with two offsets count them in elements.
        let two = matches!(i.op, DsReadTwo | DsReadTwo2 | DsWriteTwo | DsWriteTwo2);
        let width = usize::from(i.width);
        let offsets = if two {
            [(i.value as usize & 255) * width, (i.value as usize >> 8 & 255) * width]
        } else {
            [i.value as usize; 2]
        };
        let second = match i.source[1] {
            Source::Vector(v) => v as usize,
            _ => 0,
        };
        let words = width.div_ceil(4);
        for l in bits(lanes) {
            for (k, offset) in offsets.iter().enumerate().take(if two { 2 } else { 1 }) {
                let at = self.vector[address as usize][l] as usize + offset;
                let alignment = width.min(8).next_power_of_two();
                let Some(place) = shared.get_mut(at..at + width).filter(|_| at.is_multiple_of(alignment)) else {
                    return Some(Stop::Fault(format!("{width} bytes of LDS at {at:#x}: outside, or not aligned")));
                };
                let word = |k: usize| {
                    let piece = &place[4 * k..(4 * k + 4).min(width)];
                    piece.iter().rev().fold(0u32, |all, byte| all << 8 | u32::from(*byte))
                };
                match i.op {
                    DsRead | DsRead2 | DsRead3 | DsRead4 | DsReadTwo | DsReadTwo2 | DsReadU8 | DsReadU16 => {
                        for w in 0..words {
                            self.vector[target + k * words + w][l] = word(w);
                        }
                    }
                    DsReadI8 => self.vector[target][l] = word(0) as i8 as u32,
                    DsReadI16 => self.vector[target][l] = word(0) as i16 as u32,
                    DsOr | DsAnd | DsAdd | DsMax => {
                        let (old, new) = (word(0), self.vector[data][l]);
                        let value = match i.op {
                            DsOr => old | new,
                            DsAnd => old & new,
                            DsAdd => old.wrapping_add(new),
                            _ => old.max(new),
                        };
                        place.copy_from_slice(&value.to_le_bytes());
                    }
                    _ => {
                        let from = if k == 1 { second } else { data };
                        for w in 0..words {
                            let bytes = self.vector[from + w][l].to_le_bytes();
                            let n = (width - 4 * w).min(4);
                            place[4 * w..4 * w + n].copy_from_slice(&bytes[..n]);
                        }
                    }
                }
            }
        }
        None
    }
}

struct Scratch {
    narrow: [Lanes; 3],
    wide: [Wide; 3],
}

fn bad(i: &Instruction) -> Stop {
    Stop::Fault(format!("{:?} is not made for these operands", i.op))
}

impl Context<'_> {
    /// The allocation that holds `bytes` at `address`, which the wave may touch.
    fn find(&self, address: u64, bytes: u64, write: bool) -> Result<Allocation, String> {
        let own = self.own.iter().find(|(start, end)| *start <= address && address + bytes <= *end);
        match own {
            Some((start, end)) if !write => {
                Ok(Allocation { start: *start, end: *end, kind: Kind::Image, device: self.device, flags: 0 })
            }
            _ => self.map.check(self.device, address, bytes, write),
        }
    }

    /// Whether a write-back or invalidation of this scope does anything.
    fn takes_effect(&self, scope: u8) -> bool {
        match self.architecture.caches {
            // sc0 alone is the block, whose waves share a cache; sc1 alone is the device.
            CacheKind::Dies => scope & SC1 != 0 && (scope & SC0 != 0 || !self.one_cache),
            CacheKind::Units => true,
            CacheKind::Pairs => false,
        }
    }
}

impl Access {
    fn complete(&self, wave: &mut Wave, context: &mut Context<'_>) -> Result<(), String> {
        match self.what {
            What::WriteBack => {
                context.caches.last.iter_mut().for_each(|c| c.write_back());
                Ok(())
            }
            What::Load => self.load(wave, context),
            What::Store => self.store(context),
            What::Atomic => self.change(wave, context),
        }
    }

    /// The allocation of lane `l`, after that of the lane before.
    fn allocation(&self, l: usize, last: &mut Option<Allocation>, context: &Context<'_>) -> Result<Allocation, String> {
        let (address, bytes) = (self.address[l], u64::from(self.width));
        if let Some(found) = last.filter(|a| a.start <= address && address + bytes <= a.end) {
            return Ok(found);
        }
        let found = context
            .find(address, bytes, self.what != What::Load)
            .map_err(|why| format!("{why}, for lane {l} of a {:?} of {bytes} bytes", self.what))?;
        *last = Some(found);
        Ok(found)
    }

    fn past(&self) -> Past {
        match self.scope {
            scope if scope & SC1 != 0 => Past::All,
            scope if scope & SC0 != 0 => Past::First,
            _ => Past::None,
        }
    }

    fn load(&self, wave: &mut Wave, context: &mut Context<'_>) -> Result<(), String> {
        let width = usize::from(self.width);
        let target = usize::from(self.target.unwrap_or(0));
        let past = self.past();
        let mut last = None;
        let mut data = [0u8; 16];
        for l in bits(self.lanes) {
            let found = self.allocation(l, &mut last, context)?;
            context.caches.load(&found, past, self.address[l], &mut data[..width]);
            let word = |k: usize| u32::from_le_bytes([data[4 * k], data[4 * k + 1], data[4 * k + 2], data[4 * k + 3]]);
            let (byte, short) = (data[0], u16::from_le_bytes([data[0], data[1]]));
            let old = wave.vector[target][l];
            let low = |x: u16| old & 0xffff_0000 | u32::from(x);
            let high = |x: u16| old & 0xffff | u32::from(x) << 16;
            wave.vector[target][l] = match self.op {
                Op::LoadU8 => byte.into(),
                Op::LoadI8 => byte as i8 as u32,
                Op::LoadU16 => short.into(),
                Op::LoadI16 => short as i16 as u32,
                Op::LoadU8Low => low(byte.into()),
                Op::LoadU8High => high(byte.into()),
                Op::LoadI8Low => low(byte as i8 as u16),
                Op::LoadI8High => high(byte as i8 as u16),
                Op::LoadLow => low(short),
                Op::LoadHigh => high(short),
                _ => {
                    for k in 1..width / 4 {
                        wave.vector[target + k][l] = word(k);
                    }
                    word(0)
                }
            };
        }
        Ok(())
    }

    fn store(&self, context: &mut Context<'_>) -> Result<(), String> {
        let width = usize::from(self.width);
        let past = self.past();
        let high = matches!(self.op, Op::Store8High | Op::Store16High);
        let mut last = None;
        let mut data = [0u8; 16];
        for l in bits(self.lanes) {
            let found = self.allocation(l, &mut last, context)?;
            for k in 0..width.div_ceil(4) {
                let word = if high { self.data[0][l] >> 16 } else { self.data[k][l] };
                data[4 * k..4 * k + 4].copy_from_slice(&word.to_le_bytes());
            }
            context.caches.store(&found, past, self.address[l], &data[..width]);
        }
        Ok(())
    }

    /// Atomics are done in memory, at whatever scope.
    fn change(&self, wave: &mut Wave, context: &mut Context<'_>) -> Result<(), String> {
        use Op::*;
        let wide = self.width == 8;
        let mut last = None;
        for l in bits(self.lanes) {
            self.allocation(l, &mut last, context)?;
            let address = self.address[l];
            let word = |k: usize| u64::from(self.data[k][l]);
            let new = if wide { word(0) | word(1) << 32 } else { word(0) };
            let compared = if wide { word(2) | word(3) << 32 } else { word(1) };
            let old = context.caches.change(address, self.width, |old| match self.op {
                Swap | Swap2 => new,
                CmpSwap | CmpSwap2 if old == compared => new,
                CmpSwap | CmpSwap2 => old,
                Add | Add2 => old.wrapping_add(new),
                Sub | Sub2 => old.wrapping_sub(new),
                And | And2 => old & new,
                Or | Or2 => old | new,
                Xor | Xor2 => old ^ new,
                MinU | MinU2 => old.min(new),
                _ => old.max(new),
            });
            if let (Some(target), true) = (self.target, self.scope & SC0 != 0) {
                wave.vector[usize::from(target)][l] = old as u32;
                if wide {
                    wave.vector[usize::from(target) + 1][l] = (old >> 32) as u32;
                }
            }
        }
        Ok(())
    }
}

#[inline(always)]
fn put_lanes(to: &mut Lanes, lanes: u64, from: &Lanes) {
    if lanes == u64::MAX {
        *to = *from;
    } else if lanes.count_ones() > 6 {
        for l in 0..LANES {
            to[l] = if lanes >> l & 1 == 1 { from[l] } else { to[l] };
        }
    } else {
        for l in bits(lanes) {
            to[l] = from[l];
        }
    }
}

/// SDWA: a part of a register is written.
fn put_part(to: &mut Lanes, lanes: u64, from: &Lanes, modifiers: &Modifiers) {
    let (at, width) = match modifiers.target {
        Part::Whole => (0, 32),
        Part::Byte(k) => (8 * u32::from(k), 8),
        Part::Word(k) => (16 * u32::from(k), 16),
    };
    let mask = ((1u64 << width) - 1) as u32;
    for l in bits(lanes) {
        let part = (from[l] & mask) << at;
        to[l] = match modifiers.rest {
            Rest::Kept => to[l] & !(mask << at) | part,
            Rest::Zero => part,
            // Above the part, its sign.
            Rest::SignExtended => ((part << (32 - at - width)) as i32 >> (32 - at - width)) as u32,
        };
    }
}

/// Parts and signs of a source.
fn modify(x: &mut Lanes, modifiers: &Modifiers, at: usize, sign: u32) {
    let signed = modifiers.signed >> at & 1 != 0;
    let part = if at < 2 { modifiers.part[at] } else { Part::Whole };
    let (absolute, negate) = (modifiers.absolute >> at & 1 != 0, modifiers.negate >> at & 1 != 0);
    for x in x.iter_mut() {
        *x = match (part, signed) {
            (Part::Whole, _) => *x,
            (Part::Byte(k), false) => *x >> (8 * u32::from(k)) & 0xff,
            (Part::Byte(k), true) => (*x >> (8 * u32::from(k))) as i8 as u32,
            (Part::Word(k), false) => *x >> (16 * u32::from(k)) & 0xffff,
            (Part::Word(k), true) => (*x >> (16 * u32::from(k))) as i16 as u32,
        };
        if absolute {
            *x &= !sign;
        }
        if negate {
            *x ^= sign;
        }
    }
}

/// 64 flags as bits.
#[inline(always)]
fn gather(flags: &[u8; LANES]) -> u64 {
    let mut found = 0;
    for (k, eight) in flags.chunks_exact(8).enumerate() {
        let word = u64::from_le_bytes([eight[0], eight[1], eight[2], eight[3], eight[4], eight[5], eight[6], eight[7]]);
        found |= (word.wrapping_mul(0x0102_0408_1020_4080) >> 56) << (8 * k);
    }
    found
}

/// `s_bfe`: offset and width in one operand.
fn field(x: u64, which: u32, limit: u32) -> u64 {
    let (at, width) = (which & limit, which >> 16 & 0x7f);
    let shifted = x >> at;
    if width >= 64 { shifted } else { shifted & ((1 << width) - 1) }
}
fn signed_field(x: u64, which: u32, limit: u32) -> i64 {
    let (at, width) = (which & limit, (which >> 16 & 0x7f).min(limit + 1 - (which & limit)));
    if width == 0 { 0 } else { ((x >> at) << (64 - width)) as i64 >> (64 - width) }
}

/// The low 24 bits, signed.
fn low24(x: u32) -> i32 {
    (x << 8) as i32 >> 8
}

/// `v_perm_b32`: each byte of the selector picks one of the eight bytes of both sources, a sign, 0 or 0xff.
fn permute(a: u32, b: u32, selector: u32) -> u32 {
    let bytes = u64::from(a) << 32 | u64::from(b);
    let mut out = 0;
    for k in 0..4 {
        let byte = match selector >> (8 * k) & 255 {
            s @ 0..8 => (bytes >> (8 * s)) as u32 & 255,
            // Of bytes 1, 3, 5 and 7.
            s @ 8..12 => ((bytes >> (16 * (s - 8) + 15)) as u32 & 1) * 255,
            12 => 0,
            _ => 255,
        };
        out |= byte << (8 * k);
    }
    out
}
