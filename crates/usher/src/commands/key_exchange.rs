//! A private key takes the place of another one.

use std::io;
use std::path::Path;

use usher_daemon::files::{remove_if_there, write_atomically};
use zeroize::Zeroizing;

/// Makes the key with this text the present one, and the present one the former one. Changes nothing if an
/// interrupted run has already done so. At each moment there is a present key.
///
/// # Errors
/// The system's error.
pub fn exchange(key: &Path, former: &Path, text: &[u8]) -> io::Result<()> {
    match std::fs::read(key).map(Zeroizing::new) {
        Ok(present) if present.as_slice() == text => return Ok(()),
        Ok(_) => {
            // A hard link, so that there is a key at each moment.
            remove_if_there(former)?;
            std::fs::hard_link(key, former)?;
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    write_atomically(key, text, 0o600)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exchange_that_is_repeated_keeps_the_former_key() {
        let folder = tempfile::tempdir().expect("a folder");
        let [key, former] = ["key", "former_key"].map(|name| folder.path().join(name));
        let read = |path: &Path| std::fs::read(path).expect("a key");
        std::fs::write(&key, "present").expect("a file");
        std::fs::write(&former, "of an earlier exchange").expect("a file");
        for _ in 0..2 {
            exchange(&key, &former, b"next").expect("an exchange");
            assert_eq!(read(&key), b"next");
            assert_eq!(read(&former), b"present");
        }
    }
}
