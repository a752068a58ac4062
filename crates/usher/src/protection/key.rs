//! `usher protection new-key` and `use-key`: this host's IKE key is replaced while protection is in force.

use std::io;
use std::path::Path;

use usher_daemon::control::{ControlError, ask_daemon};
use usher_daemon::files::remove_if_there;
use usher_local::paths;
use usher_local::requests::Reload;
use usher_local::roles;
use usher_policy::Host;
use usher_policy::protection::IkePublicKey;
use zeroize::Zeroizing;

use crate::commands::configuration;
use crate::commands::init::{make_key, without_comment, write_public_key};
use crate::commands::key_exchange::exchange;
use crate::failure::{At, Failure};
use crate::output::{Output, tell};

/// Makes the key that is to take the present one's place, if there is none, and prints the statement that
/// this host's block needs meanwhile. Nothing uses the key yet.
///
/// # Errors
/// When there is no present key, or a file cannot be written.
pub fn make_next(output: &Output) -> Result<(), Failure> {
    let _lock = configuration::lock()?;
    let present = write_public_key(Path::new(paths::IKE_KEY), Path::new(paths::IKE_PUBLIC_KEY))?;
    let comment = present.splitn(3, ' ').nth(2).unwrap_or_default();
    let next = Path::new(paths::NEXT_IKE_KEY);
    make_key(next, comment.to_owned())?;
    let line = write_public_key(next, Path::new(paths::NEXT_IKE_PUBLIC_KEY))?;
    let (present, next) = (without_comment(&present), without_comment(&line));
    if present == next {
        return Err(Failure::refused(
            "`usher protection use-key` was interrupted: run it again, and then make the next key",
        ));
    }
    let ecdsa = ecdsa_key(Path::new(paths::ECDSA_IKE_PUBLIC_KEY))?;
    let ecdsa = ecdsa.map_or_else(String::new, |key| format!(", \"{key}\""));
    let statement = format!("ike-key \"{present}\", \"{next}\"{ecdsa};");
    // JSON of `usher protection new-key`:
    //   key: The present key.
    //   next_key: The next one.
    //   statement: The statement `ike-key` with both, and with the ECDSA key if the host has one.
    let value = serde_json::json!({ "key": present, "next_key": next, "statement": statement });
    output.print(&value, || {
        format!(
            "This host has its next IKE key, which nothing uses yet. Write this statement into this host's \
             `host` block, here and on its peers:\n\n{statement}\n\nPut the policies in force (usher \
             policy apply), then run `usher protection use-key` here.\n"
        )
    });
    Ok(())
}

/// This host's ECDSA key, which stays in its block: a peer without Ed25519 knows only this key.
fn ecdsa_key(public: &Path) -> Result<Option<IkePublicKey>, Failure> {
    let line = match std::fs::read_to_string(public) {
        Ok(line) => line,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Failure::of_file(public, error)),
    };
    let key = line.parse::<IkePublicKey>();
    key.map(Some)
        .map_err(|error| Failure::of_file(public, error))
}

/// Puts the next key in the present one's place. SAs that were negotiated by the present key stay until
/// others have come. The next key stays where it is until the end, so that an interrupted run can be
/// repeated.
///
/// # Errors
/// When there is no next key, the policy in force does not have it for this host, or the protector refuses
/// it: then the present one stays.
pub fn use_next(output: &Output) -> Result<(), Failure> {
    let _lock = configuration::lock()?;
    let [key, next, former] =
        [paths::IKE_KEY, paths::NEXT_IKE_KEY, paths::FORMER_IKE_KEY].map(Path::new);
    if !next.exists() {
        return Err(Failure::refused(
            "there is no next IKE key; `usher protection new-key` makes one",
        ));
    }
    let line = write_public_key(next, Path::new(paths::NEXT_IKE_PUBLIC_KEY))?;
    let chosen: IkePublicKey = line
        .parse()
        .map_err(|error| Failure::of_file(next, error))?;
    require_statement(&chosen, &line)?;
    let text = Zeroizing::new(std::fs::read(next).at(next)?);
    exchange(key, former, &text).at(key)?;
    match ask_daemon(roles::Protector, &Reload {}) {
        Ok(_) | Err(ControlError::NotRunning { .. }) => {}
        Err(error) => {
            take_back(key, former);
            return Err(error.into());
        }
    }
    write_public_key(key, Path::new(paths::IKE_PUBLIC_KEY))?;
    for done in [former, Path::new(paths::NEXT_IKE_PUBLIC_KEY), next] {
        remove_if_there(done).at(done)?;
    }
    let key = without_comment(&line);
    // JSON of `usher protection use-key`:
    //   key: The key that is now the present one.
    output.print(&serde_json::json!({ "key": key }), || {
        format!(
            "This host uses its new IKE key:\n\n{key}\n\nSAs of the former key stay until others have come \
             (usher protection peers). Then take the former key out of this host's `host` block, on its \
             peers and here.\n"
        )
    });
    Ok(())
}

/// Checks that the policy in force has the key for this host, so that the protector takes it. A policy
/// that does not know this host protects nothing.
fn require_statement(key: &IkePublicKey, line: &str) -> Result<(), Failure> {
    let checked = configuration::check_applied(&configuration::in_force()?)?;
    let own = checked.policy.host_by_key(&configuration::host_key()?);
    let lacks = |host: &&Host| !host.ike_keys.contains(key);
    match own.filter(lacks) {
        None => Ok(()),
        Some(host) => Err(Failure::Refused(format!(
            "the policy in force does not have the next key in the block of {}: add \"{}\" to its \
             `ike-key`, beside the present key, here and on the peers, put the policies in force \
             (usher policy apply), and run this again",
            host.name,
            without_comment(line)
        ))),
    }
}

/// Makes the former key the present one again, and has the protector read it.
fn take_back(key: &Path, former: &Path) {
    if let Err(error) = std::fs::rename(former, key) {
        let former = former.display();
        tell(&format!(
            "usher: {former} cannot be put back as the IKE key: {error}\n"
        ));
        return;
    }
    // The protector has refused the other key, or hangs. Even if this request fails, the protector finds the
    // right files when it starts again.
    if let Err(error) = ask_daemon(roles::Protector, &Reload {}) {
        tell(&format!("usher: the former IKE key is back, but {error}\n"));
    }
}
