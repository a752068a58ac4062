//! The users' private keys: one file a user, readable by the signer only, read for one signature
//! and wiped (`ssh_key` zeroizes private keys when dropped).

use std::path::Path;

use ssh_key::PrivateKey;
use usher_local::paths;
use usher_proto::name::UserName;
use usher_proto::refusal::Refusal;
use zeroize::Zeroizing;

/// Reads the user's key.
///
/// # Errors
/// [`Refusal::NoPrivateKey`] when the user has none that can be used; the log says why.
pub fn load(user: &UserName) -> Result<PrivateKey, Refusal> {
    let path = Path::new(paths::PRIVATE_KEYS_DIRECTORY).join(user.as_ref());
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
