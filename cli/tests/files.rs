//! `crossccl broadcast` and `crossccl reduce-scatter` as a user runs them: status, text, and what is in
//! the folder afterwards.

#![cfg(feature = "cpu")]

use std::{
    collections::{BTreeMap, HashMap},
    fs,
    path::PathBuf,
    process::Command,
};

use crossccl::half::{bf16, f16};
use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use sha2::{Digest, Sha256};

/// A folder of its own, in which the program runs: its messages then hold plain file names.
struct Folder(tempfile::TempDir);

struct Outcome {
    status: i32,
    out: String,
    error: String,
}

impl Folder {
    fn new() -> Self {
        Folder(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        fs::write(self.path(name), content).unwrap();
    }

    fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.path(name)).unwrap()
    }

    /// Every file with its content: nothing else may have come, gone or changed.
    fn content(&self) -> BTreeMap<String, Vec<u8>> {
        let files = fs::read_dir(self.0.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        files.map(|name| (name.clone(), self.read(&name))).collect()
    }

    fn run(&self, arguments: &str) -> Outcome {
        let output = Command::new(env!("CARGO_BIN_EXE_crossccl"))
            .args(arguments.split_whitespace())
            .current_dir(self.0.path())
            .output()
            .unwrap();
        Outcome {
            status: output.status.code().unwrap_or(-1),
            out: String::from_utf8(output.stdout).unwrap(),
            error: String::from_utf8(output.stderr).unwrap(),
        }
    }

    fn succeeds(&self, arguments: &str) -> String {
        let outcome = self.run(arguments);
        assert_eq!((outcome.status, &*outcome.error), (0, ""), "{arguments}\n{}", outcome.out);
        outcome.out
    }

    /// Fails with exactly this text and touches no file.
    #[track_caller]
    fn fails(&self, arguments: &str, status: i32, error: &str) {
        let before = self.content();
        let outcome = self.run(arguments);
        assert_eq!((outcome.status, &*outcome.error), (status, &*format!("crossccl: {error}\n")), "{arguments}");
        assert_eq!(outcome.out, "", "{arguments}");
        assert!(before == self.content(), "{arguments}: the folder changed");
    }
}

// ---- broadcast

fn noise(len: usize) -> Vec<u8> {
    (0..len as u64).map(|i| ((i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 53) as u8).collect()
}

fn hex(content: &[u8]) -> String {
    Sha256::digest(content).iter().map(|b| format!("{b:02x}")).collect()
}

#[test]
fn every_rank_has_the_file() {
    let folder = Folder::new();
    for (len, options) in [
        (0, ""),
        (1, ""),
        (1, "--algorithm two-stage"),
        (70_001, ""),
        (70_001, "--piece-bytes 997"),
        (70_001, "--piece-bytes 4K --algorithm two-stage-staged"),
        // The last piece is a whole one.
        (8192, "--piece-bytes 4K --algorithm one-stage --timeout 2.5 --backend cpu"),
    ] {
        let content = noise(len);
        folder.write("file", &content);
        for ranks in [1, 3, 8] {
            let root = ranks - 1;
            let out = folder.succeeds(&format!("broadcast --input file --ranks {ranks} --root {root} {options}"));
            let lines: Vec<_> = out.lines().collect();
            assert_eq!(lines.len(), ranks + 1, "{out}");
            for (rank, line) in lines[..ranks].iter().enumerate() {
                assert_eq!(*line, format!("rank {rank}  {}  ok", hex(&content)));
            }
            assert!(lines[ranks].starts_with(&format!("{len} bytes from rank {root} to {ranks} ranks: ")), "{out}");
        }
    }
    assert_eq!(folder.content().len(), 1);
}

#[test]
fn many_ranks() {
    let folder = Folder::new();
    folder.write("file", noise(1000));
    let out = folder.succeeds("broadcast --input file --ranks 64 --root 17");
    assert_eq!(out.lines().filter(|l| l.ends_with("  ok")).count(), 64);
    assert!(out.starts_with("rank  0  "));
}

#[cfg(target_os = "linux")]
#[test]
fn what_has_no_length_is_read_to_its_end() {
    use std::{io::Write, process::Stdio};
    let mut child = Command::new(env!("CARGO_BIN_EXE_crossccl"))
        .args("broadcast --input /dev/stdin --ranks 2 --piece-bytes 1000".split(' '))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let content = noise(123_456);
    child.stdin.take().unwrap().write_all(&content).unwrap();
    let out = child.wait_with_output().unwrap();
    assert!(out.status.success());
    let expected = format!("rank 0  {0}  ok\nrank 1  {0}  ok\n123456 bytes", hex(&content));
    assert!(String::from_utf8(out.stdout).unwrap().starts_with(&expected));
}

#[test]
fn broadcasts_that_cannot_be() {
    let folder = Folder::new();
    folder.write("file", "x");
    folder.write("large", noise(100_000));
    let f = |arguments: &str, status, error: &str| folder.fails(&format!("broadcast {arguments}"), status, error);
    f("--input file --ranks 3 --root 3", 2, "--root: rank 3 does not exist among 3 ranks; give 0 to 2");
    f("--input file --ranks 0", 2, "--ranks: 0 is not a number of ranks; give 1 to 64");
    f("--input file --ranks 65", 2, "--ranks: 65 is not a number of ranks; give 1 to 64");
    f("--input none --ranks 2", 1, "none: cannot be read: No such file or directory (os error 2)");
    f("--input . --ranks 2", 1, ".: is a folder; give a file or a pipe");
    #[cfg(target_os = "linux")]
    f("--input /dev/zero --ranks 2", 1, "/dev/zero: is a device; give a file or a pipe");
    f(
        "--input large --ranks 2 --algorithm low-latency",
        2,
        "broadcast: the algorithm low-latency moves at most 65536 bytes from rank to rank in this communicator, and this \
         broadcast has 100000; use auto or one-stage",
    );
    f("--input file --ranks 2 --backend cuda", 2, "this build has no cuda backend; build with `--features cuda`");
    for wrong in [
        "",
        "--ranks 2",
        "--input file",
        "--input file --ranks -1",
        "--input file --ranks 2 --timeout 0",
        "--input file --ranks 2 --piece-bytes 0",
        "--input file --ranks 2 --algorithm fast",
        "--input file --ranks 2 --backend tpu",
    ] {
        assert_eq!(folder.run(&format!("broadcast {wrong}")).status, 2, "{wrong}");
    }
}

#[test]
fn a_limit_that_nobody_can_keep() {
    let folder = Folder::new();
    folder.write("file", noise(100_000));
    // Some six thousand calls: who finds all others ready keeps any limit, and in a hundred calls all did at times.
    let outcome = folder.run("broadcast --input file --ranks 8 --piece-bytes 16 --timeout 0.000000001");
    assert_eq!((outcome.status, &*outcome.out), (1, ""));
    assert!(outcome.error.starts_with("crossccl: broadcast: rank "), "{}", outcome.error);
    assert!(outcome.error.ends_with("; give a longer --timeout\n"), "{}", outcome.error);
}

// ---- reduce-scatter

/// An element as the oracle sees it. Deliberately naive: one element at a time, wide types.
trait Element: Copy + PartialEq + std::fmt::Debug {
    const DTYPE: Dtype;
    fn bytes(self) -> Vec<u8>;
    fn reduce(op: &str, ranks: &[Self]) -> Self;
}

fn least<T: Copy>(ranks: &[T], less: impl Fn(T, T) -> bool) -> T {
    ranks.iter().copied().reduce(|a, b| if less(b, a) { b } else { a }).unwrap()
}

macro_rules! integers {
    ($($t:ident $dtype:ident),*) => { $(
        impl Element for $t {
            const DTYPE: Dtype = Dtype::$dtype;
            fn bytes(self) -> Vec<u8> {
                self.to_le_bytes().to_vec()
            }
            fn reduce(op: &str, ranks: &[$t]) -> $t {
                match op {
                    "sum" => ranks.iter().fold(0, |a, b| a.wrapping_add(*b)),
                    "product" => ranks.iter().fold(1, |a, b| a.wrapping_mul(*b)),
                    "min" => *ranks.iter().min().unwrap(),
                    "max" => *ranks.iter().max().unwrap(),
                    // Over the wrapped sum for 64 bits, over the exact one below.
                    _ if $t::BITS == 64 => ranks.iter().fold(0, |a: $t, b| a.wrapping_add(*b)) / ranks.len() as $t,
                    _ => (ranks.iter().map(|x| *x as i128).sum::<i128>() / ranks.len() as i128) as $t,
                }
            }
        }
    )* };
}
integers! { i8 I8, u8 U8, i32 I32, u32 U32, i64 I64, u64 U64 }

macro_rules! floats {
    ($($t:ident $wide:ident $dtype:ident $narrow:expr),*) => { $(
        impl Element for $t {
            const DTYPE: Dtype = Dtype::$dtype;
            fn bytes(self) -> Vec<u8> {
                self.to_le_bytes().to_vec()
            }
            fn reduce(op: &str, ranks: &[$t]) -> $t {
                let narrow: fn($wide) -> $t = $narrow;
                let mut wide = ranks.iter().map(|x| $wide::from(*x));
                let first = wide.next().unwrap();
                match op {
                    "sum" => narrow(wide.fold(first, |a, b| a + b)),
                    "product" => narrow(wide.fold(first, |a, b| a * b)),
                    // -0 is below +0.
                    "min" => least(ranks, |a, b| a.total_cmp(&b).is_lt()),
                    "max" => least(ranks, |a, b| a.total_cmp(&b).is_gt()),
                    _ => narrow(wide.fold(first, |a, b| a + b) / ranks.len() as $wide),
                }
            }
        }
    )* };
}
floats! { f32 f32 F32 |x| x, f64 f64 F64 |x| x, f16 f32 F16 f16::from_f32, bf16 f32 BF16 bf16::from_f32 }

type Tensors = Vec<(String, Dtype, Vec<usize>, Vec<u8>)>;

fn serialize(tensors: &Tensors, metadata: &[(&str, &str)]) -> Vec<u8> {
    let views = (tensors.iter())
        .map(|(name, dtype, shape, data)| (name, TensorView::new(*dtype, shape.clone(), data).unwrap()));
    let metadata = metadata.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect::<HashMap<_, _>>();
    safetensors::serialize(views, (!metadata.is_empty()).then_some(metadata)).unwrap()
}

/// `make(rank, i)` is element i of a rank. Adds the tensor to each rank's list and the oracle's result to
/// `expected`.
fn add<T: Element>(
    (ranks, expected): (&mut [Tensors], &mut Tensors),
    op: &str,
    name: &str,
    shape: &[usize],
    make: impl Fn(usize, usize) -> T,
) {
    let count = shape.iter().product::<usize>();
    for (rank, tensors) in ranks.iter_mut().enumerate() {
        let data = (0..count).flat_map(|i| make(rank, i).bytes()).collect();
        tensors.push((name.into(), T::DTYPE, shape.into(), data));
    }
    let n = ranks.len();
    let result = (0..count).flat_map(|i| T::reduce(op, &(0..n).map(|r| make(r, i)).collect::<Vec<_>>()).bytes());
    expected.push((name.into(), T::DTYPE, shape.into(), result.collect()));
}

/// Some 40 bits that look like none.
fn bits(rank: usize, i: usize) -> u64 {
    let x = (rank as u64 * 1_000_003 + i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x ^ x >> 29
}

/// From -1000 to 1000, both zeros among them.
fn real(rank: usize, i: usize) -> f64 {
    match bits(rank, i) % 9 {
        0 => 0.0,
        1 => -0.0,
        _ => (bits(rank, i) >> 40) as f64 / f64::from(1 << 24) * 2000.0 - 1000.0,
    }
}

/// Files for `ranks` ranks with every dtype and awkward shapes, and what must come out.
fn example(ranks: usize, op: &str) -> (Vec<Vec<u8>>, Tensors) {
    let (mut files, mut expected) = (vec![Tensors::new(); ranks], Tensors::new());
    macro_rules! dtypes {
        ($($t:ident $make:expr),*) => { $(
            for shape in [&[][..], &[1], &[5, 0, 3], &[2, 3, 17]] {
                let name = format!("{} {shape:?}", stringify!($t));
                add::<$t>((&mut files, &mut expected), op, &name, shape, $make);
            }
        )* };
    }
    dtypes! {
        i8 |r, i| bits(r, i) as i8, u8 |r, i| bits(r, i) as u8,
        i32 |r, i| bits(r, i) as i32, u32 |r, i| bits(r, i) as u32,
        i64 |r, i| bits(r, i) as i64, u64 bits,
        f32 |r, i| real(r, i) as f32, f64 real,
        f16 |r, i| f16::from_f64(real(r, i)), bf16 |r, i| bf16::from_f64(real(r, i))
    }
    let files = (files.iter().enumerate())
        .map(|(rank, tensors)| serialize(tensors, &[("format", "pt"), ("rank", &rank.to_string())]));
    (files.collect(), expected)
}

#[test]
fn every_dtype_and_op_as_the_oracle_says() {
    let folder = Folder::new();
    for ranks in [1, 2, 3, 8] {
        for op in ["sum", "average", "min", "max", "product"] {
            let (files, expected) = example(ranks, op);
            let names: Vec<_> = (0..ranks).map(|r| format!("rank{r}")).collect();
            for (name, file) in names.iter().zip(&files) {
                folder.write(name, file);
            }
            let spelled = match (op, ranks) {
                ("average", 1) => "--op avg".into(),
                ("product", 3) => "--op prod".into(),
                ("average", 3) => "--average".into(),
                // Odd, and less than an element of some dtypes.
                (_, 2) => format!("--op {op} --piece-bytes 7"),
                (_, 8) => format!("--op {op} --piece-bytes 100"),
                _ => format!("--op {op}"),
            };
            let out = folder.succeeds(&format!("reduce-scatter {} {spelled} --output out", names.join(" ")));
            let plural = format!("out: {op} of {ranks} files, {} tensors, ", expected.len());
            assert!(out.starts_with(&plural), "{out}");
            let result = folder.read("out");
            let got = SafeTensors::deserialize(&result).unwrap();
            assert_eq!(got.len(), expected.len());
            for (name, dtype, shape, data) in &expected {
                let tensor = got.tensor(name).unwrap();
                assert_eq!((tensor.dtype(), tensor.shape()), (*dtype, &shape[..]), "{name}");
                assert_eq!(tensor.data(), data, "{name}, {op} of {ranks}");
            }
            let (_, header) = SafeTensors::read_metadata(&result).unwrap();
            let metadata = header.metadata().clone().unwrap();
            assert_eq!(metadata, HashMap::from([("format".into(), "pt".into()), ("rank".into(), "0".into())]));
            if ranks == 1 {
                assert!(result == files[0], "one file: a copy");
            }
            assert_eq!(folder.content().len(), ranks + 1);
            for name in names {
                fs::remove_file(folder.path(&name)).unwrap();
            }
        }
    }
}

/// A file from a header as text, and this many bytes of data.
fn raw(header: &str, data: usize) -> Vec<u8> {
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.extend(vec![1; data]);
    file
}

fn ab(a: (Dtype, &[usize]), b: Option<(Dtype, &[usize])>) -> Vec<u8> {
    let tensors = [("a", Some(a)), ("b", b)].into_iter().filter_map(|(name, tensor)| {
        let (dtype, shape) = tensor?;
        let bytes = shape.iter().product::<usize>() * dtype.bitsize() / 8;
        Some((name.to_owned(), dtype, shape.to_vec(), vec![1; bytes]))
    });
    serialize(&tensors.collect(), &[])
}

#[test]
fn tensors_may_stand_in_any_order() {
    let folder = Folder::new();
    folder.write("x", raw(r#"{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}}"#, 3));
    let mut other = raw(
        r#" {"b":{"data_offsets":[0,1],"dtype":"U8","shape":[1]},"a":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}}  "#,
        0,
    );
    other.extend([10, 20, 30]);
    folder.write("y", other);
    folder.succeeds("reduce-scatter x y --output out");
    assert!(folder.read("out").ends_with(&[b'}', 21, 31, 11]));
}

#[test]
fn no_tensors_at_all() {
    let folder = Folder::new();
    folder.write("x", raw("{}", 0));
    folder.succeeds("reduce-scatter x x --output out");
    assert_eq!(folder.read("out"), folder.read("x"));
}

/// Once without an output and once with an existing one, which must stay as it is.
#[track_caller]
fn refused(folder: &Folder, arguments: &str, status: i32, error: &str) {
    folder.fails(&format!("reduce-scatter {arguments} --output out"), status, error);
    folder.write("out", "precious");
    folder.fails(&format!("reduce-scatter {arguments} --output out"), status, error);
    fs::remove_file(folder.path("out")).unwrap();
}

#[test]
fn layouts_that_differ() {
    let folder = Folder::new();
    let f32s: (Dtype, &[usize]) = (Dtype::F32, &[2, 3]);
    folder.write("first", ab(f32s, Some((Dtype::U8, &[4]))));
    for (other, error) in [
        (ab(f32s, None), "lacks tensor `b`, U8 [4] in first"),
        (ab((Dtype::F32, &[3, 2]), Some((Dtype::U8, &[4]))), "tensor `a` is F32 [3, 2], but F32 [2, 3] in first"),
        (ab((Dtype::I32, &[2, 3]), Some((Dtype::U8, &[4]))), "tensor `a` is I32 [2, 3], but F32 [2, 3] in first"),
        (ab(f32s, Some((Dtype::U8, &[4, 1]))), "tensor `b` is U8 [4, 1], but U8 [4] in first"),
    ] {
        folder.write("other", other);
        refused(&folder, "first first other", 1, &format!("other: {error}; give checkpoints of one model"));
    }
    folder.write("other", ab(f32s, None));
    let extra = "first: has tensor `b`, U8 [4], which other lacks; give checkpoints of one model";
    refused(&folder, "other first", 1, extra);
}

#[test]
fn dtypes_that_cannot_be_reduced_are_copied_if_all_files_agree() {
    let folder = Folder::new();
    let dtypes = "f32, f64, f16, bf16, i8, u8, i32, u32, i64, u64";
    for dtype in [Dtype::BOOL, Dtype::I16, Dtype::U16, Dtype::F8_E4M3, Dtype::F8_E5M2, Dtype::C64, Dtype::F4] {
        folder.write("x", ab((Dtype::F32, &[1]), Some((dtype, &[2]))));
        let out = folder.succeeds("reduce-scatter x x x --op max --output out");
        let told = "copied, not reduced, since their dtypes cannot be and all files agree on them";
        assert!(out.ends_with(&format!(" s\n{told}: `b` {dtype} [2]\n")), "{out}");
        assert!(folder.read("out") == folder.read("x"), "{dtype}");
        fs::remove_file(folder.path("out")).unwrap();
        // One bit of the last byte.
        let mut other = folder.read("x");
        *other.last_mut().unwrap() ^= 4;
        folder.write("other", &other);
        // The widest stands first in the file.
        let differs = SafeTensors::deserialize(&other).unwrap().tensor("b").unwrap().data().last() == Some(&5);
        assert_eq!(differs, dtype != Dtype::C64);
        let error = format!(
            "other: tensor `b`, {dtype} [2], is another one than in x; {dtype} cannot be reduced, only copied if all \
             files agree; the dtypes that can are {dtypes}"
        );
        match differs {
            true => refused(&folder, "x x other", 1, &error),
            false => drop(folder.succeeds("reduce-scatter x x other --output out")),
        }
        let _ = fs::remove_file(folder.path("out"));
    }
    // Large ones in pieces, and of many the first.
    let tensors = (0..10).map(|i| (format!("t{i}"), Dtype::BOOL, vec![5000], vec![1; 5000])).collect();
    folder.write("x", serialize(&tensors, &[]));
    let out = folder.succeeds("reduce-scatter x x --output out --piece-bytes 999");
    assert!(out.ends_with("`t7` BOOL [5000], and 2 more\n"), "{out}");
    assert!(folder.read("out") == folder.read("x"));
    let mut other = folder.read("x");
    *other.last_mut().unwrap() = 0;
    folder.write("other", other);
    refused(
        &folder,
        "x other --piece-bytes 999",
        1,
        &format!(
            "other: tensor `t9`, BOOL [5000], is another one than in x; BOOL cannot be reduced, only copied if all \
         files agree; the dtypes that can are {dtypes}"
        ),
    );
}

/// What is known to be something else is called by its name.
#[test]
fn files_that_are_something_else() {
    let folder = Folder::new();
    folder.write("whole", ab((Dtype::F32, &[1]), None));
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4665\nsize 12345\n";
    let lfs = "is a Git LFS pointer, not the file that it stands for; run `git lfs pull` where it was cloned";
    for (content, what) in [
        (pointer.as_bytes(), lfs),
        (
            b"<!doctype html>\n<html><head><title>404</title>",
            "is an HTML page, perhaps an error told in place of the file; download it again",
        ),
        (
            b"PK\x03\x04\0\0\x08\x08\0\0archive/data.pkl",
            "is a zip archive, such as torch.save writes (.pt, .pth, .bin); convert it to safetensors",
        ),
        (
            b"{\"architectures\": []}",
            "is a JSON file; give a safetensors file, or an index of such files (with a weight_map)",
        ),
    ] {
        folder.write("x.safetensors", content);
        refused(&folder, "whole x.safetensors", 1, &format!("x.safetensors: {what}"));
        // A broadcast takes any content, and says so.
        let outcome = folder.run("broadcast --input x.safetensors --ranks 2");
        assert_eq!((outcome.status, outcome.out.matches("  ok").count()), (0, 2), "{}", outcome.error);
        assert_eq!(outcome.error, format!("crossccl: x.safetensors: {what} (broadcast as it is)\n"));
        folder.write("x.bin", content);
        let outcome = folder.run("broadcast --input x.bin --ranks 1");
        assert_eq!((outcome.status, outcome.error.is_empty()), (0, content != pointer.as_bytes()));
    }
}

// ---- checkpoints in several files

const INDEX: &str = "model.safetensors.index.json";

/// A checkpoint of two files and an index in a folder `name`; elements are `value` and one more.
fn split(folder: &Folder, name: &str, value: f32) {
    fs::create_dir_all(folder.path(name)).unwrap();
    let one = |tensor: &str, value: f32| (tensor.to_owned(), Dtype::F32, vec![1], value.to_le_bytes().to_vec());
    folder.write(
        &format!("{name}/model-1.safetensors"),
        serialize(&vec![one("a", value), one("c", value)], &[("n", name)]),
    );
    folder.write(&format!("{name}/model-2.safetensors"), serialize(&vec![one("b", value + 1.0)], &[]));
    let map = r#"{"a": "model-1.safetensors", "b": "model-2.safetensors", "c": "model-1.safetensors"}"#;
    folder.write(&format!("{name}/{INDEX}"), format!(r#"{{"metadata": {{"total_size": 12}}, "weight_map": {map}}}"#));
}

impl Folder {
    fn files_of(&self, name: &str) -> BTreeMap<String, Vec<u8>> {
        let files = fs::read_dir(self.path(name)).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
        files.map(|file| (file.clone(), self.read(&format!("{name}/{file}")))).collect()
    }
}

#[test]
fn an_index_stands_for_all_its_files() {
    let folder = Folder::new();
    split(&folder, "x", 1.0);
    split(&folder, "y", 10.0);
    fs::create_dir(folder.path("out")).unwrap();
    let value = |file: &[u8], tensor: &str| {
        let whole = SafeTensors::deserialize(file).unwrap();
        f32::from_le_bytes(whole.tensor(tensor).unwrap().data().try_into().unwrap())
    };
    // Into a folder, or under another name for the index.
    for (output, index) in [("out", INDEX), ("out/", INDEX), ("out/other.json", "other.json")] {
        let out = folder.succeeds(&format!("reduce-scatter x/{INDEX} y/{INDEX} --output {output}"));
        assert!(out.starts_with(&format!("{output}: sum of 2 files, 3 tensors, 12 bytes, ")), "{out}");
        let files = folder.files_of("out");
        assert_eq!(files.keys().collect::<Vec<_>>(), ["model-1.safetensors", "model-2.safetensors", index]);
        assert_eq!(files[index], folder.read(&format!("x/{INDEX}")));
        let (one, two) = (&files["model-1.safetensors"], &files["model-2.safetensors"]);
        assert_eq!([value(one, "a"), value(two, "b"), value(one, "c")], [11.0, 13.0, 11.0]);
        assert_eq!(SafeTensors::read_metadata(one).unwrap().1.metadata().as_ref().unwrap()["n"], "x");
        for file in files.keys() {
            fs::remove_file(folder.path("out").join(file)).unwrap();
        }
    }
    // The files of a rank need not be cut alike: the first says what the result is like.
    let one = |tensor: &str| (tensor.to_owned(), Dtype::F32, vec![1], 5f32.to_le_bytes().to_vec());
    folder.write("single", serialize(&vec![one("a"), one("b"), one("c")], &[]));
    folder.succeeds(&format!("reduce-scatter single x/{INDEX} --output sum"));
    assert_eq!([value(&folder.read("sum"), "a"), value(&folder.read("sum"), "b")], [6.0, 7.0]);
    folder.succeeds(&format!("reduce-scatter x/{INDEX} single --output out"));
    assert_eq!(value(&folder.read("out/model-2.safetensors"), "b"), 7.0);
    // In place of an input only by force, and a file of an index is one.
    let outcome = folder.run(&format!("reduce-scatter x/{INDEX} single --output x/new.json"));
    let told = "crossccl: --output: x/model-1.safetensors is the input x/model-1.safetensors; give another, or --force";
    assert!(outcome.status == 2 && outcome.error.starts_with(told), "{}", outcome.error);
    folder.succeeds(&format!("reduce-scatter x/{INDEX} single --output x --force"));
    assert_eq!(value(&folder.read("x/model-2.safetensors"), "b"), 7.0);
    // A name that is neither.
    let outcome = folder.run(&format!("reduce-scatter x/{INDEX} --output new"));
    let told = format!(
        "crossccl: --output new: x/{INDEX} is an index, so the result is an index and 2 more files; give a folder that \
         exists, or a name for the index that ends in .json\n"
    );
    assert_eq!((outcome.status, outcome.error), (2, told));
}

#[test]
fn a_broadcast_of_an_index_is_one_of_all_its_files() {
    let folder = Folder::new();
    split(&folder, "x", 1.0);
    let out = folder.succeeds(&format!("broadcast --input x/{INDEX} --ranks 2"));
    let lines: Vec<_> = out.lines().collect();
    let mut bytes = 0;
    for (at, name) in [INDEX, "model-1.safetensors", "model-2.safetensors"].into_iter().enumerate() {
        let content = folder.read(&format!("x/{name}"));
        bytes += content.len();
        assert_eq!(lines[3 * at], format!("x/{name}:"));
        for rank in 0..2 {
            assert_eq!(lines[3 * at + 1 + rank], format!("rank {rank}  {}  ok", hex(&content)));
        }
    }
    assert!(lines[9].starts_with(&format!("{bytes} bytes of 3 files from rank 0 to 2 ranks: ")), "{out}");
    // Of files that are no safetensors files only that they are there.
    folder.write("bin.index.json", r#"{"weight_map": {"a": "pytorch_model-1.bin"}}"#);
    let lacks = "No such file or directory (os error 2); it belongs beside the index";
    let outcome = folder.run("broadcast --input bin.index.json --ranks 2");
    let told = format!("crossccl: bin.index.json: its shard `pytorch_model-1.bin` cannot be read: {lacks}\n");
    assert_eq!((outcome.status, outcome.error), (1, told));
    folder.write("pytorch_model-1.bin", "PK\x03\x04");
    assert!(folder.succeeds("broadcast --input bin.index.json --ranks 2").contains(" bytes of 2 files "));
}

#[test]
fn indexes_that_lie() {
    let folder = Folder::new();
    split(&folder, "x", 1.0);
    folder.write("whole", ab((Dtype::F32, &[1]), None));
    fs::create_dir(folder.path("x/sub")).unwrap();
    folder.write("x/zip", "PK\x03\x04\0\0\0\0");
    let beside = "expected the name of a file beside the index";
    let gone = "No such file or directory (os error 2); it belongs beside the index";
    for (map, error) in [
        (r#""a": "../whole""#, format!("names `../whole` as the file of tensor `a`; {beside}")),
        (r#""a": "/etc/passwd""#, format!("names `/etc/passwd` as the file of tensor `a`; {beside}")),
        (r#""a": "..""#, format!("names `..` as the file of tensor `a`; {beside}")),
        (r#""a": "sub/x""#, format!("names `sub/x` as the file of tensor `a`; {beside}")),
        (r#""a": "bad.json""#, format!("names `bad.json` as the file of tensor `a`; {beside}")),
        (r#""a": "sub""#, "its shard `sub` is a folder".into()),
        (r#""a": "none.safetensors""#, format!("its shard `none.safetensors` cannot be read: {gone}")),
        (
            r#""a": "model-1.safetensors", "z": "model-2.safetensors""#,
            "its shard `model-2.safetensors` lacks tensor `z`; download both again".into(),
        ),
        (
            r#""a": "model-1.safetensors", "a": "model-2.safetensors""#,
            "is an index that cannot be understood (`a` comes twice at line 1 column 71); download it again".into(),
        ),
        (
            r#""a": 5"#,
            "is an index that cannot be understood (invalid type: integer `5`, expected a string at line 1 column 22); \
             download it again"
                .into(),
        ),
    ] {
        folder.write("x/bad.json", format!(r#"{{"weight_map": {{{map}}}}}"#));
        let outcome = folder.run("reduce-scatter x/bad.json --output x/out.json");
        assert_eq!((outcome.status, outcome.error), (1, format!("crossccl: x/bad.json: {error}\n")), "{map}");
        // Names that lead elsewhere, and what belongs to safetensors files.
        if map.contains("safetensors") || error.contains(beside) {
            let outcome = folder.run("broadcast --input x/bad.json --ranks 1");
            assert_eq!((outcome.status, outcome.error), (1, format!("crossccl: x/bad.json: {error}\n")), "{map}");
        }
        assert!(!folder.path("x/out.json").exists());
    }
    folder.write("x/bad.json", r#"{"weight_map": {"a": "zip"}}"#);
    let outcome = folder.run("reduce-scatter x/bad.json --output x/out.json");
    assert!(outcome.error.starts_with("crossccl: x/zip: is a zip archive, such as torch.save"), "{}", outcome.error);
    // One tensor in two files.
    fs::copy(folder.path("x/model-1.safetensors"), folder.path("x/model-3.safetensors")).unwrap();
    folder.write("x/bad.json", r#"{"weight_map": {"a": "model-1.safetensors", "c": "model-3.safetensors"}}"#);
    let outcome = folder.run("reduce-scatter x/bad.json --output x/out.json");
    let told =
        "crossccl: x/model-3.safetensors: has tensor `a`, which x/model-1.safetensors has, too; write them again\n";
    assert_eq!((outcome.status, &*outcome.error), (1, told));
    // Ranks that differ.
    let outcome = folder.run(&format!("reduce-scatter x/{INDEX} whole --output x/out.json"));
    let told = format!("crossccl: whole: lacks tensor `c`, F32 [1] in x/{INDEX}; give checkpoints of one model\n");
    assert_eq!((outcome.status, outcome.error), (1, told));
    // Nothing to reduce.
    folder.write("x/bad.json", r#"{"weight_map": {}}"#);
    let outcome = folder.run("reduce-scatter x/bad.json --output x/out.json");
    assert!(outcome.error.contains("is an index of no tensors"), "{}", outcome.error);
    let mut left = fs::read_dir(folder.path("x")).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    assert!(left.all(|name| !name.starts_with(".crossccl")));
}

#[test]
fn files_cut_short() {
    let folder = Folder::new();
    let whole = ab((Dtype::F32, &[2, 3]), Some((Dtype::U8, &[4])));
    folder.write("whole", &whole);
    let header = u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
    let data = whole.len() - 8 - header;
    let cut = |len: usize| {
        folder.write("cut", &whole[..len]);
        let error = match len {
            0..8 => format!("has {len} bytes, too few for a safetensors file; it is truncated or something else"),
            _ if len < 8 + header => format!(
                "its header should have {header} bytes, but only {} follow; it is truncated or not a safetensors file",
                len - 8
            ),
            _ => format!(
                "is truncated: its tensors take {data} bytes, {} follow the header; write it again",
                len - 8 - header
            ),
        };
        folder.fails("reduce-scatter whole cut --output out", 1, &format!("cut: {error}"));
    };
    (0..whole.len()).for_each(cut);
    folder.write("cut", [&whole[..], b"x"].concat());
    let error = format!(
        "cut: has bytes that belong to no tensor: its tensors take {data} bytes, {} follow the header; write it again",
        data + 1
    );
    refused(&folder, "whole cut", 1, &error);
}

#[test]
fn headers_that_lie() {
    let folder = Folder::new();
    let lie = |file: Vec<u8>, error: &str| {
        folder.write("bad", file);
        refused(&folder, "bad bad", 1, &format!("bad: {error}"));
    };
    for length in [u64::MAX, 1 << 63, 100_000_001] {
        let mut file = raw("{}", 100);
        file[..8].copy_from_slice(&length.to_le_bytes());
        lie(
            file,
            &format!(
                "its first 8 bytes announce a header of {length} bytes, above the limit of 100000000; \
                 it is damaged or not a safetensors file"
            ),
        );
    }
    let json =
        |what: &str| format!("its header is not one of a safetensors file ({what}); it is damaged or something else");
    let tensor = |name: &str, dtype: &str, shape: &str, offsets: &str| {
        format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}"#)
    };
    lie(raw("", 0), &json("EOF while parsing a value at line 1 column 0"));
    lie(raw("not json", 8), &json("expected ident at line 1 column 2"));
    lie(raw("[]", 0), &json("invalid type: sequence, expected a map from tensor names to tensors at line 1 column 0"));
    lie(raw("{}{}", 0), &json("trailing characters at line 1 column 3"));
    lie(raw(r#"{"a":5}"#, 0), &json("invalid type: integer `5`, expected struct TensorInfo at line 1 column 6"));
    let a = tensor("a", "U8", "[2]", "[0,2]");
    lie(raw(&format!("{{{a},{a}}}"), 2), &json("`a` comes twice at line 1 column 56"));
    lie(
        raw(&format!("{{{a},{}}}", tensor("a", "U8", "[2]", "[2,4]")), 4),
        &json("`a` comes twice at line 1 column 56"),
    );
    lie(raw(r#"{"__metadata__":{},"__metadata__":{}}"#, 0), &json("`__metadata__` comes twice at line 1 column 33"));
    let contradiction = |what: &str| format!("its header contradicts itself ({what}); write it again");
    let offset = "invalid offset for tensor `b`";
    for (second, data, what) in [
        (tensor("b", "U8", "[2]", "[1,3]"), 3, offset),
        (tensor("b", "U8", "[2]", "[3,5]"), 5, offset),
        (tensor("b", "U8", "[2]", "[2,1]"), 2, offset),
        // Two tensors at one place.
        (tensor("b", "U8", "[2]", "[0,2]"), 2, offset),
        (tensor("b", "U8", "[2]", "[2,5]"), 5, "invalid shape, data type, or offset for tensor"),
        (
            tensor("b", "U8", "[4294967296,4294967296]", "[2,5]"),
            5,
            "overflow computing buffer size from shape and/or element type",
        ),
    ] {
        lie(raw(&format!("{{{a},{second}}}"), data), &contradiction(what));
    }
    // What is repeated of the file does not steer the terminal.
    let second = tensor(r"b\u001b[2J", "U8", "[2]", "[1,3]");
    lie(raw(&format!("{{{a},{second}}}"), 3), &contradiction(r"invalid offset for tensor `b\u{1b}[2J`"));
    folder.write("bad", raw(&format!("{{{}}}", tensor("a", r"s\the\u001b[2J", "[2]", "[0,2]")), 2));
    let outcome = folder.run("reduce-scatter bad --output out");
    assert!(outcome.error.contains(r"unknown variant `s\the\u{1b}[2J`"), "{}", outcome.error);
    // An announced size that nothing bears out is not allocated.
    lie(
        raw(&format!("{{{}}}", tensor("a", "U8", "[1099511627776]", "[0,1099511627776]")), 3),
        "is truncated: its tensors take 1099511627776 bytes, 3 follow the header; write it again",
    );
    let mut seed = 1u64;
    for len in 8..200 {
        // Garbage behind a header length that fits.
        let garbage: Vec<u8> = (8..len)
            .map(|_| {
                seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1);
                (seed >> 56) as u8
            })
            .collect();
        folder.write("bad", [&(len - 8u64).to_le_bytes()[..], &garbage].concat());
        let outcome = folder.run("reduce-scatter bad --output out");
        assert_eq!(outcome.status, 1);
        assert!(outcome.error.starts_with("crossccl: bad: its header is not one of"), "{}", outcome.error);
    }
}

#[test]
fn outputs_and_command_lines_that_cannot_be() {
    let folder = Folder::new();
    folder.write("x", ab((Dtype::F32, &[2]), None));
    folder.write("y", ab((Dtype::F32, &[2]), None));
    let f = |arguments: &str, status, error: &str| folder.fails(&format!("reduce-scatter {arguments}"), status, error);
    f(
        "x y --output ./y",
        2,
        "--output: ./y is the input y; give another, or --force to replace the input when the result is complete",
    );
    f("x none --output out", 1, "none: cannot be read: No such file or directory (os error 2)");
    f("x . --output out", 1, ".: is a folder; give a safetensors file, or an index of such files");
    let name = "is the name of a folder; give the name of a file";
    f("x --output .", 2, &format!("--output .: {name}"));
    f("x --output none/", 2, &format!("--output none/: {name}"));
    f("x --output none/.", 2, &format!("--output none/.: {name}"));
    f("x --output none/out", 1, "--output none/out: its folder none does not exist; create it first");
    f("x --output x/out", 1, "--output x/out: x is no folder");
    let many = "x ".repeat(65);
    f(&format!("{many} --output out"), 2, "FILE (one a rank): 65 is not a number of ranks; give 1 to 64");
    f("x --output out --backend rocm", 2, "this build has no rocm backend; build with `--features rocm`");
    for wrong in ["--output out", "x", "x --output out --op mean", "x --output out --op sum --average"] {
        assert_eq!(folder.run(&format!("reduce-scatter {wrong}")).status, 2, "{wrong}");
    }
    assert_eq!(folder.content().len(), 2);
    folder.succeeds(&format!("reduce-scatter {} --output out", "x ".repeat(64)));
    folder.succeeds("reduce-scatter x y --output y --force --op sum");
    assert_eq!(folder.content().len(), 3);
    let one = f32::from_le_bytes([1; 4]);
    assert!(folder.read("y").ends_with(&(one + one).to_le_bytes()));
}

#[cfg(unix)]
#[test]
fn the_output_is_a_file_like_any_other() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
    let folder = Folder::new();
    folder.write("x", ab((Dtype::F32, &[2]), None));
    folder.write("target", "old");
    symlink("target", folder.path("link")).unwrap();
    folder.succeeds("reduce-scatter x --output link");
    assert!(folder.path("link").is_symlink());
    assert_eq!(folder.read("target"), folder.read("x"));
    // Not private to its owner, as temporary files are; but as private as it was.
    assert_eq!(folder.path("target").metadata().unwrap().mode(), folder.path("x").metadata().unwrap().mode());
    for mode in [0o600, 0o640, 0o666] {
        fs::set_permissions(folder.path("target"), PermissionsExt::from_mode(mode)).unwrap();
        folder.succeeds("reduce-scatter x x --output link");
        assert_eq!(folder.path("target").metadata().unwrap().mode() & 0o7777, mode);
    }
    // Its owner, too, which only root can do.
    let root = folder.path("target").metadata().unwrap().uid() == 0;
    if root {
        std::os::unix::fs::chown(folder.path("target"), Some(12345), Some(12346)).unwrap();
        folder.succeeds("reduce-scatter x x --output link");
        let facts = folder.path("target").metadata().unwrap();
        assert_eq!((facts.uid(), facts.gid(), facts.mode() & 0o7777), (12345, 12346, 0o666));
    }
    // A new one is as the user wants new files.
    let script = "umask 027 && exec \"$0\" reduce-scatter x --output new";
    let done =
        Command::new("sh").args(["-c", script, env!("CARGO_BIN_EXE_crossccl")]).current_dir(folder.0.path()).output();
    assert!(done.unwrap().status.success());
    assert_eq!(folder.path("new").metadata().unwrap().mode() & 0o7777, 0o640);
    // Another hard link is another file from then on.
    fs::hard_link(folder.path("new"), folder.path("second")).unwrap();
    let before = folder.read("new");
    folder.succeeds("reduce-scatter x x --output new");
    assert!(folder.read("second") == before && folder.read("new") != before);
}

/// Through links to what is not there yet; not in circles, nor out of the file system.
#[cfg(target_os = "linux")]
#[test]
fn links_to_what_is_not_there() {
    use std::os::unix::fs::symlink;
    let folder = Folder::new();
    folder.write("x", ab((Dtype::F32, &[2]), None));
    fs::create_dir(folder.path("sub")).unwrap();
    for (link, to) in [
        ("link", "sub/chain"),
        ("sub/chain", "../target"),
        ("astray", "none/target"),
        ("circle", "sub/circle"),
        ("sub/circle", "../circle"),
        ("slash", "target/"),
        ("up", "sub"),
    ] {
        symlink(to, folder.path(link)).unwrap();
    }
    folder.succeeds("reduce-scatter x --output link");
    assert!(folder.path("link").is_symlink() && folder.path("sub/chain").is_symlink());
    assert_eq!(folder.read("target"), folder.read("x"));
    fs::remove_file(folder.path("target")).unwrap();
    let file = "give the name of a file";
    for (output, status, error) in [
        ("astray", 1, "its folder none does not exist; create it first".to_owned()),
        ("circle", 2, format!("is a symbolic link that leads in a circle; {file}")),
        ("slash", 2, format!("is the name of a folder; {file}")),
        ("up", 2, format!("is the name of a folder; {file}")),
        ("/dev/stdout", 2, format!("leads to /proc, where nothing can be replaced; {file}")),
        ("/dev/null", 2, format!("is a device; {file}")),
    ] {
        let outcome = folder.run(&format!("reduce-scatter x --output {output}"));
        assert_eq!((outcome.status, outcome.error), (status, format!("crossccl: --output {output}: {error}\n")));
    }
    // Also as the other name of an input.
    symlink("x", folder.path("same")).unwrap();
    let outcome = folder.run("reduce-scatter x --output same");
    assert!(outcome.error.starts_with("crossccl: --output: same is the input x; "), "{}", outcome.error);
}

/// What is no file is told before anybody waits for it or writes to it.
#[cfg(unix)]
#[test]
fn pipes_and_sockets() {
    let folder = Folder::new();
    folder.write("x", ab((Dtype::F32, &[2]), None));
    assert!(Command::new("mkfifo").arg(folder.path("pipe")).status().unwrap().success());
    let _socket = std::os::unix::net::UnixListener::bind(folder.path("socket")).unwrap();
    let safetensors = "give a safetensors file, or an index of such files";
    for (arguments, status, error) in [
        ("reduce-scatter x --output pipe", 2, "--output pipe: is a pipe; give the name of a file".to_owned()),
        ("reduce-scatter x --output socket", 2, "--output socket: is a socket; give the name of a file".into()),
        ("reduce-scatter x pipe --output out", 1, format!("pipe: is a pipe; {safetensors}")),
        ("reduce-scatter x socket --output out", 1, format!("socket: is a socket; {safetensors}")),
        ("broadcast --input socket --ranks 2", 1, "socket: is a socket; give a file or a pipe".into()),
    ] {
        let outcome = folder.run(arguments);
        assert_eq!((outcome.status, outcome.error), (status, format!("crossccl: {error}\n")), "{arguments}");
    }
    folder.write("index.json", r#"{"weight_map": {"a": "pipe"}}"#);
    for command in ["reduce-scatter index.json --output out.json", "broadcast --ranks 2 --input index.json"] {
        let outcome = folder.run(command);
        // As any pipe, a broadcast would read it to its end: a checkpoint's part has none to wait for.
        let told = outcome.error.contains("its shard `pipe` is a pipe");
        assert_eq!((outcome.status, told), (1, true), "{command}: {}", outcome.error);
    }
}

/// The program as somebody who is not root: root may do all of this. With its own copy, that anybody may run.
#[cfg(target_os = "linux")]
fn as_anybody(folder: &Folder, script: &str) -> Outcome {
    use std::os::unix::{
        fs::{MetadataExt, PermissionsExt},
        process::CommandExt,
    };
    let program = folder.path("crossccl");
    if !program.exists() {
        fs::copy(env!("CARGO_BIN_EXE_crossccl"), &program).unwrap();
        fs::set_permissions(folder.0.path(), PermissionsExt::from_mode(0o755)).unwrap();
    }
    // Other shells name limits otherwise.
    let mut command = Command::new("bash");
    command.args(["-c", script]).current_dir(folder.0.path());
    if fs::metadata("/proc/self").unwrap().uid() == 0 {
        command.uid(65534).gid(65534);
    }
    let output = command.output().unwrap();
    Outcome {
        status: output.status.code().unwrap_or(-1),
        out: String::from_utf8(output.stdout).unwrap(),
        error: String::from_utf8(output.stderr).unwrap(),
    }
}

#[cfg(target_os = "linux")]
#[test]
fn what_may_not_be_written_is_told_before_the_work() {
    use std::os::unix::fs::PermissionsExt;
    let folder = Folder::new();
    folder.write("x", ab((Dtype::F32, &[2]), None));
    for name in ["closed", "open"] {
        fs::create_dir(folder.path(name)).unwrap();
        folder.write(&format!("{name}/file"), "precious");
        fs::set_permissions(folder.path(&format!("{name}/file")), PermissionsExt::from_mode(0o666)).unwrap();
    }
    fs::set_permissions(folder.path("closed"), PermissionsExt::from_mode(0o555)).unwrap();
    fs::set_permissions(folder.path("open"), PermissionsExt::from_mode(0o777)).unwrap();
    folder.write("open/kept", "precious");
    fs::set_permissions(folder.path("open/kept"), PermissionsExt::from_mode(0o444)).unwrap();
    let denied = "Permission denied (os error 13)";
    for (output, error) in [
        // It is written aside first.
        ("closed/file", format!("its folder closed takes no new file: {denied}; give a name in another one")),
        ("closed/new", format!("its folder closed takes no new file: {denied}; give a name in another one")),
        // A rename would not ask.
        ("open/kept", format!("is there and may not be written: {denied}; give another name")),
    ] {
        let outcome = as_anybody(&folder, &format!("./crossccl reduce-scatter x --output {output}"));
        assert_eq!((outcome.status, outcome.error), (1, format!("crossccl: --output {output}: {error}\n")));
    }
    // What others may write stays theirs, as far as the system lets one give it back.
    let outcome = as_anybody(&folder, "./crossccl reduce-scatter x --output open/file");
    assert_eq!((outcome.status, &*outcome.error), (0, ""));
    assert_eq!(folder.read("open/file"), folder.read("x"));
    assert_eq!(folder.path("open/file").metadata().unwrap().permissions().mode() & 0o777, 0o666);
    fs::set_permissions(folder.path("closed"), PermissionsExt::from_mode(0o755)).unwrap();
}

/// However few threads there may be, it works or says which thread is missing. (Two of the command's own panicked.)
#[cfg(target_os = "linux")]
#[test]
fn limits_of_threads() {
    use std::os::unix::fs::MetadataExt;
    let folder = Folder::new();
    folder.write("x", noise(100));
    let mine = fs::metadata("/proc/self").unwrap().uid();
    let user = if mine == 0 { 65534 } else { mine };
    // The limit counts all threads of a user.
    let threads = || {
        let processes = fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok());
        let own = processes.filter(|entry| entry.metadata().is_ok_and(|facts| facts.uid() == user));
        own.filter_map(|process| Some(fs::read_dir(process.path().join("task")).ok()?.count())).sum::<usize>()
    };
    let mut told = Vec::new();
    for more in 1..=7 {
        let script = format!("ulimit -u {}; exec ./crossccl broadcast --input x --ranks 4", threads() + more);
        let outcome = as_anybody(&folder, &script);
        assert!([0, 1, 2].contains(&outcome.status), "{more}: {} {}", outcome.status, outcome.error);
        assert!(!outcome.error.contains("panicked"), "{}", outcome.error);
        told.push(outcome.error);
    }
    let advice = "raise the limit of processes and threads (`ulimit -u`";
    assert!(told.iter().any(|error| error.contains(advice)), "{told:?}");
    if mine == 0 {
        let own = "crossccl: a thread to read, hash and compare cannot be started: ";
        assert!(told.iter().any(|error| error.starts_with(own)), "{told:?}");
    }
}

/// A process has no memory for such pieces: told by name, before any is taken.
#[cfg(target_os = "linux")]
#[test]
fn pieces_that_do_not_fit() {
    let folder = Folder::new();
    let bytes = 1u64 << 30;
    let header = format!(r#"{{"a":{{"dtype":"U8","shape":[{bytes}],"data_offsets":[0,{bytes}]}}}}"#);
    folder.write("x", raw(&header, 0));
    fs::File::options().write(true).open(folder.path("x")).unwrap().set_len(8 + header.len() as u64 + bytes).unwrap();
    for (arguments, what) in [
        ("broadcast --input x --ranks 8 --piece-bytes 1G", "pieces of 1073741824 bytes for 8 ranks: this takes about "),
        (
            "reduce-scatter x x --output out --piece-bytes 1G",
            "pieces of 1073741824 bytes for 2 ranks: this takes about 5.0 GiB of memory, and the limit of its address \
             space (ulimit -v) leaves ",
        ),
    ] {
        let script = format!("ulimit -v 2000000 && exec \"$0\" {arguments}");
        let output = Command::new("sh")
            .args(["-c", &script, env!("CARGO_BIN_EXE_crossccl")])
            .current_dir(folder.0.path())
            .output()
            .unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), output.stdout.is_empty()), (Some(1), true), "{error}");
        assert!(error.starts_with(&format!("crossccl: {what}")), "{error}");
        assert!(error.contains("; lower --piece-bytes"), "{error}");
    }
    assert_eq!(fs::read_dir(folder.0.path()).unwrap().count(), 1);
}

/// The last bytes leave the program when the file is finished: what goes wrong then is told, too.
#[cfg(unix)]
#[test]
fn an_output_that_finds_no_room_is_a_failure() {
    let folder = Folder::new();
    folder.write("x", ab((Dtype::F32, &[5000]), None));
    folder.write("out", "precious");
    let before = folder.content();
    // A limit to the size of files, which comes as an error since its signal is ignored.
    let script = "trap '' XFSZ; ulimit -f 2; exec \"$0\" reduce-scatter x --output out";
    let output = Command::new("sh")
        .args(["-c", script, env!("CARGO_BIN_EXE_crossccl")])
        .current_dir(folder.0.path())
        .output()
        .unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.starts_with("crossccl: --output out: cannot be written: ") && error.lines().count() == 1, "{error}");
    assert_eq!((output.status.code(), output.stdout.is_empty()), (Some(1), true));
    assert!(before == folder.content(), "the folder changed");
}
