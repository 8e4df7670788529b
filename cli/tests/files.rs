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
    f("--input . --ranks 2", 1, ".: cannot be read: Is a directory (os error 21)");
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
fn dtypes_that_cannot_be_reduced() {
    let folder = Folder::new();
    folder.write("first", ab((Dtype::F32, &[1]), None));
    let dtypes = "f32, f64, f16, bf16, i8, u8, i32, u32, i64, u64";
    for dtype in [Dtype::BOOL, Dtype::I16, Dtype::U16, Dtype::F8_E4M3, Dtype::F8_E5M2, Dtype::C64, Dtype::F4] {
        folder.write("other", ab((Dtype::F32, &[1]), Some((dtype, &[2]))));
        let error = format!("other: tensor `b` is of dtype {dtype}, which cannot be reduced; the dtypes are {dtypes}");
        refused(&folder, "other", 1, &error);
        refused(&folder, "first other", 1, &error);
    }
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
    f("x . --output out", 1, ".: is not a regular file; give a safetensors file");
    f("x --output .", 1, ".: exists and is not a regular file; give another --output");
    f("x --output none/out", 1, "none/out: its folder none does not exist; create it first");
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
    use std::os::unix::fs::{MetadataExt, symlink};
    let folder = Folder::new();
    folder.write("x", ab((Dtype::F32, &[2]), None));
    folder.write("target", "old");
    symlink("target", folder.path("link")).unwrap();
    folder.succeeds("reduce-scatter x --output link");
    assert!(folder.path("link").is_symlink());
    assert_eq!(folder.read("target"), folder.read("x"));
    // Not private to its owner, as temporary files are.
    assert_eq!(folder.path("target").metadata().unwrap().mode(), folder.path("x").metadata().unwrap().mode());
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
    assert!(error.starts_with("crossccl: out: cannot be written: ") && error.lines().count() == 1, "{error}");
    assert_eq!((output.status.code(), output.stdout.is_empty()), (Some(1), true));
    assert!(before == folder.content(), "the folder changed");
}
