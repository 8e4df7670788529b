//! Misuse that does not compile. Each file of `ui/` is built twice: as it stands it must fail with exactly the error
//! codes that its lines end in (`//~ E0505`), and without those lines it must compile, so that it fails for nothing
//! else.
//!
//! Codes and lines rather than the compiler's text, which changes with every version; and rather than `compile_fail`
//! documentation tests, whose codes are looked at by a nightly compiler alone.
#![cfg(feature = "cpu")]
#![allow(missing_docs)]

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// (program, line, error code)
type Errors = BTreeSet<(String, usize, String)>;

const MARK: &str = "//~ ";

/// A package whose programs are the files of `ui/`, in both forms.
fn package() -> (PathBuf, Errors) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let to = Path::new(env!("CARGO_TARGET_TMPDIR")).join("misuse");
    let bins = to.join("src/bin");
    let _ = fs::remove_dir_all(&bins);
    fs::create_dir_all(&bins).unwrap();
    let manifest = format!(
        "[package]\nname = \"misuse\"\nedition = \"2024\"\n[workspace]\n[dependencies]\ncrossccl = {{ path = {root:?} }}\n"
    );
    fs::write(to.join("Cargo.toml"), manifest).unwrap();
    // The versions that the crate itself is tested with, and no look at a registry.
    let _ = fs::copy(root.join("Cargo.lock"), to.join("Cargo.lock"));
    let mut expected = Errors::new();
    for entry in fs::read_dir(root.join("tests/ui")).unwrap() {
        let file = entry.unwrap().path();
        let (name, text) = (file.file_stem().unwrap().to_str().unwrap().to_owned(), fs::read_to_string(&file).unwrap());
        let marks = text.lines().zip(1..).filter_map(|(line, number)| Some((number, line.split_once(MARK)?.1)));
        expected.extend(marks.map(|(number, code)| (name.clone(), number, code.trim().to_owned())));
        let without: String =
            text.lines().map(|l| if l.contains(MARK) { "\n".into() } else { format!("{l}\n") }).collect();
        assert!(without != text, "{name} marks no line");
        fs::write(bins.join(format!("{name}.rs")), &text).unwrap();
        fs::write(bins.join(format!("{name}_without.rs")), without).unwrap();
    }
    (to, expected)
}

/// The errors in `--message-format short`: `src/bin/name.rs:8:10: error[E0505]: ...`.
fn errors(output: &str) -> Errors {
    output
        .lines()
        .filter_map(|line| {
            let (place, error) = line.split_once(": error")?;
            let mut place = place.strip_prefix("src/bin/")?.split(':');
            let (name, number) = (place.next()?.strip_suffix(".rs")?, place.next()?.parse().ok()?);
            let code = error.strip_prefix('[').and_then(|e| e.split_once(']')).map_or("no code", |(code, _)| code);
            Some((name.to_owned(), number, code.to_owned()))
        })
        .collect()
}

#[test]
fn misuse_does_not_compile() {
    let (package, expected) = package();
    assert!(!expected.is_empty());
    let output = Command::new(env!("CARGO"))
        .args(["check", "--bins", "--keep-going", "--offline", "--message-format", "short", "--color", "never"])
        .current_dir(&package)
        .env("CARGO_TARGET_DIR", package.join("target"))
        // Nothing is run: no kernels, and no warnings that a caller's flags turn into errors.
        .env("CROSSCCL_KERNELS", "off")
        .env_remove("RUSTFLAGS")
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    let found = errors(&text);
    let show = |errors: Vec<&(String, usize, String)>| format!("{errors:#?}");
    assert!(
        found == expected,
        "compiled, or failed elsewhere: {}\nnot expected: {}\n{text}",
        show(expected.difference(&found).collect()),
        show(found.difference(&expected).collect())
    );
}
