//! `usher log`: the signed log, shown, verified, exported.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use chrono::{DateTime, SecondsFormat};
use serde::Serialize;
use usher_local::applied::write_atomically;
use usher_log::{Damage, LogError, Reader, Record, VerifyingKey};
use usher_proto::ssh_key::public::KeyData;
use usher_proto::ssh_key::{HashAlg, PublicKey};
use usher_proto::{HostPublicKey, NAMESPACE, ServiceName, SessionId, UserName};

use crate::failure::{At, Failure};
use crate::output::{Output, table};

/// Largest list of signers, and largest key and checkpoint, that is read.
const MAX_FILE: u64 = 1 << 20;

#[derive(Serialize)]
struct RecordsView {
    size: u64,
    records: Vec<RecordView>,
}

#[derive(Serialize)]
struct RecordView {
    index: u64,
    session: SessionId,
    user: UserName,
    service: ServiceName,
    server: std::net::SocketAddr,
    issued: u64,
    expires: u64,
    client_host_key: HostPublicKey,
    server_host_key: HostPublicKey,
    key: String,
    fingerprint: String,
}

impl RecordView {
    fn new(index: u64, record: &Record) -> Result<Self, Failure> {
        let verified = record
            .verify()
            .map_err(|error| Failure::LogRecord { index, error })?;
        let statement = verified.statement;
        Ok(Self {
            index,
            session: record.session(),
            user: statement.user,
            service: statement.service,
            server: statement.server,
            issued: statement.issued,
            expires: statement.expires,
            client_host_key: statement.client_host_key,
            server_host_key: statement.server_host_key,
            key: openssh(&verified.key)?,
            fingerprint: verified.key.fingerprint(HashAlg::Sha256).to_string(),
        })
    }
}

/// Prints `count` records, from `from` on or the newest ones.
///
/// # Errors
/// When there is no log, no such record, or one is not a client's.
pub fn show(
    output: &Output,
    directory: &Path,
    from: Option<u64>,
    count: u64,
) -> Result<(), Failure> {
    let reader = Reader::open(directory)?;
    let size = reader.checkpoint()?.checkpoint().size;
    let from = from.unwrap_or(size.saturating_sub(count));
    if from > size {
        return Err(LogError::NoRecord { index: from, size }.into());
    }
    let records = reader.records(from..size.min(from.saturating_add(count)))?;
    let records = (from..)
        .zip(&records)
        .map(|(index, record)| RecordView::new(index, record))
        .collect::<Result<Vec<_>, _>>()?;
    let view = RecordsView { size, records };
    output.print(&view, || text(&view));
    Ok(())
}

fn text(view: &RecordsView) -> String {
    if view.records.is_empty() {
        return format!("no records to show; the log has {}\n", view.size);
    }
    let rows: Vec<Vec<String>> = view
        .records
        .iter()
        .map(|record| {
            vec![
                record.index.to_string(),
                utc(record.issued),
                record.user.to_string(),
                record.service.to_string(),
                record.server.to_string(),
                record.fingerprint.clone(),
                record.session.to_string(),
            ]
        })
        .collect();
    let heading = [
        "INDEX", "ISSUED", "USER", "SERVICE", "SERVER", "KEY", "SESSION",
    ];
    table(&heading, &rows)
}

/// What `usher log verify` is told.
pub struct Verification<'a> {
    /// A checkpoint kept elsewhere.
    pub checkpoint: Option<&'a Path>,
    /// The log's public key, kept elsewhere.
    pub key: Option<&'a Path>,
    /// Users and their keys, as ssh-keygen's allowed signers.
    pub signers: Option<&'a Path>,
    /// Where to keep the newest checkpoint when all is well.
    pub keep: Option<&'a Path>,
}

#[derive(Serialize)]
struct VerifiedView {
    origin: String,
    records: u64,
    root: String,
    kept: Option<u64>,
    tail: u64,
    signers_checked: bool,
}

/// Verifies the whole log.
///
/// # Errors
/// With the first thing that is wrong.
pub fn verify(
    output: &Output,
    directory: &Path,
    verification: &Verification<'_>,
) -> Result<(), Failure> {
    let reader = match verification.key {
        Some(path) => {
            let key = VerifyingKey::parse(&read(path)?);
            let key =
                key.map_err(|error| Failure::PublicKey(format!("{}: {error}", path.display())))?;
            Reader::with_key(directory, key)
        }
        None => Reader::open(directory)?,
    };
    let kept = verification.checkpoint.map(read).transpose()?;
    let signers = verification.signers.map(signers).transpose()?;
    let report = reader.verify_with(kept.as_deref(), |index, verified| {
        let Some(signers) = &signers else {
            return Ok(());
        };
        let user = &verified.statement.user;
        let known = signers.get(user);
        if known.is_some_and(|keys| keys.contains(verified.key.key_data())) {
            return Ok(());
        }
        Err(Damage::UnknownSigner {
            index,
            user: user.to_string(),
            fingerprint: verified.key.fingerprint(HashAlg::Sha256).to_string(),
        })
    })?;
    if let Some(path) = verification.keep {
        let place = std::path::absolute(path).at(path)?;
        write_atomically(&place, report.checkpoint.note().as_bytes(), 0o644).at(path)?;
    }
    let checkpoint = report.checkpoint.checkpoint();
    let view = VerifiedView {
        origin: checkpoint.origin.clone(),
        records: checkpoint.size,
        root: checkpoint.root_text(),
        kept: report.kept,
        tail: report.tail,
        signers_checked: signers.is_some(),
    };
    output.print(&view, || verified_text(&view));
    Ok(())
}

fn verified_text(view: &VerifiedView) -> String {
    let mut text = format!(
        "{} records of {}, each as a client signed it\nroot {}\n",
        view.records, view.origin, view.root
    );
    text += &match view.kept {
        Some(kept) => format!("goes on from the kept checkpoint of {kept} records\n"),
        None => "no kept checkpoint was given (--checkpoint): another history under the same key \
                 would look as good\n"
            .into(),
    };
    text += if view.signers_checked {
        "every record is signed by a key known of its user\n"
    } else {
        "whose keys they are was not looked at (--signers)\n"
    };
    if view.tail > 0 {
        text += &format!(
            "{} bytes after the last record: an append that is going on, or that a crash has cut \
             short\n",
            view.tail
        );
    }
    text
}

/// Users and their keys, of a list of allowed signers (ssh-keygen(1)) without patterns and
/// options.
fn signers(path: &Path) -> Result<BTreeMap<UserName, BTreeSet<KeyData>>, Failure> {
    let mut signers = BTreeMap::<UserName, BTreeSet<KeyData>>::new();
    for (number, line) in read(path)?.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let refused = |reason: &str| {
            let number = number + 1;
            Failure::PublicKey(format!(
                "{} line {number}: {reason}; give lines of the form \"USER[,USER] TYPE KEY\"",
                path.display()
            ))
        };
        let (users, key) = line
            .split_once(char::is_whitespace)
            .ok_or_else(|| refused("no key"))?;
        let key = PublicKey::from_openssh(key.trim())
            .map_err(|_| refused("not a public key, or options before it"))?;
        for user in users.split(',') {
            let user = user.parse().map_err(|_| refused("not a user name"))?;
            signers
                .entry(user)
                .or_default()
                .insert(key.key_data().clone());
        }
    }
    Ok(signers)
}

#[derive(Serialize)]
struct ExportView {
    index: u64,
    user: UserName,
    directory: PathBuf,
    files: Vec<&'static str>,
}

/// Writes a record and its proof as files that need none of Usher's programs.
///
/// # Errors
/// When there is no such record, it is not a client's or not the one in the tree, or a file
/// exists.
pub fn export(output: &Output, directory: &Path, index: u64, target: &Path) -> Result<(), Failure> {
    let reader = Reader::open(directory)?;
    let proof = reader.tlog_proof(index)?;
    let record = reader.record(index)?;
    let view = RecordView::new(index, &record)?;
    let signature = record.authenticator.signature_pem();
    let signature = signature.map_err(|error| Failure::LogRecord {
        index,
        error: error.into(),
    })?;
    let files = [
        ("statement", record.authenticator.statement.clone()),
        ("statement.sig", signature.into_bytes()),
        ("key.pub", format!("{}\n", view.key).into_bytes()),
        (
            "allowed_signers",
            format!("{} {}\n", view.user, view.key).into_bytes(),
        ),
        ("record", record.encode()),
        ("record.tlog-proof", proof.into_bytes()),
    ];
    fs::create_dir_all(target).at(target)?;
    for (name, bytes) in &files {
        let path = target.join(name);
        let mut options = OpenOptions::new();
        let file = options.write(true).create_new(true).open(&path);
        file.and_then(|mut file| file.write_all(bytes)).at(&path)?;
    }
    let exported = ExportView {
        index,
        user: view.user,
        directory: target.to_owned(),
        files: files.iter().map(|(name, _)| *name).collect(),
    };
    output.print(&exported, || {
        format!(
            "wrote record {index} to {}; put the key that you know of {user} into \
             allowed_signers, then there:\n\
             ssh-keygen -Y verify -f allowed_signers -I {user} -n {NAMESPACE} -s statement.sig \
             < statement\n",
            target.display(),
            user = exported.user,
        )
    });
    Ok(())
}

fn openssh(key: &PublicKey) -> Result<String, Failure> {
    key.to_openssh()
        .map_err(|error| Failure::PublicKey(format!("a key has no text form: {error}")))
}

/// A small file of text.
fn read(path: &Path) -> Result<String, Failure> {
    if fs::metadata(path).at(path)?.len() > MAX_FILE {
        let path = path.display();
        return Err(Failure::Host(format!(
            "{path}: larger than {MAX_FILE} bytes"
        )));
    }
    fs::read_to_string(path).at(path)
}

/// Seconds since 1970 as RFC 3339 has it, in UTC. A client may have signed any number.
pub fn utc(seconds: u64) -> String {
    let time = i64::try_from(seconds)
        .ok()
        .and_then(|seconds| DateTime::from_timestamp(seconds, 0));
    time.map_or_else(
        || format!("{seconds} seconds after 1970"),
        |time| time.to_rfc3339_opts(SecondsFormat::Secs, true),
    )
}

#[cfg(test)]
mod tests {
    use super::utc;

    #[test]
    fn times_read_as_rfc_3339_has_them() {
        assert_eq!(utc(0), "1970-01-01T00:00:00Z");
        assert_eq!(utc(951_782_399), "2000-02-28T23:59:59Z");
        assert_eq!(utc(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(utc(1_800_000_000), "2027-01-15T08:00:00Z");
        assert_eq!(utc(4_107_542_400), "2100-03-01T00:00:00Z");
        assert_eq!(utc(u64::MAX), format!("{} seconds after 1970", u64::MAX));
    }
}
