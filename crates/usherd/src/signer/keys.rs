//! The users' private keys: one file a user, readable by the signer only, read for one signature
//! and wiped (`ssh_key` zeroizes private keys when dropped).

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use ssh_key::PrivateKey;
use usher_local::keys::private_key_name;
use usher_local::paths;
use usher_policy::Name;
use usher_proto::name::UserName;
use usher_proto::refusal::Refusal;
use zeroize::Zeroizing;

/// Which file a user's key was in: another one when the key has been replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    inode: u64,
    changed: (i64, i64),
}

/// The stamp of the user's key for `purpose` as it is now; nothing when the user has none.
pub fn stamp(user: &UserName, purpose: Option<&Name>) -> Option<Stamp> {
    let file = std::fs::metadata(path(user, purpose)).ok()?;
    Some(Stamp {
        inode: file.ino(),
        changed: (file.ctime(), file.ctime_nsec()),
    })
}

fn path(user: &UserName, purpose: Option<&Name>) -> PathBuf {
    Path::new(paths::PRIVATE_KEYS_DIRECTORY).join(private_key_name(user, purpose))
}

/// Reads the user's key for `purpose`.
///
/// # Errors
/// [`Refusal::NoPrivateKey`] when the user has none that can be used; the log says why.
pub fn load(user: &UserName, purpose: Option<&Name>) -> Result<PrivateKey, Refusal> {
    let path = path(user, purpose);
    let text = Zeroizing::new(std::fs::read(&path).map_err(|error| {
        tracing::info!(%user, path = %path.display(), %error, "no private key");
        Refusal::NoPrivateKey
    })?);
    match PrivateKey::from_openssh(text.as_slice()) {
        Ok(key) if !key.is_encrypted() => Ok(key),
        Ok(_) => {
            tracing::warn!(%user, "the private key is encrypted; it cannot be used unattended");
            Err(Refusal::NoPrivateKey)
        }
        Err(error) => {
            tracing::warn!(%user, %error, "the private key is damaged");
            Err(Refusal::NoPrivateKey)
        }
    }
}
