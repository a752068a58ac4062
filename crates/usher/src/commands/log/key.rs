//! `usher log new-key` and `forget-key`: the log's key is changed while the log continues.

use std::fs::File;
use std::path::Path;

use usher_daemon::files::remove_if_there;
use usher_local::paths;
use usher_log::{Reader, SigningKey, VerifyingKey};
use usher_proto::ssh_key::PrivateKey;
use zeroize::Zeroizing;

use crate::commands::configuration;
use crate::commands::init::{make_recorders_key, write_public_key};
use crate::failure::{At, Failure};
use crate::output::Output;

/// Makes the key that is to take the place of the log's present one, if there is none. The recorder changes
/// the key when it is started the next time.
///
/// # Errors
/// When there is no log or no present key, or a file cannot be written.
pub fn make_next(output: &Output) -> Result<(), Failure> {
    let _lock = configuration::lock()?;
    let [key, next] = [paths::LOG_KEY, paths::NEXT_LOG_KEY].map(Path::new);
    let used = Reader::open(Path::new(paths::LOG_DIRECTORY))?.verifying_key()?;
    let present = verifying_key(key)?;
    let is_new = !next.exists();
    let there = if is_new {
        None
    } else {
        Some(verifying_key(next)?)
    };
    if used != present && there.as_ref() != Some(&used) {
        return Err(Failure::Refused(format!(
            "{} belongs to {used}, and {} is {present}: bring the log's own key back first",
            paths::LOG_DIRECTORY,
            paths::LOG_KEY
        )));
    }
    if let Some(there) = &there
        && there.origin() != present.origin()
    {
        return Err(Failure::Refused(format!(
            "the key in {} is of {}, and the log is {}: remove it, and run this again",
            paths::NEXT_LOG_KEY,
            there.origin(),
            present.origin()
        )));
    }
    make_recorders_key(next, present.origin().to_owned())?;
    write_public_key(next, Path::new(paths::NEXT_LOG_PUBLIC_KEY))?;
    let next = verifying_key(next)?;
    let in_use = used == next;
    let (used, next) = (used.to_string(), next.to_string());
    // JSON of `usher log new-key`:
    //   key: The log's present public key, as the file `verifier-key` has it.
    //   next_key: The next one.
    //   made_now: False if the next key was there already.
    //   in_use: True if the log has the next key already.
    let value = serde_json::json!({
        "key": used, "next_key": next, "made_now": is_new, "in_use": in_use,
    });
    output.print(&value, || {
        let todo = if in_use {
            "The log has it already."
        } else {
            "The recorder changes the log's key when it is started again; sessions go on:\n\n\
             systemctl restart usher-recorder"
        };
        format!(
            "The log's next key is\n\n{next}\n\n{todo}\n\nThen run `usher log forget-key`, which deletes the \
             former private key.\n"
        )
    });
    Ok(())
}

/// Puts the next key in the place of the former one, which is deleted. A run that was interrupted can be
/// repeated.
///
/// # Errors
/// When there is no next key, or the log has another key: then nothing changes.
pub fn finish_change(output: &Output) -> Result<(), Failure> {
    let _lock = configuration::lock()?;
    let [key, next] = [paths::LOG_KEY, paths::NEXT_LOG_KEY].map(Path::new);
    let public = Path::new(paths::NEXT_LOG_PUBLIC_KEY);
    // The public key without the private one: an earlier run was interrupted in between.
    if !next.exists() && !public.exists() {
        return Err(Failure::refused(
            "there is no next key of the log; `usher log new-key` makes one",
        ));
    }
    let used = Reader::open(Path::new(paths::LOG_DIRECTORY))?.verifying_key()?;
    let taken = if next.exists() { next } else { key };
    if used != verifying_key(taken)? {
        return Err(Failure::refused(
            "the log still has its former key: restart the recorder (systemctl restart usher-recorder), \
             and run this again; the journal of the recorder tells if it cannot change the key",
        ));
    }
    let is_left_over = taken == key;
    if !is_left_over {
        // The log must not come back with the former key after a power failure.
        let folder = Path::new(paths::LOG_DIRECTORY);
        File::open(folder)
            .and_then(|folder| folder.sync_all())
            .at(folder)?;
        std::fs::rename(next, key).at(key)?;
    }
    write_public_key(key, Path::new(paths::LOG_PUBLIC_KEY))?;
    remove_if_there(public).at(public)?;
    let used = used.to_string();
    // JSON of `usher log forget-key`:
    //   key: The log's public key, as the file `verifier-key` has it.
    output.print(&serde_json::json!({ "key": used }), || {
        if is_left_over {
            return format!(
                "{} was left over, and is removed. The log's key is\n\n{used}\n",
                paths::NEXT_LOG_PUBLIC_KEY
            );
        }
        format!(
            "The former key of the log is deleted. The log's key is now\n\n{used}\n\nWhoever verifies copies of \
             this log elsewhere keeps this key from now on (usher log verify --key); the former one still \
             counts, by the change in the log.\n"
        )
    });
    Ok(())
}

/// Whether the log has taken the next key, which must be there.
///
/// # Errors
/// When there is no log, or a file cannot be read.
pub fn has_next_key() -> Result<bool, Failure> {
    let used = Reader::open(Path::new(paths::LOG_DIRECTORY))?.verifying_key()?;
    Ok(used == verifying_key(Path::new(paths::NEXT_LOG_KEY))?)
}

/// The public side of a log's private key.
fn verifying_key(path: &Path) -> Result<VerifyingKey, Failure> {
    let text = Zeroizing::new(std::fs::read(path).at(path)?);
    let key = PrivateKey::from_openssh(text.as_slice());
    let key = key.map_err(|error| Failure::of_file(path, error))?;
    let key = SigningKey::new(key.comment(), &key);
    let key = key.map_err(|error| Failure::of_file(path, error))?;
    Ok(key.verifying_key().clone())
}
