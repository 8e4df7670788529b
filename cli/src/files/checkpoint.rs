//! Safetensors files, one tensor at a time: reading what nobody vouches for, and writing all or nothing.
//!
//! The `safetensors` crate parses a file that is in memory as a whole. Checkpoints are larger than that,
//! so only its types and its checks of the header are used here. A checkpoint is one file, or the files of an index.

use std::{
    collections::{HashMap, HashSet},
    fmt,
    fs::File,
    io::{Read, Seek, SeekFrom},
    path::{Path, PathBuf},
};

use crossccl::DType;
use safetensors::{Dtype, tensor::Metadata, tensor::TensorInfo};
use serde::{
    Deserialize, Deserializer,
    de::{Error as _, MapAccess, Visitor},
};

use super::{
    failure,
    index::{Index, printable},
    kinds,
};
use crate::{
    error::CliError,
    whole_file::{self, WholeFile, Written, folder, kind},
};

/// Bytes of the word in front that tells the length of the header.
const WORD: u64 = 8;
/// The longest header that the `safetensors` crate accepts.
const MAX_HEADER: u64 = 100_000_000;

/// Files whose headers were checked.
pub(super) struct Checkpoint {
    /// As it was given: the one file, or the index.
    pub(super) path: PathBuf,
    /// By their file, and by their place in it.
    pub(super) tensors: Vec<Tensor>,
    parts: Vec<Part>,
    index: Option<Index>,
    by_name: HashMap<String, usize>,
    /// The file that is being read: one, as there may be more files than a process can have open.
    open: Option<(usize, File)>,
}

/// One of the files.
struct Part {
    path: PathBuf,
    length: u64,
    /// The header as it stands in the file, the word in front included.
    head: Vec<u8>,
}

/// A tensor of a checkpoint.
#[derive(Clone)]
pub(super) struct Tensor {
    pub(super) name: String,
    info: TensorInfo,
    /// `None` where it cannot be reduced.
    pub(super) dtype: Option<DType>,
    /// Which file it is in.
    pub(super) part: usize,
}

impl Tensor {
    pub(super) fn bytes(&self) -> u64 {
        let (start, end) = self.info.data_offsets;
        (end - start) as u64
    }

    /// The name of its dtype.
    pub(super) fn type_name(&self) -> String {
        self.info.dtype.to_string()
    }

    fn same_layout(&self, other: &Tensor) -> bool {
        self.info.dtype == other.info.dtype && self.info.shape == other.info.shape
    }
}

impl fmt::Display for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.info.dtype, self.info.shape)
    }
}

impl Checkpoint {
    /// Opens `path` and checks everything about it but the data. An index stands for all files that it names.
    pub(super) fn open(path: &Path) -> Result<Self, CliError> {
        let cannot = |error| failure(path, format!("cannot be read: {error}"));
        // Before it is opened: opening a pipe waits for somebody who writes.
        let facts = path.metadata().map_err(cannot)?;
        if !facts.is_file() {
            return Err(failure(path, format!("{}; give a safetensors file, or an index of such files", kind(&facts))));
        }
        let mut whole = Checkpoint {
            path: path.into(),
            tensors: Vec::new(),
            parts: Vec::new(),
            index: Index::open(path)?,
            by_name: HashMap::new(),
            open: None,
        };
        let Some(index) = whole.index.take() else {
            let file = whole.add(path)?;
            whole.open = Some((0, file));
            return Ok(whole);
        };
        for (name, tensors) in &index.files {
            let (part, shown) = (index.beside(name), name.escape_debug());
            index.check_file(path, name)?;
            let before = whole.tensors.len();
            whole.add(&part)?;
            let there: HashSet<&str> = whole.tensors[before..].iter().map(|t| &*t.name).collect();
            if let Some(missing) = tensors.iter().find(|tensor| !there.contains(&***tensor)) {
                let missing = missing.escape_debug();
                let what = format!("its shard `{shown}` lacks tensor `{missing}`; download both again");
                return Err(failure(path, what));
            }
        }
        whole.index = Some(index);
        Ok(whole)
    }

    /// Adds the tensors of one file, which is open in the answer.
    fn add(&mut self, path: &Path) -> Result<File, CliError> {
        let (file, part, tensors) = Part::open(path)?;
        let number = self.parts.len();
        for (name, info) in tensors {
            if let Some(other) = self.tensor(&name) {
                let (name, other) = (name.escape_debug(), self.parts[other.part].path.display());
                return Err(failure(path, format!("has tensor `{name}`, which {other} has, too; write them again")));
            }
            self.by_name.insert(name.clone(), self.tensors.len());
            self.tensors.push(Tensor { name, dtype: reducible(info.dtype), info, part: number });
        }
        self.parts.push(part);
        Ok(file)
    }

    /// All files that it consists of, the index included.
    pub(super) fn paths(&self) -> impl Iterator<Item = &Path> {
        let index = self.index.as_ref().map(|_| &*self.path);
        index.into_iter().chain(self.parts.iter().map(|part| &*part.path))
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
        let number = found.part;
        let part = &self.parts[number];
        let start = part.head.len() as u64 + found.info.data_offsets.0 as u64 + offset;
        let mut file = match self.open.take() {
            Some((open, file)) if open == number => file,
            _ => part.again()?,
        };
        let done = file.seek(SeekFrom::Start(start)).and_then(|_| file.read_exact(bytes));
        self.open = Some((number, file));
        done.map_err(|error| {
            failure(
                &self.parts[number].path,
                format!("tensor `{name}` cannot be read ({error}); run again when nothing writes to the file"),
            )
        })
    }
}

/// A file that is open, and its tensors.
type Opened = (File, Part, Vec<(String, TensorInfo)>);

impl Part {
    /// Opens one file, and tells its tensors by their place.
    fn open(path: &Path) -> Result<Opened, CliError> {
        let cannot = |error| failure(path, format!("cannot be read: {error}"));
        let mut file = File::open(path).map_err(cannot)?;
        let length = file.metadata().map_err(cannot)?.len();
        // What is known to be something else is told so, rather than how it fails to be a safetensors file.
        let no_file = |what: String| match kinds::guess(&kinds::start(path)) {
            Some(guess) => failure(path, guess),
            None => failure(path, what),
        };
        if length < WORD {
            return Err(no_file(format!(
                "has {length} bytes, too few for a safetensors file; it is truncated or something else"
            )));
        }
        let mut head = vec![0; WORD as usize];
        file.read_exact(&mut head).map_err(cannot)?;
        let header = head.iter().rev().fold(0, |n, byte| n << 8 | u64::from(*byte));
        // Nothing is allocated by a number that the file itself cannot bear out.
        if header > MAX_HEADER {
            return Err(no_file(format!(
                "its first 8 bytes announce a header of {header} bytes, above the limit of {MAX_HEADER}; \
                 it is damaged or not a safetensors file"
            )));
        }
        if header > length - WORD {
            return Err(no_file(format!(
                "its header should have {header} bytes, but only {} follow; it is truncated or not a safetensors file",
                length - WORD
            )));
        }
        head.resize((WORD + header) as usize, 0);
        file.read_exact(&mut head[WORD as usize..]).map_err(cannot)?;
        let tensors = parse(&head[WORD as usize..]).map_err(no_file)?;
        let data = tensors.last().map_or(0, |(_, info)| info.data_offsets.1 as u64);
        let there = length - WORD - header;
        if data != there {
            let state = if there < data { "is truncated" } else { "has bytes that belong to no tensor" };
            let what = format!("{state}: its tensors take {data} bytes, {there} follow the header; write it again");
            return Err(failure(path, what));
        }
        Ok((file, Part { path: path.into(), length, head }, tensors))
    }

    /// Opens it once more, if it is what it was.
    fn again(&self) -> Result<File, CliError> {
        let cannot = |error| failure(&self.path, format!("cannot be read: {error}"));
        let facts = self.path.metadata().map_err(cannot)?;
        if !facts.is_file() || facts.len() != self.length {
            return Err(failure(&self.path, "has changed since it was checked; run again when nothing writes to it"));
        }
        File::open(&self.path).map_err(cannot)
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

/// Where a checkpoint is written. It comes into being whole or not at all, and has the files of the one it is like.
pub(super) struct Output {
    /// The files to write, with their headers.
    parts: Vec<(PathBuf, Vec<u8>)>,
    /// Of several files: the index's name and text.
    index: Option<(PathBuf, Vec<u8>)>,
    file: WholeFile,
    /// Which of the parts that is.
    number: usize,
    written: Vec<Written>,
}

const OPTION: &str = "--output";

/// The files that a checkpoint like `like` has if it is written to `path`; the index last.
pub(super) fn outputs(path: &Path, like: &Checkpoint) -> Result<Vec<PathBuf>, CliError> {
    let Some(index) = &like.index else { return Ok(vec![path.into()]) };
    let file = match (like.path.file_name(), path.extension()) {
        (Some(name), _) if path.is_dir() => path.join(name),
        (_, Some(extension)) if extension.eq_ignore_ascii_case("json") => path.into(),
        _ => {
            return Err(CliError::Usage(format!(
                "--output {}: {} is an index, so the result is an index and {} more files; give a folder that exists, \
                 or a name for the index that ends in .json",
                path.display(),
                like.path.display(),
                index.files.len()
            )));
        }
    };
    let beside = |name: &String| match folder(&file) {
        here if here == Path::new(".") => name.into(),
        folder => folder.join(name),
    };
    Ok(index.files.keys().map(beside).chain([file.clone()]).collect())
}

impl Output {
    /// Starts files with the headers of `like`, so with its names, dtypes, shapes and metadata.
    pub(super) fn create(path: &Path, like: &Checkpoint) -> Result<Self, CliError> {
        let mut paths = outputs(path, like)?;
        let index = like.index.as_ref().and_then(|index| Some((paths.pop()?, index.text.clone())));
        let parts: Vec<_> = paths.into_iter().zip(like.parts.iter().map(|part| part.head.clone())).collect();
        let Some((first, head)) = parts.first() else {
            return Err(failure(&like.path, "is an index of no tensors; there is nothing to reduce"));
        };
        let mut file = WholeFile::create(OPTION, first)?;
        file.write(head)?;
        Ok(Output { index, file, number: 0, written: Vec::new(), parts })
    }

    /// Goes on to a file, at the end of those before it.
    fn reach(&mut self, number: usize) -> Result<(), CliError> {
        while self.number < number {
            let Some((path, head)) = self.parts.get(self.number + 1) else { break };
            let mut next = WholeFile::create(OPTION, path)?;
            next.write(head)?;
            self.written.push(std::mem::replace(&mut self.file, next).close()?);
            self.number += 1;
        }
        Ok(())
    }

    /// Adds to a file; the files come in their order.
    pub(super) fn write(&mut self, number: usize, bytes: &[u8]) -> Result<(), CliError> {
        self.reach(number)?;
        self.file.write(bytes)
    }

    /// Makes all of it last, then gives the files their names, the index last.
    pub(super) fn finish(mut self) -> Result<(), CliError> {
        self.reach(self.parts.len())?;
        self.written.push(self.file.close()?);
        if let Some((path, text)) = self.index {
            let mut file = WholeFile::create(OPTION, &path)?;
            file.write(&text)?;
            self.written.push(file.close()?);
        }
        whole_file::finish_all(&self.written)
    }
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
        output.write(0, b"half").unwrap();
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
