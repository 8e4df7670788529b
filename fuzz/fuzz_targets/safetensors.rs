//! Files that the command line is given as checkpoints: refused with a sentence that names the file, or every tensor of
//! theirs can be read and together they are the data.
#![no_main]

// As in the command line's own tree, of which this is a part.
#[path = "../../cli/src/error.rs"]
#[allow(dead_code)]
mod error;
mod files;
#[path = "../../cli/src/whole_file.rs"]
#[allow(dead_code)]
mod whole_file;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| files::open_and_read(bytes));
