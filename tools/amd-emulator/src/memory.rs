//! Memory: what is allocated, who may touch it, and the caches in front of it.
//!
//! Devices' memory is the process's. Ordinary memory is seen through a cache of lines with a mask of valid and one of
//! dirty bytes: stores stay there until they are written back, loads find what was there before. Uncached,
//! fine-grained and the host's memory is never cached.

use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hasher},
    sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering},
};

/// What an allocation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Of a device, cached.
    Device,
    /// Of a device, not cached: uncached and fine-grained memory.
    Uncached,
    /// The host's, pinned.
    Host,
    /// Constants of a code object.
    Image,
}

/// An allocation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Allocation {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) kind: Kind,
    pub(crate) device: u32,
    pub(crate) flags: u32,
}

/// All allocations as they are now, by address, and who reaches whose.
#[derive(Clone, Default)]
pub(crate) struct Map {
    pub(crate) allocations: Vec<Allocation>,
    /// Bit k of word d: device d reaches device k.
    pub(crate) reach: Vec<u64>,
    /// What was given back, to say so.
    pub(crate) freed: Vec<(u64, u64)>,
}

impl Map {
    pub(crate) fn find(&self, address: u64) -> Option<&Allocation> {
        let behind = self.allocations.partition_point(|a| a.start <= address);
        self.allocations[..behind].last().filter(|a| address < a.end)
    }

    /// The allocation that holds `bytes` at `address`, which `device` may touch.
    pub(crate) fn check(&self, device: u32, address: u64, bytes: u64, write: bool) -> Result<Allocation, String> {
        let Some(found) = self.find(address) else {
            let freed = self.freed.iter().any(|(start, end)| (*start..*end).contains(&address));
            let what = if freed { "memory that was given back" } else { "no allocation" };
            return Err(format!("{address:#x} is {what}"));
        };
        if address + bytes > found.end {
            let (start, end) = (found.start, found.end);
            return Err(format!("{bytes} bytes at {address:#x} go beyond the allocation {start:#x}..{end:#x}"));
        }
        let far = matches!(found.kind, Kind::Device | Kind::Uncached) && found.device != device;
        if far && self.reach[device as usize] >> found.device & 1 == 0 {
            return Err(format!(
                "{address:#x} is memory of device {}, to which device {device} was given no access",
                found.device
            ));
        }
        if write && found.kind == Kind::Image {
            return Err(format!("{address:#x} is a constant"));
        }
        Ok(*found)
    }
}

pub(crate) const LINE: u64 = 128;

struct Line {
    address: u64,
    /// Of the cache when `valid` was true of all but the dirty bytes.
    epoch: u64,
    valid: u128,
    dirty: u128,
    data: [u8; LINE as usize],
}

/// Addresses are well spread already.
#[derive(Default)]
struct Spread(u64);

impl Hasher for Spread {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, _: &[u8]) {
        unreachable!("addresses only");
    }
    fn write_u64(&mut self, address: u64) {
        let mixed = (address >> 7).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ mixed >> 32;
    }
}

/// A cache. Invalidating takes no time: lines know of which epoch they are.
pub(crate) struct Cache {
    /// How many lines it has at most.
    most: usize,
    lines: Vec<Line>,
    index: HashMap<u64, u32, BuildHasherDefault<Spread>>,
    dirty: Vec<u32>,
    epoch: u64,
    /// Lines that were read from memory, the latest ones.
    pub(crate) history: Vec<u64>,
    filled: usize,
    /// The line used last: accesses of a wave go along lines.
    last: (u64, u32),
}

/// Lines of a cache that keeps stores: 2 MiB.
pub(crate) const LINES: usize = 16384;
/// Of one that does not: more than there are, so that what is stale stays for long.
pub(crate) const FEW_LINES: usize = 1024;

const HISTORY: usize = 128;

impl Cache {
    pub(crate) fn new(most: usize) -> Self {
        Cache {
            most,
            lines: Vec::new(),
            index: HashMap::default(),
            dirty: Vec::new(),
            epoch: 0,
            history: Vec::new(),
            filled: 0,
            last: (0, 0),
        }
    }

    fn line(&mut self, address: u64) -> &mut Line {
        if self.last.0 != address || self.lines.is_empty() {
            if self.lines.len() >= self.most && !self.index.contains_key(&address) {
                // Full: all is evicted, which may happen to any line at any time.
                self.write_back();
                self.lines.clear();
                self.index.clear();
            }
            let (lines, next) = (&mut self.lines, self.index.len() as u32);
            let epoch = self.epoch;
            let at = *self.index.entry(address).or_insert_with(|| {
                lines.push(Line { address, epoch, valid: 0, dirty: 0, data: [0; LINE as usize] });
                next
            });
            self.last = (address, at);
        }
        let line = &mut self.lines[self.last.1 as usize];
        if line.epoch != self.epoch {
            line.valid = line.dirty;
            line.epoch = self.epoch;
        }
        line
    }

    /// Loads `out`, which does not cross lines, at `address`.
    pub(crate) fn load(&mut self, address: u64, out: &mut [u8]) {
        let at = (address % LINE) as usize;
        let line = self.line(address - at as u64);
        let wanted = mask(at, out.len());
        let missing = line.valid & wanted != wanted;
        if missing {
            fill(line);
        }
        out.copy_from_slice(&line.data[at..at + out.len()]);
        if missing {
            self.remember(address - at as u64);
        }
    }

    /// As [`load`](Self::load) in a cache that stores go through: a line that is missing comes from `below`.
    fn load_through(&mut self, address: u64, out: &mut [u8], below: impl FnOnce(u64, &mut [u8])) {
        let at = (address % LINE) as usize;
        let line = self.line(address - at as u64);
        let missing = line.valid != u128::MAX;
        if missing {
            below(line.address, &mut line.data);
            line.valid = u128::MAX;
        }
        out.copy_from_slice(&line.data[at..at + out.len()]);
        if missing {
            self.remember(address - at as u64);
        }
    }

    /// Loads what memory has, but for the bytes that are dirty here: lines of which peers' stores get rid at once.
    fn load_probed(&mut self, address: u64, out: &mut [u8]) {
        load_memory(address, out);
        let at = (address % LINE) as usize;
        if let Some(k) = self.index.get(&(address - at as u64)) {
            let line = &self.lines[*k as usize];
            if line.dirty & mask(at, out.len()) != 0 {
                for (b, byte) in out.iter_mut().enumerate().filter(|(b, _)| line.dirty >> (at + b) & 1 == 1) {
                    *byte = line.data[at + b];
                }
            }
        }
    }

    fn remember(&mut self, line: u64) {
        if self.history.len() < HISTORY {
            self.history.push(line);
        } else {
            self.history[self.filled % HISTORY] = line;
            self.filled += 1;
        }
    }

    /// Stores `data`, which does not cross lines, at `address`.
    pub(crate) fn store(&mut self, address: u64, data: &[u8]) {
        let at = (address % LINE) as usize;
        let line = self.line(address - at as u64);
        let wanted = mask(at, data.len());
        line.data[at..at + data.len()].copy_from_slice(data);
        line.valid |= wanted;
        let clean = line.dirty == 0;
        line.dirty |= wanted;
        if clean {
            self.dirty.push(self.last.1);
        }
    }

    /// Before memory is touched past the cache: what is dirty there goes to memory.
    pub(crate) fn flush(&mut self, address: u64, bytes: usize) {
        let at = (address % LINE) as usize;
        if let Some(k) = self.index.get(&(address - at as u64)) {
            let line = &mut self.lines[*k as usize];
            let both = line.dirty & mask(at, bytes);
            if both != 0 {
                put(line, both);
            }
        }
    }

    /// After memory was stored to past the cache: the line has the new bytes as well.
    pub(crate) fn update(&mut self, address: u64, data: &[u8]) {
        let at = (address % LINE) as usize;
        if let Some(k) = self.index.get(&(address - at as u64)) {
            let line = &mut self.lines[*k as usize];
            line.data[at..at + data.len()].copy_from_slice(data);
            line.dirty &= !mask(at, data.len());
        }
    }

    /// What is dirty goes to memory.
    pub(crate) fn write_back(&mut self) {
        for k in std::mem::take(&mut self.dirty) {
            let line = &mut self.lines[k as usize];
            if line.dirty != 0 {
                put(line, line.dirty);
            }
        }
    }

    /// What is clean is read again.
    pub(crate) fn invalidate(&mut self) {
        self.epoch += 1;
    }
}

/// The caches that a wave's memory operations go through. Without any, memory is plain.
pub(crate) struct Caches<'a> {
    pub(crate) device: u32,
    /// The nearest, which stores go through and which keeps what it read of any kind of memory until it is invalidated.
    pub(crate) first: Option<&'a mut Cache>,
    /// Another one of the kind behind it.
    pub(crate) second: Option<&'a mut Cache>,
    /// The last, which keeps stores to devices' ordinary memory until they are written back.
    pub(crate) last: Option<&'a mut Cache>,
    /// Whether the last one is told of stores to the device's own memory.
    pub(crate) probed: bool,
}

impl Caches<'_> {
    /// Loads `out`, which does not cross lines, at `address` in `found`.
    #[inline(always)]
    pub(crate) fn load(&mut self, found: &Allocation, past: Past, address: u64, out: &mut [u8]) {
        match &mut self.first {
            Some(first) if found.kind != Kind::Image => {
                let (second, last, probed) =
                    (&mut self.second, &mut self.last, self.probed && found.device == self.device);
                let mut last = |address, out: &mut [u8]| load_last(last, probed, found, past, address, out);
                if past != Past::None {
                    last(address, out);
                    first.update(address, out);
                    second.iter_mut().for_each(|c| c.update(address, out));
                    return;
                }
                first.load_through(address, out, |address, out| match second {
                    Some(second) => second.load_through(address, out, last),
                    None => last(address, out),
                });
            }
            _ => self.load_scalar(found, past, address, out),
        }
    }

    /// The same past the first cache, as scalar loads go.
    #[inline(always)]
    pub(crate) fn load_scalar(&mut self, found: &Allocation, past: Past, address: u64, out: &mut [u8]) {
        load_last(&mut self.last, self.probed && found.device == self.device, found, past, address, out);
    }

    #[inline(always)]
    pub(crate) fn store(&mut self, found: &Allocation, past: Past, address: u64, data: &[u8]) {
        for cache in [&mut self.first, &mut self.second].into_iter().flatten() {
            cache.update(address, data);
        }
        match &mut self.last {
            Some(last) if past != Past::All && found.kind == Kind::Device => last.store(address, data),
            last => {
                store_memory(address, data);
                if let Some(last) = last {
                    last.update(address, data);
                }
            }
        }
    }

    /// Changes a word in memory; the old value.
    pub(crate) fn change(&mut self, address: u64, bytes: u8, change: impl Fn(u64) -> u64) -> u64 {
        if let Some(last) = &mut self.last {
            last.flush(address, bytes.into());
        }
        let old = change_memory(address, bytes, change);
        // Lines have the word as memory has it now.
        if self.first.is_some() || self.last.is_some() {
            let mut now = [0; 8];
            let now = &mut now[..usize::from(bytes)];
            load_memory(address, now);
            for cache in [&mut self.first, &mut self.second, &mut self.last].into_iter().flatten() {
                cache.update(address, now);
            }
        }
        old
    }

    /// As if the line had been read now.
    pub(crate) fn touch(&mut self, found: &Allocation, address: u64) {
        self.load(found, Past::None, address & !(LINE - 1), &mut [0]);
    }
}

/// Which caches an access goes past.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Past {
    None,
    First,
    All,
}

#[inline(always)]
fn load_last(
    last: &mut Option<&mut Cache>,
    probed: bool,
    found: &Allocation,
    past: Past,
    address: u64,
    out: &mut [u8],
) {
    match last {
        Some(last) if past != Past::All && found.kind == Kind::Device => {
            if probed {
                last.load_probed(address, out);
            } else {
                last.load(address, out);
            }
        }
        last => {
            if let Some(last) = last {
                last.flush(address, out.len());
            }
            load_memory(address, out);
        }
    }
}

fn mask(at: usize, bytes: usize) -> u128 {
    (u128::MAX >> (LINE as usize - bytes)) << at
}

/// Reads what is not dirty. Allocations begin and end on lines.
fn fill(line: &mut Line) {
    let from = line.address as *const u8;
    if line.dirty == 0 {
        // SAFETY: lines are made for addresses in allocations, which live while a kernel may touch them.
        unsafe { std::ptr::copy_nonoverlapping(from, line.data.as_mut_ptr(), LINE as usize) };
    } else {
        for k in (0..LINE as usize).filter(|k| line.dirty >> k & 1 == 0) {
            // SAFETY: as above.
            line.data[k] = unsafe { from.add(k).read() };
        }
    }
    line.valid = u128::MAX;
}

/// Writes the bytes of `which` to memory.
fn put(line: &mut Line, which: u128) {
    let to = line.address as *mut u8;
    if which == u128::MAX {
        // SAFETY: as in `fill`.
        unsafe { std::ptr::copy_nonoverlapping(line.data.as_ptr(), to, LINE as usize) };
    } else {
        let mut left = which;
        while left != 0 {
            let from = left.trailing_zeros() as usize;
            let run = (!(left >> from)).trailing_zeros() as usize;
            // SAFETY: as in `fill`; the run ends in the line.
            unsafe { std::ptr::copy_nonoverlapping(line.data.as_ptr().add(from), to.add(from), run) };
            if from + run >= LINE as usize {
                break;
            }
            left &= u128::MAX << (from + run);
        }
    }
    line.dirty &= !which;
}

/// Loads 1, 2 or a multiple of 4 bytes past all caches; up to 8 at once, more in pieces.
pub(crate) fn load_memory(address: u64, out: &mut [u8]) {
    // SAFETY: the address was checked against the allocations, alignment too. Atomic, since the host may use it.
    unsafe {
        match out.len() {
            1 => out[0] = AtomicU8::from_ptr(address as *mut u8).load(Ordering::Acquire),
            2 => out.copy_from_slice(&AtomicU16::from_ptr(address as *mut u16).load(Ordering::Acquire).to_le_bytes()),
            n if n % 8 == 0 => {
                for (k, piece) in out.chunks_exact_mut(8).enumerate() {
                    let word = AtomicU64::from_ptr((address + 8 * k as u64) as *mut u64).load(Ordering::Acquire);
                    piece.copy_from_slice(&word.to_le_bytes());
                }
            }
            _ => {
                for (k, piece) in out.chunks_exact_mut(4).enumerate() {
                    let word = AtomicU32::from_ptr((address + 4 * k as u64) as *mut u32).load(Ordering::Acquire);
                    piece.copy_from_slice(&word.to_le_bytes());
                }
            }
        }
    }
}

/// Stores as [`load_memory`] loads.
pub(crate) fn store_memory(address: u64, data: &[u8]) {
    let word = |piece: &[u8]| piece.iter().rev().fold(0u64, |all, byte| all << 8 | u64::from(*byte));
    // SAFETY: as in `load_memory`.
    unsafe {
        match data.len() {
            1 => AtomicU8::from_ptr(address as *mut u8).store(data[0], Ordering::Release),
            2 => AtomicU16::from_ptr(address as *mut u16).store(word(data) as u16, Ordering::Release),
            8 | 16 => {
                for (k, piece) in data.chunks_exact(8).enumerate() {
                    AtomicU64::from_ptr((address + 8 * k as u64) as *mut u64).store(word(piece), Ordering::Release);
                }
            }
            _ => {
                for (k, piece) in data.chunks_exact(4).enumerate() {
                    let to = (address + 4 * k as u64) as *mut u32;
                    AtomicU32::from_ptr(to).store(word(piece) as u32, Ordering::Release);
                }
            }
        }
    }
}

/// An atomic change of a 32-bit or 64-bit word in memory; the old value.
pub(crate) fn change_memory(address: u64, bytes: u8, change: impl Fn(u64) -> u64) -> u64 {
    // SAFETY: as in `load_memory`.
    unsafe {
        if bytes == 8 {
            let word = AtomicU64::from_ptr(address as *mut u64);
            word.fetch_update(Ordering::AcqRel, Ordering::Acquire, |x| Some(change(x))).unwrap_or_else(|x| x)
        } else {
            let word = AtomicU32::from_ptr(address as *mut u32);
            let update = word.fetch_update(Ordering::AcqRel, Ordering::Acquire, |x| Some(change(u64::from(x)) as u32));
            u64::from(update.unwrap_or_else(|x| x))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(align(128))]
    struct Aligned([u8; 256]);

    #[test]
    fn stores_stay_until_they_are_written_back_and_loads_are_stale_until_invalidated() {
        let mut memory = Aligned([1; 256]);
        let address = memory.0.as_mut_ptr() as u64;
        let mut cache = Cache::new(LINES);
        let mut two = [0; 2];
        cache.store(address + 3, &[7]);
        assert_eq!(memory.0[3], 1, "dirty, in the cache alone");
        cache.load(address + 3, &mut two);
        assert_eq!(two, [7, 1], "one's own store is seen, and the rest of the line filled");
        store_memory(address + 4, &[9]);
        cache.load(address + 3, &mut two);
        assert_eq!(two, [7, 1], "stale");
        cache.invalidate();
        cache.load(address + 3, &mut two);
        assert_eq!(two, [7, 9], "fresh, and what is dirty stays");
        cache.write_back();
        assert_eq!(memory.0[2..6], [1, 7, 9, 1], "that byte alone");
        cache.store(address + 127, &[5]);
        cache.flush(address + 126, 2);
        assert_eq!(memory.0[126..129], [1, 5, 1]);
    }

    #[test]
    fn the_map_refuses_what_no_device_has() {
        let device = Allocation { start: 0x1000, end: 0x1100, kind: Kind::Device, device: 1, flags: 0 };
        let map = Map { allocations: vec![device], reach: vec![0b01, 0b11], freed: vec![(0x2000, 0x2100)] };
        assert!(map.check(1, 0x10f0, 16, true).is_ok());
        let refused = |device, address, bytes| map.check(device, address, bytes, true).expect_err("refused");
        assert_eq!(refused(1, 0xfff, 1), "0xfff is no allocation");
        assert_eq!(refused(1, 0x2000, 1), "0x2000 is memory that was given back");
        assert_eq!(refused(1, 0x10f8, 16), "16 bytes at 0x10f8 go beyond the allocation 0x1000..0x1100");
        assert_eq!(refused(0, 0x1000, 4), "0x1000 is memory of device 1, to which device 0 was given no access");
    }
}
