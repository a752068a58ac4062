//! The layout of a log's directory: C2SP tlog-tiles.

use std::path::{Path, PathBuf};

/// Paths of one log.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    directory: PathBuf,
}

impl Layout {
    pub(crate) fn new(directory: &Path) -> Self {
        Self {
            directory: directory.to_owned(),
        }
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    pub(crate) fn checkpoint(&self) -> PathBuf {
        self.directory.join("checkpoint")
    }

    pub(crate) fn verifier_key(&self) -> PathBuf {
        self.directory.join("verifier-key")
    }

    pub(crate) fn lock(&self) -> PathBuf {
        self.directory.join("lock")
    }

    pub(crate) fn tiles(&self) -> PathBuf {
        self.directory.join("tile")
    }

    /// The entry bundle with the records from 256 × `number` on.
    pub(crate) fn bundle(&self, number: u64) -> PathBuf {
        self.tiles().join("entries").join(path_of(number))
    }

    /// The hash tile `number` of a level.
    pub(crate) fn tile(&self, level: u32, number: u64) -> PathBuf {
        self.tiles().join(level.to_string()).join(path_of(number))
    }
}

/// A number as path elements of three digits, with an `x` before all but the last.
fn path_of(number: u64) -> PathBuf {
    let mut elements = vec![format!("{:03}", number % 1000)];
    let mut rest = number / 1000;
    while rest > 0 {
        elements.push(format!("x{:03}", rest % 1000));
        rest /= 1000;
    }
    elements.iter().rev().collect()
}

#[cfg(test)]
mod tests {
    use super::path_of;
    use std::path::Path;

    #[test]
    fn numbers_are_paths_as_the_specification_has_them() {
        assert_eq!(path_of(0), Path::new("000"));
        assert_eq!(path_of(999), Path::new("999"));
        assert_eq!(path_of(1000), Path::new("x001/000"));
        assert_eq!(path_of(1_234_067), Path::new("x001/x234/067"));
    }
}
