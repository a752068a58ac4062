//! `usher log export`: one record as files that need none of Usher's programs.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::Serialize;
use usher_local::key_options;
use usher_log::{AuthenticationRecord, EndRecord, Reader, Record, RecordError, Verified};
use usher_proto::{NAMESPACE, SESSION_END_NAMESPACE, UserName};

use super::openssh;
use crate::failure::{At, Failure};
use crate::output::Output;

/// Who is told to **ssh-keygen** that has signed the end of a session: no user has such a name.
const LOG: &str = "log@usher";

#[derive(Serialize)]
struct ExportView {
    index: u64,
    user: UserName,
    directory: PathBuf,
    files: Vec<&'static str>,
    /// What checks it, in that directory.
    command: String,
}

/// What is signed in a record, and how that is checked.
struct Signed {
    statement: Vec<u8>,
    signature: String,
    /// The key that signed, or its certificate: one line.
    key: String,
    /// The line of allowed signers (ssh-keygen(1)) by which it verifies.
    allowed_signer: String,
    /// Who signed, by that line, and for what.
    identity: String,
    namespace: &'static str,
    /// Whose key has to be known from elsewhere.
    known: String,
    /// When it was signed, where the key counts for a time only.
    time: Option<u64>,
}

/// Writes a record and its proof as files that need none of Usher's programs.
///
/// # Errors
/// When there is no such record, nobody has signed it or it is not the one in the tree, or a file
/// exists.
pub fn export(output: &Output, directory: &Path, index: u64, target: &Path) -> Result<(), Failure> {
    let reader = Reader::open(directory)?;
    let proof = reader.tlog_proof(index)?;
    let record = reader.record(index)?;
    let bytes = record.encode();
    let (user, signed) = match record {
        Record::Authentication(record) => {
            let verified = record
                .verify()
                .map_err(|error| Failure::LogRecord { index, error })?;
            let signed = Signed::by_client(index, &verified, record)?;
            (verified.statement.user, signed)
        }
        Record::End(record) => {
            let log = reader.verifying_key().public_key();
            let end = record
                .verify(log)
                .map_err(|error| Failure::LogRecord { index, error })?;
            (end.user, Signed::by_log(index, openssh(log)?, record)?)
        }
    };
    let Signed {
        identity,
        namespace,
        known,
        ..
    } = signed;
    let files = [
        ("statement", signed.statement),
        ("statement.sig", signed.signature.into_bytes()),
        ("key.pub", format!("{}\n", signed.key).into_bytes()),
        ("allowed_signers", signed.allowed_signer.into_bytes()),
        ("record", bytes),
        ("record.tlog-proof", proof.into_bytes()),
    ];
    fs::create_dir_all(target).at(target)?;
    for (name, bytes) in &files {
        let path = target.join(name);
        let mut options = OpenOptions::new();
        let file = options.write(true).create_new(true).open(&path);
        file.and_then(|mut file| file.write_all(bytes)).at(&path)?;
    }
    let time = signed.time.map_or_else(String::new, |time| {
        format!("-O verify-time={} ", verify_time(time))
    });
    let exported = ExportView {
        index,
        user,
        directory: target.to_owned(),
        files: files.iter().map(|(name, _)| *name).collect(),
        command: format!(
            "ssh-keygen -Y verify {time}-f allowed_signers -I {identity} -n {namespace} \
             -s statement.sig < statement"
        ),
    };
    output.print(&exported, || {
        format!(
            "wrote record {index} to {}; put the key that you know of {known} into \
             allowed_signers, then there:\n{}\n",
            target.display(),
            exported.command
        )
    });
    Ok(())
}

impl Signed {
    fn by_client(
        index: u64,
        verified: &Verified,
        record: AuthenticationRecord,
    ) -> Result<Self, Failure> {
        let signature = record.authenticator.signature_pem();
        let signature = signature.map_err(|refusal| Failure::LogRecord {
            index,
            error: RecordError::Signature(refusal),
        })?;
        let identity = identity(index, verified)?.to_owned();
        let (key, allowed_signer, known) = match &verified.certificate {
            None => {
                let key = openssh(&verified.key)?;
                let allowed_signer = format!("{identity} {key}\n");
                (key, allowed_signer, identity.clone())
            }
            Some(certificate) => {
                let authority = openssh(&certificate.authority)?;
                (
                    certificate.line(),
                    format!("{identity} cert-authority {authority}\n"),
                    format!("{identity}'s authority"),
                )
            }
        };
        Ok(Self {
            statement: record.authenticator.statement,
            signature,
            key,
            allowed_signer,
            identity,
            namespace: NAMESPACE,
            known,
            // A certificate has an end, and most are over when a record is looked at.
            time: verified
                .certificate
                .is_some()
                .then_some(verified.statement.issued),
        })
    }

    fn by_log(index: u64, key: String, record: EndRecord) -> Result<Self, Failure> {
        let signature = record.signature_pem();
        Ok(Self {
            signature: signature.map_err(|error| Failure::LogRecord { index, error })?,
            statement: record.end,
            allowed_signer: format!("{LOG} namespaces=\"{SESSION_END_NAMESPACE}\" {key}\n"),
            key,
            identity: LOG.to_owned(),
            namespace: SESSION_END_NAMESPACE,
            known: "the log".to_owned(),
            time: None,
        })
    }
}

/// Who `ssh-keygen -Y verify` is told that has signed: the user, or the principal by which the
/// user was let in where the certificate does not name the user.
///
/// # Errors
/// When no principal can stand in a command and in a list of allowed signers: an authority may
/// write there what it likes, blanks, patterns and what a shell would do.
fn identity(index: u64, verified: &Verified) -> Result<&str, Failure> {
    let user = verified.statement.user.as_str();
    let Some(certificate) = &verified.certificate else {
        return Ok(user);
    };
    if certificate.principals.has(user) {
        return Ok(user);
    }
    let mut principals = certificate.principals.names();
    principals
        .find(|name| is_plain(name))
        .ok_or(Failure::UnusablePrincipals { index })
}

/// Whether a principal can stand in a command and in a list of allowed signers.
fn is_plain(principal: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._@+-".contains(&byte);
    !principal.is_empty() && !principal.starts_with('-') && principal.bytes().all(plain)
}

/// Seconds since 1970 as `ssh-keygen -O verify-time` takes it, in UTC.
fn verify_time(seconds: u64) -> String {
    key_options::expiry_time(seconds).unwrap_or_else(|| seconds.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_shell_or_a_pattern_would_read_otherwise_is_no_identity() {
        for plain in ["ops", "alice@example.org", "a_b-c.d+e"] {
            assert!(is_plain(plain), "{plain}");
        }
        for other in [
            "", "$(id)", "a b", "*", "!a", "a;b", "-I", "\"", "a?", "\u{e9}",
        ] {
            assert!(!is_plain(other), "{other}");
        }
    }
}
