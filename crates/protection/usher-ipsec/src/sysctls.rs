//! The sysctls that protection needs, and their former values.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::error::IpsecError;

/// Name and value. Each is of the caller's network namespace.
const WANTED: [(&str, &str); 5] = [
    // A listener's answers, and the accepted socket, take the mark of the SYN.
    ("net/ipv4/tcp_fwmark_accept", "1"),
    // Resets and ICMP answers take the mark of the packet.
    ("net/ipv4/fwmark_reflect", "1"),
    ("net/ipv6/fwmark_reflect", "1"),
    // A reset does not end TIME_WAIT: socket hooks do not see what arrives there.
    ("net/ipv4/tcp_rfc1337", "1"),
    // A packet that waits for an SA is kept.
    ("net/core/xfrm_larval_drop", "0"),
];

/// Sysctls that have been set, and the file that has their former values.
#[derive(Debug)]
pub struct Sysctls {
    root: PathBuf,
    record: PathBuf,
}

impl Sysctls {
    /// Sets the sysctls. Their former values go into the file `record` first, unless an earlier process left
    /// it: then the values in it are the former ones.
    ///
    /// # Errors
    /// [`IpsecError::Sysctl`] names the file. Some are set then.
    pub fn set(record: &Path) -> Result<Self, IpsecError> {
        let sysctls = Self::of(record);
        sysctls.note()?;
        sysctls.write(&WANTED.map(|(name, value)| (name.to_owned(), value.to_owned())))?;
        Ok(sysctls)
    }

    /// The sysctls that an earlier process has set and not restored, as the file `record` says; none if there
    /// are none.
    ///
    /// # Errors
    /// [`IpsecError::Sysctl`].
    pub fn left(record: &Path) -> Result<Option<Self>, IpsecError> {
        let is_left = fs::exists(record).map_err(failed(record))?;
        Ok(is_left.then(|| Self::of(record)))
    }

    fn of(record: &Path) -> Self {
        Self {
            root: "/proc/sys".into(),
            record: record.into(),
        }
    }

    fn note(&self) -> Result<(), IpsecError> {
        if fs::exists(&self.record).map_err(failed(&self.record))? {
            return Ok(());
        }
        let mut text = String::new();
        for (name, _) in WANTED {
            let path = self.root.join(name);
            let value = fs::read_to_string(&path).map_err(failed(&path))?;
            text.push_str(&format!("{name} {}\n", value.trim()));
        }
        // Complete or absent.
        let fresh = self.record.with_extension("new");
        fs::write(&fresh, text).map_err(failed(&fresh))?;
        fs::rename(&fresh, &self.record).map_err(failed(&self.record))
    }

    fn write(&self, values: &[(String, String)]) -> Result<(), IpsecError> {
        for (name, value) in values {
            let path = self.root.join(name);
            fs::write(&path, value).map_err(failed(&path))?;
        }
        Ok(())
    }

    /// The sysctls that have another value now: somebody else has set them.
    ///
    /// # Errors
    /// [`IpsecError::Sysctl`].
    pub fn changed(&self) -> Result<Vec<&'static str>, IpsecError> {
        let mut changed = Vec::new();
        for (name, wanted) in WANTED {
            let path = self.root.join(name);
            if fs::read_to_string(&path).map_err(failed(&path))?.trim() != wanted {
                changed.push(name);
            }
        }
        Ok(changed)
    }

    /// Gives all sysctls their former values.
    ///
    /// # Errors
    /// [`IpsecError::Sysctl`]; the file stays then.
    pub fn restore(self) -> Result<(), IpsecError> {
        let text = fs::read_to_string(&self.record).map_err(failed(&self.record))?;
        let known = |name: &str| WANTED.iter().any(|(wanted, _)| *wanted == name);
        let values = text.lines().filter_map(|line| line.split_once(' '));
        let values = values.filter(|(name, _)| known(name));
        let values: Vec<_> = values
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        self.write(&values)?;
        fs::remove_file(&self.record).map_err(failed(&self.record))
    }
}

fn failed(path: &Path) -> impl Fn(io::Error) -> IpsecError {
    move |error| IpsecError::Sysctl {
        path: path.into(),
        error,
    }
}
