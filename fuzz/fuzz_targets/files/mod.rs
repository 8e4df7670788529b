//! In the place of the command line's `files`.

#[path = "../../../cli/src/files/checkpoint.rs"]
#[allow(dead_code)]
mod checkpoint;
#[path = "../../../cli/src/files/index.rs"]
#[allow(dead_code)]
mod index;
#[path = "../../../cli/src/files/kinds.rs"]
#[allow(dead_code)]
mod kinds;

use std::{
    fmt, fs,
    path::{Path, PathBuf},
    sync::OnceLock,
};

use checkpoint::Checkpoint;

use crate::error::CliError;

fn failure(path: &Path, what: impl fmt::Display) -> CliError {
    CliError::Failure(format!("{}: {what}", path.display()))
}

/// One for the process: `/dev/shm` where there is one, since that is written for each input.
fn place() -> &'static Path {
    static PLACE: OnceLock<PathBuf> = OnceLock::new();
    PLACE.get_or_init(|| {
        let shared = Path::new("/dev/shm");
        let folder = if shared.is_dir() { shared.into() } else { std::env::temp_dir() };
        folder.join(format!("crossccl-fuzz-{}", std::process::id()))
    })
}

pub(crate) fn open_and_read(bytes: &[u8]) {
    let path = place();
    fs::write(path, bytes).expect("a file");
    match Checkpoint::open(path) {
        Err(CliError::Failure(text)) => {
            assert!(text.starts_with(&format!("{}: ", path.display())), "{text}");
            // It goes to a terminal.
            assert!(!text.contains(|c: char| c.is_control() && c != '\n'), "{text:?}");
        }
        Err(CliError::Usage(text)) => panic!("{text}"),
        Ok(mut file) => {
            let again = Checkpoint::open(path).expect("as before");
            assert!(file.check_layout(&again).is_ok());
            let tensors: Vec<_> = file.tensors.iter().map(|t| (t.name.clone(), t.bytes())).collect();
            let mut data = Vec::new();
            for (name, size) in tensors {
                let mut tensor = vec![0; usize::try_from(size).expect("as long as the file")];
                assert!(file.read(&name, 0, &mut tensor).is_ok());
                data.extend(tensor);
            }
            assert!(bytes.ends_with(&data));
        }
    }
}
