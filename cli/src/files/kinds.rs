//! What a file is that is not what it was taken for, by its first bytes. Only asked when it is no safetensors file: the
//! length in front of one can be any bytes.

use std::{fs::File, io::Read, path::Path};

/// As many bytes as are looked at.
const START: u64 = 512;

/// The first bytes of a file; none of one that cannot be read.
pub(super) fn start(path: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    // Opening what is no regular file may wait for others.
    if path.metadata().is_ok_and(|facts| facts.is_file())
        && let Ok(file) = File::open(path)
    {
        let _ = file.take(START).read_to_end(&mut bytes);
    }
    bytes
}

/// Whether it can be JSON of an object.
pub(super) fn is_object(start: &[u8]) -> bool {
    let text = start.strip_prefix(b"\xef\xbb\xbf").unwrap_or(start);
    let text = text.trim_ascii_start();
    // A length of a safetensors file may begin with the same byte; zeros follow it.
    text.first() == Some(&b'{') && !text.iter().take(8).any(|b| b.is_ascii_control() && !b.is_ascii_whitespace())
}

pub(super) fn is_lfs_pointer(start: &[u8]) -> bool {
    [&b"version https://git-lfs.github.com/spec/"[..], b"version https://hawser.github.com/spec/"]
        .iter()
        .any(|first| start.starts_with(first))
}

/// What it is and what to do about it, as the end of a sentence that begins with its name.
pub(super) fn guess(start: &[u8]) -> Option<&'static str> {
    const CONVERT: [(&[u8], &str); 7] = [
        (b"PK\x03\x04", "is a zip archive, such as torch.save writes (.pt, .pth, .bin); convert it to safetensors"),
        (b"PK\x05\x06", "is an empty zip archive; give a safetensors file"),
        (b"\x1f\x8b", "is compressed by gzip; give the file that is in it"),
        (b"\x28\xb5\x2f\xfd", "is compressed by zstd; give the file that is in it"),
        (b"GGUF", "is a GGUF file; give a safetensors file"),
        (b"\x89HDF\r\n\x1a\n", "is an HDF5 file; convert it to safetensors"),
        (b"\x93NUMPY", "is a NumPy array (.npy); convert it to safetensors"),
    ];
    if is_lfs_pointer(start) {
        return Some("is a Git LFS pointer, not the file that it stands for; run `git lfs pull` where it was cloned");
    }
    if let Some((_, what)) = CONVERT.iter().find(|(first, _)| start.starts_with(first)) {
        return Some(what);
    }
    if let [0x80, 2..=5, rest @ ..] = start
        && rest.iter().take(6).any(|byte| *byte != 0)
    {
        return Some("is a Python pickle, such as old torch.save wrote; convert it to safetensors");
    }
    let text = start.strip_prefix(b"\xef\xbb\xbf").unwrap_or(start).trim_ascii_start();
    let begins = |with: &[u8]| text.get(..with.len()).is_some_and(|first| first.eq_ignore_ascii_case(with));
    if begins(b"<!doctype html") || begins(b"<html") || begins(b"<head") {
        return Some("is an HTML page, perhaps an error told in place of the file; download it again");
    }
    if begins(b"<?xml") {
        return Some("is an XML document, perhaps an error told in place of the file; download it again");
    }
    is_object(start).then_some("is a JSON file; give a safetensors file, or an index of such files (with a weight_map)")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_people_point_at() {
        for (start, word) in [
            (&b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n"[..], "Git LFS"),
            (b"PK\x03\x04\0\0\x08\x08", "torch.save"),
            (b"PK\x05\x06\0\0\0\0", "empty zip"),
            (b"\x80\x02\x8a\nl\xfc\x9cF\xf9", "pickle"),
            (b"\n <!DOCTYPE html><html>", "HTML"),
            (b"<HTML lang=en>", "HTML"),
            (b"<?xml version=\"1.0\"?><Error>", "XML"),
            (b"GGUF\x03\0\0\0", "GGUF"),
            (b"\xef\xbb\xbf{\"a\": 1}", "JSON"),
            (b"{\n", "JSON"),
        ] {
            assert!(guess(start).is_some_and(|what| what.contains(word)), "{word}: {:?}", guess(start));
        }
    }

    /// Lengths in front of headers of safetensors files that have been cut, and nothing at all.
    #[test]
    fn what_nothing_is_known_of() {
        for start in [&b""[..], b"{\0\0\0\0\0\0\0", b"\x80\x02\0\0\0\0\0\0{", b"\x1f", b"<", b"P", b"text"] {
            assert_eq!(guess(start), None, "{start:?}");
        }
    }
}
