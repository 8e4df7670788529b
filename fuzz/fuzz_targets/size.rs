//! Sizes as people write them: every text is a number of bytes or an error that says what is wrong with it.
#![no_main]

#[path = "../../cli/src/size.rs"]
mod size;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    match size::parse(text) {
        // What is told can be said again.
        Ok(bytes) => assert_eq!(size::parse(&bytes.to_string()), Ok(bytes)),
        Err(error) => assert!(error.starts_with(&format!("`{text}` is ")), "{error}"),
    }
});
