//! Safetensors files, one tensor at a time: reading what nobody vouches for, and writing all or nothing.
//!
//! The `safetensors` crate parses a file that is in memory as a whole. Checkpoints are larger than that,
//! so only its types and its checks of the header are used here.

use std::{
    collections::{HashMap, HashSet},
    fmt,
    fs::File,
    io::{self, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};

use crossccl::DType;
use safetensors::{Dtype, tensor::Metadata, tensor::TensorInfo};
use serde::{
    Deserialize, Deserializer,
    de::{Error as _, MapAccess, Visitor},
};

use super::failure;
use crate::{error::CliError, whole_file::WholeFile};

/// Bytes of the word in front that tells the length of the header.
const WORD: u64 = 8;
/// The longest header that the `safetensors` crate accepts.
const MAX_HEADER: u64 = 100_000_000;

/// A file that is open and whose header was checked.
pub(super) struct Checkpoint {
    pub(super) path: PathBuf,
    /// By their place in the file.
    pub(super) tensors: Vec<Tensor>,
    file: File,
    /// The header as it stands in the file, the word in front included.
    head: Vec<u8>,
    by_name: HashMap<String, usize>,
}

/// A tensor of a file.
#[derive(Clone)]
pub(super) struct Tensor {
    pub(super) name: String,
    info: TensorInfo,
    pub(super) dtype: DType,
}

impl Tensor {
    pub(super) fn bytes(&self) -> u64 {
        let (start, end) = self.info.data_offsets;
        (end - start) as u64
    }

    fn same_layout(&self, other: &Tensor) -> bool {
        self.dtype == other.dtype && self.info.shape == other.info.shape
    }
}

impl fmt::Display for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.info.dtype, self.info.shape)
    }
}

impl Checkpoint {
    /// Opens `path` and checks everything about it but the data.
    pub(super) fn open(path: &Path) -> Result<Self, CliError> {
        let cannot = |error| failure(path, format!("cannot be read: {error}"));
        // Before it is opened: opening a pipe waits for somebody who writes.
        if !path.metadata().map_err(cannot)?.is_file() {
            return Err(failure(path, "is not a regular file; give a safetensors file"));
        }
        let mut file = File::open(path).map_err(cannot)?;
        let length = file.metadata().map_err(cannot)?.len();
        if length < WORD {
            let what = format!("has {length} bytes, too few for a safetensors file; it is truncated or something else");
            return Err(failure(path, what));
        }
        let mut head = vec![0; WORD as usize];
        file.read_exact(&mut head).map_err(cannot)?;
        let header = head.iter().rev().fold(0, |n, byte| n << 8 | u64::from(*byte));
        // Nothing is allocated by a number that the file itself cannot bear out.
        if header > MAX_HEADER {
            let what = format!(
                "its first 8 bytes announce a header of {header} bytes, above the limit of {MAX_HEADER}; \
                 it is damaged or not a safetensors file"
            );
            return Err(failure(path, what));
        }
        if header > length - WORD {
            let what = format!(
                "its header should have {header} bytes, but only {} follow; it is truncated or not a safetensors file",
                length - WORD
            );
            return Err(failure(path, what));
        }
        head.resize((WORD + header) as usize, 0);
        file.read_exact(&mut head[WORD as usize..]).map_err(cannot)?;
        let tensors = parse(&head[WORD as usize..]).map_err(|what| failure(path, what))?;
        let data = tensors.last().map_or(0, |(_, info)| info.data_offsets.1 as u64);
        let there = length - WORD - header;
        if data != there {
            let state = if there < data { "is truncated" } else { "has bytes that belong to no tensor" };
            let what = format!("{state}: its tensors take {data} bytes, {there} follow the header; write it again");
            return Err(failure(path, what));
        }
        let tensors = (tensors.into_iter())
            .map(|(name, info)| match reducible(info.dtype) {
                Some(dtype) => Ok(Tensor { name, info, dtype }),
                None => {
                    let names: Vec<_> = DType::ALL.iter().map(|d| d.name()).collect();
                    let what = format!(
                        "tensor `{}` is of dtype {}, which cannot be reduced; the dtypes are {}",
                        name.escape_debug(),
                        info.dtype,
                        names.join(", ")
                    );
                    Err(failure(path, what))
                }
            })
            .collect::<Result<Vec<_>, _>>()?;
        let by_name = tensors.iter().enumerate().map(|(at, tensor)| (tensor.name.clone(), at)).collect();
        Ok(Checkpoint { path: path.into(), tensors, file, head, by_name })
    }

    pub(super) fn tensor(&self, name: &str) -> Option<&Tensor> {
        self.by_name.get(name).map(|at| &self.tensors[*at])
    }

    /// Says whether the same tensors are in `other`, wherever they stand there.
    pub(super) fn check_layout(&self, other: &Checkpoint) -> Result<(), CliError> {
        let first = self.path.display();
        let advice = "give checkpoints of one model";
        for mine in &self.tensors {
            let name = mine.name.escape_debug();
            let Some(theirs) = other.tensor(&mine.name) else {
                return Err(failure(&other.path, format!("lacks tensor `{name}`, {mine} in {first}; {advice}")));
            };
            if !mine.same_layout(theirs) {
                return Err(failure(
                    &other.path,
                    format!("tensor `{name}` is {theirs}, but {mine} in {first}; {advice}"),
                ));
            }
        }
        match other.tensors.iter().find(|theirs| !self.by_name.contains_key(&theirs.name)) {
            None => Ok(()),
            Some(theirs) => {
                let name = theirs.name.escape_debug();
                Err(failure(&other.path, format!("has tensor `{name}`, {theirs}, which {first} lacks; {advice}")))
            }
        }
    }

    /// Reads the bytes of `tensor` from `offset` on.
    pub(super) fn read(&mut self, tensor: &str, offset: u64, bytes: &mut [u8]) -> Result<(), CliError> {
        let name = tensor.escape_debug();
        let Some(found) = self.tensor(tensor) else {
            return Err(failure(&self.path, format!("lacks tensor `{name}`")));
        };
        let start = self.head.len() as u64 + found.info.data_offsets.0 as u64 + offset;
        (self.file.seek(SeekFrom::Start(start)).and_then(|_| self.file.read_exact(bytes))).map_err(|error| {
            failure(
                &self.path,
                format!("tensor `{name}` cannot be read ({error}); run again when nothing writes to the file"),
            )
        })
    }
}

/// The tensors of a header, by offset. They fill the data without gap or overlap.
fn parse(header: &[u8]) -> Result<Vec<(String, TensorInfo)>, String> {
    let Entries(mut tensors) = serde_json::from_slice(header).map_err(|error| {
        let error = printable(&error);
        format!("its header is not one of a safetensors file ({error}); it is damaged or something else")
    })?;
    tensors.sort_by_key(|(_, info)| info.data_offsets);
    Metadata::new(None, tensors.clone())
        .map_err(|error| format!("its header contradicts itself ({}); write it again", printable(&error)))?;
    Ok(tensors)
}

/// What others say of a file may repeat what stands in it, which must not steer the terminal. (Found by fuzzing: an
/// unknown dtype with a tab in its name.)
fn printable(text: &impl ToString) -> String {
    let escaped = |c: char| if c.is_control() { c.escape_debug().to_string() } else { c.to_string() };
    text.to_string().chars().map(escaped).collect()
}

/// The header's entries in their order: a map would silently drop names that come twice.
struct Entries(Vec<(String, TensorInfo)>);

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct EntriesVisitor;
        impl<'de> Visitor<'de> for EntriesVisitor {
            type Value = Entries;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map from tensor names to tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries, A::Error> {
                let mut names = HashSet::new();
                let mut tensors = Vec::new();
                while let Some(name) = map.next_key::<String>()? {
                    if !names.insert(name.clone()) {
                        return Err(A::Error::custom(format_args!("`{}` comes twice", name.escape_debug())));
                    }
                    if name == "__metadata__" {
                        map.next_value::<Option<HashMap<String, String>>>()?;
                    } else {
                        tensors.push((name, map.next_value()?));
                    }
                }
                Ok(Entries(tensors))
            }
        }
        deserializer.deserialize_map(EntriesVisitor)
    }
}

fn reducible(dtype: Dtype) -> Option<DType> {
    Some(match dtype {
        Dtype::F32 => DType::F32,
        Dtype::F64 => DType::F64,
        Dtype::F16 => DType::F16,
        Dtype::BF16 => DType::BF16,
        Dtype::I8 => DType::I8,
        Dtype::U8 => DType::U8,
        Dtype::I32 => DType::I32,
        Dtype::U32 => DType::U32,
        Dtype::I64 => DType::I64,
        Dtype::U64 => DType::U64,
        _ => return None,
    })
}

/// A checkpoint that comes into being whole or not at all.
pub(super) struct Output {
    file: WholeFile,
    path: PathBuf,
}

impl Output {
    /// Starts a file with the header of `like`, so with its names, dtypes, shapes and metadata.
    pub(super) fn create(path: &Path, like: &Checkpoint) -> Result<Self, CliError> {
        let file = WholeFile::create(path)
            .map_err(|error| failure(path, format!("cannot be written: its folder takes no new file: {error}")))?;
        let mut output = Output { file, path: path.into() };
        output.write(&like.head)?;
        Ok(output)
    }

    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<(), CliError> {
        self.file.write_all(bytes).map_err(|error| not_written(&self.path, error))
    }

    /// Makes it last, then gives it its name.
    pub(super) fn finish(self) -> Result<(), CliError> {
        let Output { file, path } = self;
        file.finish().map_err(|error| not_written(&path, error))
    }
}

fn not_written(path: &Path, error: io::Error) -> CliError {
    failure(path, format!("cannot be written: {error}"))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn checkpoint(folder: &Path) -> Checkpoint {
        let header = br#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}"#;
        let content = [&(header.len() as u64).to_le_bytes(), &header[..], b"data"].concat();
        fs::write(folder.join("x"), content).unwrap();
        Checkpoint::open(&folder.join("x")).unwrap()
    }

    #[test]
    fn a_file_cut_after_it_was_checked_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let mut x = checkpoint(folder.path());
        let mut bytes = [0; 3];
        x.read("a", 1, &mut bytes).unwrap();
        assert_eq!(&bytes, b"ata");
        let file = File::options().write(true).open(&x.path).unwrap();
        file.set_len(file.metadata().unwrap().len() - 1).unwrap();
        let error = x.read("a", 1, &mut bytes).unwrap_err().to_string();
        let expected =
            "tensor `a` cannot be read (failed to fill whole buffer); run again when nothing writes to the file";
        assert_eq!(error, format!("{}: {expected}", x.path.display()));
    }

    #[test]
    fn an_output_that_is_given_up_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let x = checkpoint(folder.path());
        let names = || fs::read_dir(folder.path()).unwrap().count();
        let mut output = Output::create(&folder.path().join("out"), &x).unwrap();
        output.write(b"half").unwrap();
        assert_eq!(names(), 2);
        drop(output);
        assert_eq!(names(), 1);
        // What cannot be renamed: a folder with the name came meanwhile.
        let output = Output::create(&folder.path().join("out"), &x).unwrap();
        fs::create_dir(folder.path().join("out")).unwrap();
        assert!(output.finish().unwrap_err().to_string().contains("out: cannot be written: "));
        assert_eq!(names(), 2);
    }
}
