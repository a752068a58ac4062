//! `usher host new-key`, `use-key` and `forget-key`: this host's key is replaced while sessions go on.

use std::io::ErrorKind;
use std::path::Path;

use usher_daemon::control::{ControlError, Status, ask_daemon};
use usher_daemon::files::remove_if_there;
use usher_local::paths;
use usher_local::roles;
use usher_proto::host_key::HostPublicKey;
use zeroize::Zeroizing;

use super::configuration;
use super::init::{make_key, public_line, without_comment, write_public_key};
use super::key_exchange::exchange;
use crate::failure::{At, Failure};
use crate::output::Output;

/// Makes the key that is to take the present one's place, if there is none, and prints the statement that
/// this host's blocks need meanwhile. Nothing uses the key yet.
///
/// # Errors
/// When there is no present key, or a file cannot be written.
pub fn make_next(output: &Output) -> Result<(), Failure> {
    let _lock = configuration::lock()?;
    let present = write_public_key(
        Path::new(paths::HOST_KEY),
        Path::new(paths::HOST_PUBLIC_KEY),
    )?;
    let comment = present.splitn(3, ' ').nth(2).unwrap_or_default();
    let next = Path::new(paths::NEXT_HOST_KEY);
    let is_new = !next.exists();
    make_key(next, comment.to_owned())?;
    let line = write_public_key(next, Path::new(paths::NEXT_HOST_PUBLIC_KEY))?;
    let (present, next) = (without_comment(&present), without_comment(&line));
    if present == next {
        return Err(Failure::refused(
            "`usher host use-key` was interrupted: run it again, and then make the next key",
        ));
    }
    let statement = format!("key \"{present}\", \"{next}\";");
    // JSON of `usher host new-key`:
    //   key: The present key.
    //   next_key: The next one.
    //   made_now: False if the next key was there already.
    //   statement: The statement `key` with both.
    let value = serde_json::json!({
        "key": present, "next_key": next, "made_now": is_new, "statement": statement,
    });
    output.print(&value, || {
        let age = if is_new {
            ""
        } else {
            " It was made earlier: if the files of this host have been stolen since, remove \
             /etc/usher/next_host_key first."
        };
        format!(
            "This host has its next key, which nothing uses yet.{age} Write this statement into this host's \
             `host` block, here and on every host that has one:\n\n{statement}\n\nPut the policies in force \
             (usher policy apply), then run `usher host use-key` here.\n"
        )
    });
    Ok(())
}

/// Puts the next key in the present one's place, for the daemons' next start. The present key becomes the
/// former one, and is kept. The next key stays where it is until the end, so that an interrupted run can be
/// repeated.
///
/// # Errors
/// When there is no next key, or the policy in force does not have it for this host: then nothing changes.
pub fn use_next(output: &Output) -> Result<(), Failure> {
    let _lock = configuration::lock()?;
    let [key, next, former] = [
        paths::HOST_KEY,
        paths::NEXT_HOST_KEY,
        paths::FORMER_HOST_KEY,
    ]
    .map(Path::new);
    if !next.exists() {
        return Err(Failure::refused(
            "there is no next host key; `usher host new-key` makes one",
        ));
    }
    let line = write_public_key(next, Path::new(paths::NEXT_HOST_PUBLIC_KEY))?;
    require_statement(&line)?;
    let text = Zeroizing::new(std::fs::read(next).at(next)?);
    exchange(key, former, &text).at(key)?;
    if former.exists() {
        write_public_key(former, Path::new(paths::FORMER_HOST_PUBLIC_KEY))?;
    }
    write_public_key(key, Path::new(paths::HOST_PUBLIC_KEY))?;
    for done in [Path::new(paths::NEXT_HOST_PUBLIC_KEY), next] {
        remove_if_there(done).at(done)?;
    }
    let (key, units) = (without_comment(&line), units_to_restart());
    // JSON of `usher host use-key`:
    //   key: The key that is now the present one.
    //   restart: List of texts: the units that use the former key until they are restarted.
    let value = serde_json::json!({ "key": key, "restart": units });
    output.print(&value, || {
        let restart = match &units[..] {
            [] => "No daemon runs that uses a host key.".to_owned(),
            units => format!(
                "The daemons use the former one until they are restarted, all at once:\n\n\
                 systemctl restart {}",
                units.join(" ")
            ),
        };
        format!(
            "This host's key is now\n\n{key}\n\n{restart}\n\nThen take the former key out of this host's \
             `host` block on every host, put that in force, and run `usher host forget-key` here.\n"
        )
    });
    Ok(())
}

/// Deletes the former key.
///
/// # Errors
/// When there is none, or a file cannot be removed; while the policy in force here has it.
pub fn forget_former(output: &Output) -> Result<(), Failure> {
    let _lock = configuration::lock()?;
    let former = Path::new(paths::FORMER_HOST_KEY);
    let public = Path::new(paths::FORMER_HOST_PUBLIC_KEY);
    if !former.exists() {
        remove_if_there(public).at(public)?;
        return Err(Failure::refused("there is no former host key"));
    }
    let line = write_public_key(former, public)?;
    let key =
        HostPublicKey::from_openssh(&line).map_err(|error| Failure::of_file(former, error))?;
    let checked = configuration::check_applied(&configuration::in_force()?)?;
    if let Some(host) = checked.policy.host_by_key(&key) {
        return Err(Failure::Refused(format!(
            "the policy in force still has the former key in the block of {}: take \"{}\" out of its `key`, \
             here and on other hosts, put the policies in force (usher policy apply), and run this again",
            host.name,
            key.to_openssh()
        )));
    }
    for done in [former, public] {
        remove_if_there(done).at(done)?;
    }
    // JSON of `usher host forget-key`:
    //   key: The key that was deleted.
    output.print(&serde_json::json!({ "key": key }), || {
        format!("The former host key is deleted: {}\n", key.to_openssh())
    });
    Ok(())
}

/// Whether the public host key is that of the private one. A private key that the caller may not read counts
/// as the right one.
///
/// # Errors
/// When a file cannot be read, or is no such key.
pub fn is_of_private_key() -> Result<bool, Failure> {
    let path = Path::new(paths::HOST_KEY);
    let line = match public_line(path) {
        Err(Failure::File { error, .. }) if error.kind() == ErrorKind::PermissionDenied => {
            return Ok(true);
        }
        line => line?,
    };
    let key = HostPublicKey::from_openssh(&line).map_err(|error| Failure::of_file(path, error))?;
    Ok(configuration::host_key()? == key)
}

/// Checks that the policy in force has the key for this host. Otherwise other hosts would refuse this host,
/// and its daemons would not find their block.
fn require_statement(line: &str) -> Result<(), Failure> {
    let next = Path::new(paths::NEXT_HOST_KEY);
    let key = HostPublicKey::from_openssh(line).map_err(|error| Failure::of_file(next, error))?;
    let checked = configuration::check_applied(&configuration::in_force()?)?;
    let own = checked.policy.host_by_key(&configuration::host_key()?);
    let named = checked.policy.host_by_key(&key);
    let statement = key.to_openssh();
    match (own, named) {
        (Some(own), Some(named)) if own.name == named.name => Ok(()),
        // The policy has replaced the present key by the next one in one step.
        (None, Some(_)) => Ok(()),
        (Some(own), Some(named)) => Err(Failure::Refused(format!(
            "the policy in force has the next key in the block of {}, and this host is {}: correct that, \
             and run this again",
            named.name, own.name
        ))),
        (Some(own), None) => Err(Failure::Refused(format!(
            "the policy in force does not have the next key in the block of {}: add \"{statement}\" to its \
             `key`, beside the present key, here and on the other hosts, put the policies in force (usher \
             policy apply), and run this again",
            own.name
        ))),
        (None, None) => Err(Failure::Refused(format!(
            "the policy in force has no `host` block with this host's key, present or next: write one with \
             `key \"{statement}\";`, here and on the other hosts, put the policies in force (usher policy \
             apply), and run this again"
        ))),
    }
}

/// The units of the daemons that run and have read the host key.
fn units_to_restart() -> Vec<String> {
    let is_there = |error: &ControlError| !matches!(error, ControlError::NotRunning { .. });
    let mut units = Vec::new();
    let mut note = |name: &str, failed: Option<ControlError>| {
        if failed.as_ref().is_none_or(is_there) {
            units.push(format!("usher-{name}"));
        }
    };
    // In the order in which they start.
    note("keeper", ask_daemon(roles::Keeper, &Status {}).err());
    note("verifier", ask_daemon(roles::Verifier, &Status {}).err());
    note("signer", ask_daemon(roles::Signer, &Status {}).err());
    note("courier", ask_daemon(roles::Courier, &Status {}).err());
    note("protector", ask_daemon(roles::Protector, &Status {}).err());
    units
}
