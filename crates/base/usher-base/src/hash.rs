//! SHA-256 for code that hashes often. The profile for development optimizes this crate, because unoptimized
//! hashing is too slow.

use sha2::{Digest, Sha256};

/// The hash of these parts, concatenated.
#[must_use]
pub fn sha256(parts: &[&[u8]]) -> [u8; 32] {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(part);
    }
    hash.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::sha256;

    #[test]
    fn parts_are_hashed_as_a_whole() {
        // FIPS 180-4, the example of "abc".
        let expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        for parts in [&[&b"abc"[..]][..], &[b"", b"ab", b"c"]] {
            let hash = sha256(parts);
            let shown: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(shown, expected);
        }
    }
}
