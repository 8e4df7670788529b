//! Indexes of checkpoints in several files (`model.safetensors.index.json`): which file has which tensor.
//!
//! Such a file comes from others. Its names lead to files beside it and to nothing else.

use std::{
    collections::BTreeMap,
    fmt,
    fs::File,
    io::Read,
    marker::PhantomData,
    path::{Component, Path, PathBuf},
};

use serde::{
    Deserialize, Deserializer,
    de::{Error as _, MapAccess, Visitor},
};

use super::{failure, kinds};
use crate::{
    error::CliError,
    whole_file::{folder, kind},
};

/// The longest index that is read: some bytes a tensor.
const MOST: u64 = 100_000_000;

/// An index that was read and whose names were checked.
pub(super) struct Index {
    /// As it stands in the file.
    pub(super) text: Vec<u8>,
    /// By the name of the file that has them, tensors.
    pub(super) files: BTreeMap<String, Vec<String>>,
    folder: PathBuf,
}

#[derive(Deserialize)]
struct Raw {
    weight_map: Option<Pairs<String>>,
}

impl Index {
    /// `None` for what is no index.
    pub(super) fn open(path: &Path) -> Result<Option<Self>, CliError> {
        if !kinds::is_object(&kinds::start(path)) {
            return Ok(None);
        }
        let cannot = |error| failure(path, format!("cannot be read: {error}"));
        let mut text = Vec::new();
        File::open(path).map_err(cannot)?.take(MOST + 1).read_to_end(&mut text).map_err(cannot)?;
        if text.len() as u64 > MOST {
            return Ok(None);
        }
        // Any other JSON is told as what it is, by who needs more.
        let json = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&text);
        let pairs = match serde_json::from_slice::<Raw>(json) {
            Ok(Raw { weight_map: Some(Pairs(pairs)) }) => pairs,
            Ok(Raw { weight_map: None }) => return Ok(None),
            Err(_) if !contains(json, b"\"weight_map\"") => return Ok(None),
            Err(error) => {
                let error = printable(&error);
                return Err(failure(
                    path,
                    format!("is an index that cannot be understood ({error}); download it again"),
                ));
            }
        };
        let mut files: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (tensor, file) in pairs {
            if !is_plain(&file) || path.file_name().is_some_and(|own| own == file.as_str()) {
                let what = format!(
                    "names `{}` as the file of tensor `{}`; expected the name of a file beside the index",
                    file.escape_debug(),
                    tensor.escape_debug()
                );
                return Err(failure(path, what));
            }
            files.entry(file).or_default().push(tensor);
        }
        Ok(Some(Index { text, files, folder: folder(path).into() }))
    }

    /// Says whether a file that the index at `index` names is there, and is a file: nobody waits for a pipe.
    pub(super) fn check_file(&self, index: &Path, name: &str) -> Result<(), CliError> {
        let shown = name.escape_debug();
        match self.beside(name).metadata() {
            Ok(facts) if facts.is_file() => Ok(()),
            Ok(facts) => Err(failure(index, format!("its shard `{shown}` {}", kind(&facts)))),
            Err(error) => {
                let what = format!("its shard `{shown}` cannot be read: {error}; it belongs beside the index");
                Err(failure(index, what))
            }
        }
    }

    /// The files, by name.
    pub(super) fn paths(&self) -> impl Iterator<Item = PathBuf> {
        self.files.keys().map(|name| self.beside(name))
    }

    /// Where a file of the index is. What was given as a name alone stays one.
    pub(super) fn beside(&self, name: &str) -> PathBuf {
        if self.folder == Path::new(".") { name.into() } else { self.folder.join(name) }
    }
}

fn contains(text: &[u8], word: &[u8]) -> bool {
    text.windows(word.len()).any(|part| part == word)
}

/// Whether it is the name of a file in a folder, and no way out of it, on any system.
fn is_plain(name: &str) -> bool {
    let mut parts = Path::new(name).components();
    let one = matches!((parts.next(), parts.next()), (Some(Component::Normal(part)), None) if part == name);
    one && !name.contains(['/', '\\', ':', '\0'])
}

/// What others say of a file may repeat what stands in it, which must not steer the terminal. (Found by fuzzing: an
/// unknown dtype with a tab in its name.)
pub(super) fn printable(text: &impl ToString) -> String {
    let escaped = |c: char| if c.is_control() { c.escape_debug().to_string() } else { c.to_string() };
    text.to_string().chars().map(escaped).collect()
}

/// The entries of a map in their order: a map would silently drop names that come twice.
struct Pairs<V>(Vec<(String, V)>);

impl<'de, V: Deserialize<'de>> Deserialize<'de> for Pairs<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct PairsVisitor<V>(PhantomData<V>);
        impl<'de, V: Deserialize<'de>> Visitor<'de> for PairsVisitor<V> {
            type Value = Pairs<V>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map from tensor names to file names")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pairs<V>, A::Error> {
                let mut names = std::collections::HashSet::new();
                let mut pairs = Vec::new();
                while let Some((name, value)) = map.next_entry::<String, V>()? {
                    if !names.insert(name.clone()) {
                        return Err(A::Error::custom(format_args!("`{}` comes twice", name.escape_debug())));
                    }
                    pairs.push((name, value));
                }
                Ok(Pairs(pairs))
            }
        }
        deserializer.deserialize_map(PairsVisitor(PhantomData))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_lead_elsewhere() {
        for name in ["a", "model-00001-of-00002.safetensors", "..a", "a b"] {
            assert!(is_plain(name), "{name}");
        }
        for name in ["", ".", "..", "/", "/a", "a/", "a/b", "../a", "./a", "a\\b", "C:a", "a\0"] {
            assert!(!is_plain(name), "{name}");
        }
    }
}
