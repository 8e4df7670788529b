//! A code object: what the kernels' descriptors and notes say, and the program.

use std::{
    collections::HashMap,
    process::Command,
    sync::{Arc, Mutex, PoisonError},
};

use object::{Object, ObjectSection, ObjectSegment, ObjectSymbol};

use crate::{
    architecture::{Architecture, CacheKind},
    isa::Program,
};

/// A loaded code object.
pub(crate) struct CodeObject {
    pub(crate) architecture: &'static Architecture,
    pub(crate) program: Program,
    pub(crate) kernels: HashMap<String, Kernel>,
    /// What is loaded to memory, from address 0 of the object.
    pub(crate) image: Vec<u8>,
}

/// An argument that the runtime fills in.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Hidden {
    BlockCount(u8),
    GroupSize(u8),
    Dimensions,
    /// Remainders of blocks, which are whole; offsets, which nobody sets; padding.
    Zero,
}

/// A kernel.
#[derive(Debug)]
pub(crate) struct Kernel {
    architecture: &'static Architecture,
    /// Index of the first instruction.
    pub(crate) entry: usize,
    pub(crate) vector_registers: u32,
    pub(crate) shared: u32,
    /// Bytes of the arguments' segment, and of those the arguments of the caller: sizes by offset.
    pub(crate) argument_bytes: usize,
    pub(crate) arguments: Vec<(usize, usize)>,
    pub(crate) hidden: Vec<(usize, usize, Hidden)>,
    pub(crate) most_threads: u32,
    /// Where the launch puts what into scalar registers.
    pub(crate) dispatch_at: Option<u8>,
    pub(crate) arguments_at: Option<u8>,
    pub(crate) block_at: [Option<u8>; 3],
    /// A block's waves are on both compute units of a pair.
    pub(crate) on_pairs: bool,
}

/// The machine's number in `e_flags`.
const MACHINE: u32 = 0xff;
const AMDGPU: u16 = 224;

/// Loads `bytes`, or the program loaded from equal bytes before: disassembling takes longer than most tests.
pub(crate) fn load(bytes: &[u8], architecture: &'static Architecture) -> Result<Arc<CodeObject>, String> {
    static LOADED: Mutex<Vec<(Vec<u8>, Arc<CodeObject>)>> = Mutex::new(Vec::new());
    let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, object)) = loaded.iter().find(|(b, _)| b == bytes) {
        return Ok(object.clone());
    }
    let object = Arc::new(CodeObject::read(bytes, architecture)?);
    loaded.push((bytes.to_vec(), object.clone()));
    Ok(object)
}

/// Bytes of the ELF file at the beginning of `header`, by its section headers, which linkers put last.
///
/// # Safety
/// An ELF file begins at `start` if its first four bytes say so.
pub(crate) unsafe fn extent<'a>(start: *const u8) -> Result<&'a [u8], String> {
    // SAFETY: the caller's promise; a file is longer than its header.
    let header = unsafe { std::slice::from_raw_parts(start, 4) };
    if header != b"\x7fELF" {
        return Err("no ELF file: bundles are not read here".to_owned());
    }
    // SAFETY: as above.
    let header = unsafe { std::slice::from_raw_parts(start, 64) };
    let number = |at: usize, bytes: usize| {
        header[at..at + bytes].iter().rev().fold(0usize, |all, byte| all << 8 | usize::from(*byte))
    };
    let bytes = number(40, 8) + number(58, 2) * number(60, 2);
    // SAFETY: as above; the section headers are the file's.
    Ok(unsafe { std::slice::from_raw_parts(start, bytes) })
}

impl CodeObject {
    fn read(bytes: &[u8], architecture: &'static Architecture) -> Result<Self, String> {
        let file = object::File::parse(bytes).map_err(|e| e.to_string())?;
        let number = |at: usize, n: usize| bytes[at..at + n].iter().rev().fold(0u32, |all, b| all << 8 | u32::from(*b));
        let (machine, flags) = (number(18, 2), number(48, 4));
        if machine != u32::from(AMDGPU) || flags & MACHINE != architecture.machine {
            let name = architecture.name;
            return Err(format!(
                "not for {name}, which is what the devices are (CROSSCCL_EMULATOR_TARGET): machine {machine}, flags \
                 {flags:#x}"
            ));
        }
        let mut image = Vec::new();
        for segment in file.segments() {
            let at = segment.address() as usize;
            image.resize(image.len().max(at + segment.size() as usize), 0);
            let data = segment.data().map_err(|e| e.to_string())?;
            image[at..at + data.len()].copy_from_slice(data);
        }
        let program = Program::parse(&disassemble(bytes)?, architecture.names)?;
        let notes = Notes::read(&file)?;
        let mut kernels = HashMap::new();
        for symbol in file.dynamic_symbols() {
            let Some(name) = symbol.name().ok().and_then(|n| n.strip_suffix(".kd")) else { continue };
            let descriptor = image.get(symbol.address() as usize..).and_then(|d| d.get(..64));
            let descriptor = descriptor.ok_or_else(|| format!("{name}: a descriptor outside of the object"))?;
            let entry = *program.entries.get(name).ok_or_else(|| format!("{name}: no code"))?;
            let note = notes.of(name).ok_or_else(|| format!("{name}: no notes"))?;
            let kernel = Kernel::read(descriptor, entry, note, architecture).map_err(|e| format!("{name}: {e}"))?;
            kernels.insert(name.to_owned(), kernel);
        }
        Ok(CodeObject { architecture, program, kernels, image })
    }
}

fn disassemble(bytes: &[u8]) -> Result<String, String> {
    let folder = std::env::temp_dir();
    let path = folder.join(format!("crossccl-emulator-{}-{:p}.co", std::process::id(), bytes.as_ptr()));
    std::fs::write(&path, bytes).map_err(|e| format!("{}: {e}", path.display()))?;
    let answer = objdump(&path);
    // What is left is small and in the folder for such.
    let _ = std::fs::remove_file(&path);
    answer
}

fn objdump(path: &std::path::Path) -> Result<String, String> {
    const VARIABLE: &str = "CROSSCCL_EMULATOR_OBJDUMP";
    let set = std::env::var(VARIABLE).ok().filter(|v| !v.is_empty());
    let names = match &set {
        Some(name) => vec![name.as_str()],
        None => vec!["llvm-objdump-19", "llvm-objdump"],
    };
    let mut reasons = Vec::new();
    for name in names {
        match Command::new(name).arg("-d").arg(path).output() {
            Ok(output) if output.status.success() => {
                return String::from_utf8(output.stdout).map_err(|e| format!("{name}: {e}"));
            }
            Ok(output) => reasons.push(format!("{name}: {}", String::from_utf8_lossy(&output.stderr).trim())),
            Err(error) => reasons.push(format!("{name}: {error}")),
        }
    }
    Err(format!("no disassembler; install llvm-19, or set {VARIABLE} ({})", reasons.join("; ")))
}

struct Notes(rmpv::Value);

fn field<'a>(value: &'a rmpv::Value, name: &str) -> Option<&'a rmpv::Value> {
    value.as_map()?.iter().find(|(key, _)| key.as_str() == Some(name)).map(|(_, value)| value)
}

impl Notes {
    fn read(file: &object::File<'_>) -> Result<Self, String> {
        let section = file.section_by_name(".note").ok_or("no notes")?;
        let data = section.data().map_err(|e| e.to_string())?;
        // Sizes of the owner's name and of the text, the type, then both, each filled up to four bytes.
        let number = |at: usize| data.get(at..at + 4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]) as usize);
        let (Some(name), Some(bytes)) = (number(0), number(4)) else { return Err("notes of no length".to_owned()) };
        let from = 12 + name.next_multiple_of(4);
        let mut text = data.get(from..from + bytes).ok_or("notes cut short")?;
        rmpv::decode::read_value(&mut text).map(Notes).map_err(|e| e.to_string())
    }

    fn of(&self, kernel: &str) -> Option<&rmpv::Value> {
        let kernels = field(&self.0, "amdhsa.kernels")?.as_array()?;
        kernels.iter().find(|k| field(k, ".name").and_then(rmpv::Value::as_str) == Some(kernel))
    }
}

impl Kernel {
    fn read(
        descriptor: &[u8],
        entry: usize,
        note: &rmpv::Value,
        architecture: &'static Architecture,
    ) -> Result<Self, String> {
        let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|k| descriptor[at + k]));
        let noted = |name: &str| {
            field(note, name).and_then(rmpv::Value::as_u64).ok_or_else(|| format!("the notes have no {name}"))
        };
        let (resources, more, properties) = (word(48), word(52), word(56));
        let refuse = |bad: bool, what: &str| if bad { Err(what.to_owned()) } else { Ok(()) };
        refuse(word(4) != 0 || more & 1 != 0, "it uses scratch memory, which a launch may have to wait for (I12)")?;
        let lanes = noted(".wavefront_size")?;
        if lanes != u64::from(architecture.lanes) {
            return Err(format!(
                "its waves are of {lanes} lanes; those of {} have {}",
                architecture.name, architecture.lanes
            ));
        }
        refuse(resources >> 12 & 0xf != 0, "floats are not rounded to nearest even")?;
        refuse(resources >> 16 & 0xf != 0xf, "denormal floats are flushed")?;
        refuse(properties >> 16 & 0x7f != 0, "arguments are preloaded to registers")?;
        refuse(properties & 0b0111_0100 != 0, "registers are asked for that no launch here fills")?;
        // What describes scratch memory is asked for by targets that have no other way, and not used: it stays junk.
        let (mut next, mut dispatch_at, mut arguments_at) = (4 * (properties & 1) as u8, None, None);
        if properties & 1 << 1 != 0 {
            dispatch_at = Some(next);
            next += 2;
        }
        if properties & 1 << 3 != 0 {
            arguments_at = Some(next);
            next += 2;
        }
        let asked = (more >> 1 & 31) as u8;
        refuse(next > asked, "fewer registers than are filled")?;
        next = asked;
        let block_at = [7, 8, 9].map(|bit| {
            (more >> bit & 1 != 0).then(|| {
                next += 1;
                next - 1
            })
        });
        let (mut arguments, mut hidden) = (Vec::new(), Vec::new());
        for argument in field(note, ".args").and_then(rmpv::Value::as_array).into_iter().flatten() {
            let number = |name: &str| field(argument, name).and_then(rmpv::Value::as_u64).unwrap_or(0) as usize;
            let at = (number(".offset"), number(".size"));
            let kind = field(argument, ".value_kind").and_then(rmpv::Value::as_str).unwrap_or("");
            let Some(name) = kind.strip_prefix("hidden_") else {
                arguments.push(at);
                continue;
            };
            let axis = name.bytes().last().map_or(0, |b| b.wrapping_sub(b'x'));
            hidden.push((
                at.0,
                at.1,
                match name {
                    "block_count_x" | "block_count_y" | "block_count_z" => Hidden::BlockCount(axis),
                    "group_size_x" | "group_size_y" | "group_size_z" => Hidden::GroupSize(axis),
                    "remainder_x" | "remainder_y" | "remainder_z" | "none" => Hidden::Zero,
                    "global_offset_x" | "global_offset_y" | "global_offset_z" => Hidden::Zero,
                    "grid_dims" => Hidden::Dimensions,
                    _ => return Err(format!("the hidden argument {name} is not known here")),
                },
            ));
        }
        Ok(Kernel {
            architecture,
            entry,
            vector_registers: ((resources & 63) + 1) * 8,
            shared: word(0),
            argument_bytes: noted(".kernarg_segment_size")? as usize,
            arguments,
            hidden,
            most_threads: noted(".max_flat_workgroup_size")? as u32,
            dispatch_at,
            arguments_at,
            block_at,
            on_pairs: architecture.caches == CacheKind::Pairs && resources >> 29 & 1 == 1,
        })
    }

    /// Blocks of `threads` threads and `shared` more bytes that one of the device's units holds.
    pub(crate) fn blocks_a_unit(&self, threads: u32, shared: u32) -> u32 {
        let waves = threads.div_ceil(self.architecture.lanes).max(1);
        let unit = &self.architecture.unit;
        let by_waves = unit.vector_units * (unit.registers / self.vector_registers.max(1)).min(unit.waves) / waves;
        let by_shared = unit.shared.checked_div(self.shared + shared).unwrap_or(unit.blocks);
        by_waves.min(by_shared).min(unit.blocks)
    }
}
