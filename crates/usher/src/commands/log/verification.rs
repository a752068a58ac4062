//! `usher log verify`: verifies the whole log, and the owners of the keys that signed.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use serde_json::json;
use usher_base::UserName;
use usher_daemon::files::write_atomically;
use usher_local::keys;
use usher_local::reading::read_bounded;
use usher_log::{Damage, Kept, Reader, Says, SignedEnd, Verified, VerifyingKey};
use usher_proto::ssh_key::public::KeyData;
use usher_proto::{Principals, SessionId};

use super::{Folder, fingerprint, session_of};
use crate::failure::{At, Failure};
use crate::output::Output;

/// Options of `usher log verify`.
#[derive(Debug, clap::Args)]
pub struct Verification {
    /// Trusted copy of an older checkpoint of this log
    #[arg(long, value_name = "FILE")]
    checkpoint: Option<PathBuf>,
    /// Trusted copy of the log's public key, or of a former one
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
    /// Users and their known keys, in ssh-keygen's format of allowed signers
    #[arg(long, value_name = "FILE")]
    signers: Option<PathBuf>,
    /// Write the newest checkpoint to this file when the log is sound
    #[arg(long, value_name = "FILE")]
    keep: Option<PathBuf>,
    #[command(flatten)]
    log: Folder,
}

/// The beginnings and ends of sessions in a log, gathered in any order.
#[derive(Default)]
struct Sessions {
    /// The first authentication for each session, and its user.
    begun: HashMap<SessionId, (u64, UserName)>,
    ended: Vec<(u64, SessionId, UserName)>,
}

impl Sessions {
    fn enter(&mut self, index: u64, says: &Says) {
        match says {
            Says::Authentication(verified) => {
                let user = verified.statement.user.clone();
                let session = session_of(verified);
                let first = self.begun.entry(session).or_insert((index, user));
                first.0 = first.0.min(index);
            }
            Says::End(SignedEnd { end, .. }) => {
                self.ended.push((index, end.session, end.user.clone()));
            }
            Says::KeyChange(_) => {}
        }
    }

    /// The number of ends without an earlier authentication of that user for that session.
    fn unmatched(&self) -> u64 {
        let unmatched = self.ended.iter().filter(|(index, session, user)| {
            let begun = self.begun.get(session);
            begun.is_none_or(|(first, whose)| first > index || whose != user)
        });
        unmatched.count() as u64
    }
}

/// Verifies the whole log.
pub fn verify(output: &Output, verification: &Verification) -> Result<(), Failure> {
    let reader = Reader::open(&verification.log.log)?;
    let known = match &verification.key {
        Some(path) => {
            let key = VerifyingKey::parse(&read_bounded(path)?);
            Some(key.map_err(|error| Failure::of_file(path, error))?)
        }
        None => None,
    };
    let checkpoint = verification.checkpoint.as_deref().map(read_bounded);
    let checkpoint = checkpoint.transpose()?;
    let kept = Kept {
        checkpoint: checkpoint.as_deref(),
        key: known.as_ref(),
    };
    let signers = verification.signers.as_deref().map(signers).transpose()?;
    let sessions = Mutex::new(Sessions::default());
    let report = reader.verify_with(kept, |index, says| {
        let mut gathered = sessions.lock();
        gathered.enter(index, says);
        drop(gathered);
        let (Some(signers), Says::Authentication(verified)) = (&signers, says) else {
            return Ok(());
        };
        if signers.know(verified) {
            return Ok(());
        }
        Err(Damage::UnknownSigner {
            index,
            user: verified.statement.user.to_string(),
            fingerprint: fingerprint(&verified.key),
            is_known: signers.keys.contains_key(&verified.statement.user),
        })
    })?;
    let sessions = sessions.into_inner();
    if let Some(path) = &verification.keep {
        write_atomically(path, report.checkpoint.note().as_bytes(), 0o644).at(path)?;
    }
    let checkpoint = report.checkpoint.checkpoint();
    let (records, ends) = (checkpoint.size, sessions.ended.len() as u64);
    let (origin, root) = (&checkpoint.origin, checkpoint.root_text());
    let unmatched = sessions.unmatched();
    let (key_checked, signers_checked) = (known.is_some(), signers.is_some());
    let (key, changes) = (report.key.to_string(), report.key_changes);
    let is_former = known.is_some_and(|known| known != report.key);
    let authentications = records - ends - changes.len() as u64;
    // JSON of `usher log verify`:
    //   origin: The name of the log.
    //   records: How many records its newest checkpoint covers.
    //   ends: How many of these are ends of sessions.
    //   key: The log's public key, as the file `verifier-key` has it.
    //   key_changes: List of numbers: the indexes of the records that changed it.
    //   root: The root of the tree over them, in Base64.
    //   kept: How many records the checkpoint of `--checkpoint` covers, or null.
    //   tail: The bytes behind the last record of the checkpoint: an append under way, or one that was cut short.
    //   signers_checked: True if `--signers` was given.
    //   key_checked: True if `--key` was given. False: the key is the one stored with the log.
    //   unmatched_ends: The ends of sessions for which the log has no authentication.
    let view = json!({
        "origin": origin, "records": records, "ends": ends, "key": key, "key_changes": changes,
        "root": root, "kept": report.kept,
        "tail": report.tail, "signers_checked": signers_checked,
        // False: the key is the one stored with the log.
        "key_checked": key_checked, "unmatched_ends": unmatched,
    });
    output.print(&view, || {
        let mut text = format!(
            "{records} records of {origin}: {} authentications, each as a client signed it, and \
             {ends} ends of sessions, each as the log signed it\nroot {root}\n",
            authentications
        );
        if !changes.is_empty() {
            text += &format!(
                "the log's key was changed {}, each time signed by the former key and by the next one\n",
                match changes.len() {
                    1 => "once".to_owned(),
                    number => format!("{number} times"),
                }
            );
        }
        if is_former {
            text += &format!(
                "the trusted key is a former one: the log's key is now {key}. Keep this one (--key) from \
                 now on\n"
            );
        }
        text += &match report.kept {
            Some(kept) => format!("extends the trusted checkpoint of {kept} records\n"),
            None => {
                "no trusted checkpoint was given (--checkpoint): a rewritten history under the \
                     same key would pass\n"
                    .into()
            }
        };
        if !key_checked {
            text += "the log's key was read beside the log (--key): a writer of that folder could \
                     have replaced log and key\n";
        }
        text += if signers_checked {
            "every authentication is signed by a known key of its user, or by a key that \
             one certifies\n"
        } else {
            "the owners of the keys were not checked (--signers)\n"
        };
        if unmatched > 0 {
            text += &format!(
                "{unmatched} ends are of sessions without an earlier authentication in this log: \
                 only the host vouches for them\n"
            );
        }
        if report.tail > 0 {
            text += &format!(
                "{} bytes after the last record: an append that is under way, or that a crash cut \
                 short\n",
                report.tail
            );
        }
        text
    });
    Ok(())
}

/// A list of allowed signers (ssh-keygen(1)) without patterns.
#[derive(Default)]
struct Signers {
    /// Users and their keys.
    keys: BTreeMap<UserName, BTreeSet<KeyData>>,
    /// Authorities with the names of their lines: users that a certificate may name, or one user and then
    /// principals of that user.
    authorities: Vec<(Vec<String>, KeyData)>,
}

impl Signers {
    /// Whether the key that signed is the user's: it is listed, or it has a certificate of a listed authority
    /// that was valid at that time. The authority's line names the user, who must be a principal of the
    /// certificate, or it names the user first and then a principal of the certificate.
    fn know(&self, verified: &Verified) -> bool {
        let statement = &verified.statement;
        let Some(certificate) = &verified.certificate else {
            let known = self.keys.get(&statement.user);
            return known.is_some_and(|keys| keys.contains(verified.key.key_data()));
        };
        let mut authorities = self.authorities.iter();
        certificate.check(statement.issued).is_ok()
            && authorities.any(|(names, key)| {
                key == certificate.authority.key_data()
                    && certifies(names, statement.user.as_str(), &certificate.principals)
            })
    }
}

/// Whether an authority's line with these names makes a certificate with these principals the user's.
fn certifies(names: &[String], user: &str, principals: &Principals) -> bool {
    let named = |name: &String| principals.has(name);
    let by_name = names.iter().any(|name| name == user && named(name));
    let by_principal = names
        .split_first()
        .is_some_and(|(first, others)| first == user && others.iter().any(named));
    by_name || by_principal
}

fn signers(path: &Path) -> Result<Signers, Failure> {
    let mut signers = Signers::default();
    for (number, line) in keys::key_lines(&read_bounded(path)?) {
        let refused = |reason: &str| {
            Failure::Refused(format!(
                "{} line {number}: {reason}; give lines of the form \"USER[,USER] TYPE KEY\" or \
                 \"USER[,PRINCIPAL] cert-authority TYPE KEY\"",
                path.display()
            ))
        };
        let (users, key) = line
            .split_once(char::is_whitespace)
            .ok_or_else(|| refused("no key"))?;
        let key = key.trim();
        let (authority, key) = match key.strip_prefix("cert-authority") {
            Some(key) => (true, key.trim_start()),
            None => (false, key),
        };
        let key = usher_proto::key::parse_line(key)
            .map_err(|_| refused("not a public key, or other options stand before it"))?;
        if authority {
            let names = users.split(',').map(str::to_owned).collect();
            signers.authorities.push((names, key.key_data().clone()));
            continue;
        }
        for user in users.split(',') {
            let user = user.parse().map_err(|_| refused("not a user name"))?;
            signers
                .keys
                .entry(user)
                .or_default()
                .insert(key.key_data().clone());
        }
    }
    Ok(signers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_of_one_user_is_not_anothers_on_the_same_line() {
        let certifies = |names: &str, user: &str, principals: &str| {
            let names: Vec<String> = names.split(',').map(str::to_owned).collect();
            certifies(&names, user, &principals.parse().unwrap())
        };
        assert!(certifies("alice,bob", "alice", "alice"));
        assert!(certifies("alice,bob", "bob", "ops,bob"));
        assert!(!certifies("alice,bob", "bob", "alice"));
        // `USER,PRINCIPAL`: the first is the user who has the principal.
        assert!(certifies("alice,ops", "alice", "ops"));
        assert!(!certifies("bob,alice,ops", "alice", "ops"));
        assert!(!certifies("alice,ops", "alice", "dev"));
        assert!(!certifies("alice,ops", "carol", "alice,ops"));
        assert!(!certifies("alice", "alice", ""));
    }
}
