//! Sizes in bytes, as people write them: `4096`, `4K`, `64m`, `1G`.

/// Parses a whole number of bytes with an optional binary suffix K, M or G in either case.
pub(crate) fn parse(text: &str) -> Result<u64, String> {
    let (digits, shift) = match text.as_bytes().last() {
        Some(b'k' | b'K') => (&text[..text.len() - 1], 10),
        Some(b'm' | b'M') => (&text[..text.len() - 1], 20),
        Some(b'g' | b'G') => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    // `u64::from_str` would take a plus sign.
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err(format!("`{text}` is not a size; give whole bytes, like 4096, or with K, M or G, like 64M"));
    }
    let bytes = digits.parse::<u64>().ok().and_then(|n| n.checked_mul(1 << shift));
    bytes.ok_or_else(|| format!("`{text}` is more bytes than 64 bits can count; give a smaller size"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::parse;

    #[test]
    fn suffixes_are_binary_and_of_either_case() {
        assert_eq!(parse("0"), Ok(0));
        assert_eq!(parse("1001"), Ok(1001));
        assert_eq!(parse("1k"), Ok(1024));
        assert_eq!(parse("64M"), Ok(64 << 20));
        assert_eq!(parse("3g"), Ok(3 << 30));
        assert_eq!(parse("18446744073709551615"), Ok(u64::MAX));
    }

    #[test]
    fn nonsense_and_overflow_are_told_apart() {
        for text in ["", "K", "-1", "+1", "1.5M", "1KB", "1KiB", "0x10", " 1", "1 K", "1T", "µ", "1é"] {
            let error = parse(text).unwrap_err();
            assert!(error.contains("is not a size"), "{text}: {error}");
        }
        for text in ["18446744073709551616", "18014398509481984K", "17179869184G", "999999999999999999999G"] {
            let error = parse(text).unwrap_err();
            assert!(error.contains("more bytes than"), "{text}: {error}");
        }
    }

    proptest! {
        #[test]
        fn never_panics(text in ".*") {
            let _ = parse(&text);
        }

        #[test]
        fn every_number_and_suffix(n: u64, (suffix, factor) in prop::sample::select(vec![
            ("", 1u64), ("k", 1 << 10), ("K", 1 << 10), ("m", 1 << 20), ("M", 1 << 20), ("g", 1 << 30), ("G", 1 << 30),
        ])) {
            prop_assert_eq!(parse(&format!("{n}{suffix}")).ok(), n.checked_mul(factor));
        }
    }
}
