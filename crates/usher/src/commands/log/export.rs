//! `usher log export`: writes one record as files that other programs can verify.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use serde_json::json;
use usher_local::key_options;
use usher_log::{AuthenticationRecord, Reader, Record, RecordError, SignedEnd, Verified};
use usher_proto::{KEY_CHANGE_NAMESPACE, LogKey, NAMESPACE, SESSION_END_NAMESPACE};

use super::{Folder, openssh, require_key};
use crate::failure::{At, Failure};
use crate::output::{Output, warn};

/// The identity for **ssh-keygen** that signs the ends of sessions and changes of the log's key. No user has such a name.
const LOG: &str = "log@usher";

/// Options of `usher log export`.
#[derive(Debug, clap::Args)]
pub struct Export {
    /// Index of the record
    index: u64,
    /// Directory to write to
    #[arg(long, value_name = "DIRECTORY")]
    directory: PathBuf,
    #[command(flatten)]
    log: Folder,
}

/// The signed part of a record, and how to verify it.
struct Signed {
    statement: Vec<u8>,
    signature: String,
    /// The key that signed, or its certificate: one line.
    key: String,
    /// The line of allowed signers (ssh-keygen(1)) by which it verifies.
    allowed_signer: String,
    /// The signer in that line, and the namespace.
    identity: String,
    namespace: &'static str,
    /// The owner of the signing key. That key must be known from elsewhere.
    known: String,
    /// The time of the signature, if the key is valid for a time only.
    time: Option<u64>,
}

/// Writes a record and its proof as files that other programs can verify.
///
/// # Errors
/// When there is no such record, its signature or proof is wrong, or a file exists.
pub fn export(output: &Output, request: &Export) -> Result<(), Failure> {
    let (index, target) = (request.index, request.directory.as_path());
    let reader = Reader::open(&request.log.log)?;
    let proof = reader.tlog_proof(index)?;
    let record = reader.record(index)?;
    let bytes = record.encode();
    let (user, signed) = match record {
        Record::Authentication(record) => {
            let verified = record
                .verify()
                .map_err(|error| Failure::LogRecord { index, error })?;
            let signed = Signed::by_client(index, &verified, record)?;
            (Some(verified.statement.user), signed)
        }
        Record::End(record) => {
            let SignedEnd { end, key } = record
                .verify()
                .map_err(|error| Failure::LogRecord { index, error })?;
            require_key(key, &reader, index)?;
            let signature = record.signature_pem();
            let signature = signature.map_err(|error| Failure::LogRecord { index, error })?;
            let signed = Signed::by_log(SESSION_END_NAMESPACE, key, record.end, signature)?;
            (Some(end.user), signed)
        }
        Record::KeyChange(record) => {
            let change = record
                .verify()
                .map_err(|error| Failure::LogRecord { index, error })?;
            let signature = record.signature_pem();
            let signature = signature.map_err(|error| Failure::LogRecord { index, error })?;
            let (key, statement) = (change.former, record.change);
            let signed = Signed::by_log(KEY_CHANGE_NAMESPACE, key, statement, signature)?;
            (None, signed)
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
    write_all(target, &files)?;
    let time = signed.time.map_or_else(String::new, |time| {
        format!("-O verify-time={} ", verify_time(time))
    });
    // This command verifies the record, in that directory.
    let command = format!(
        "ssh-keygen -Y verify {time}-f allowed_signers -I {identity} -n {namespace} -s \
         statement.sig < statement"
    );
    // JSON of `usher log export`:
    //   index: The record's index.
    //   user: Its user, or null for a change of the log's key.
    //   directory: The folder with the files.
    //   command: The command that verifies the record, to be run in that folder.
    //   files: List of texts: the names of the files.
    let exported = json!({
        "index": index, "user": user, "directory": target, "command": command,
        "files": files.each_ref().map(|(name, _)| *name),
    });
    output.print(&exported, || {
        format!(
            "wrote record {index} to {}; put the key that you trust for {known} into \
             allowed_signers, then run there:\n{command}\n",
            target.display()
        )
    });
    Ok(())
}

/// Writes new files, all or none, so that the next attempt finds none of them.
fn write_all(target: &Path, files: &[(&str, Vec<u8>)]) -> Result<(), Failure> {
    fs::create_dir_all(target).at(target)?;
    let mut made = Vec::new();
    for (name, bytes) in files {
        let path = target.join(name);
        let file = OpenOptions::new().write(true).create_new(true).open(&path);
        let written = file.and_then(|mut file| {
            made.push(path.clone());
            file.write_all(bytes)
        });
        if let Err(error) = written {
            for made in made {
                if let Err(error) = fs::remove_file(&made) {
                    warn(&format!(
                        "{}: {error}; remove it before the next export",
                        made.display()
                    ));
                }
            }
            return Err(error).at(&path);
        }
    }
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
                    format!("the authority of {identity}"),
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
            // Most certificates have expired when their record is verified.
            time: verified
                .certificate
                .is_some()
                .then_some(verified.statement.issued),
        })
    }

    fn by_log(
        namespace: &'static str,
        key: LogKey,
        statement: Vec<u8>,
        signature: String,
    ) -> Result<Self, Failure> {
        let key = openssh(&key.public_key())?;
        Ok(Self {
            statement,
            signature,
            allowed_signer: format!("{LOG} namespaces=\"{namespace}\" {key}\n"),
            key,
            identity: LOG.to_owned(),
            namespace,
            known: "the log".to_owned(),
            time: None,
        })
    }
}

/// The signer for `ssh-keygen -Y verify`: the user, or the admitted principal if the certificate does not
/// name the user.
///
/// # Errors
/// When no principal is safe in a command and in a list of allowed signers. An authority may write any
/// text there: blanks, patterns, shell commands.
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

/// Whether a principal is safe in a command and in a list of allowed signers.
fn is_plain(principal: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._@+-".contains(&byte);
    !principal.is_empty() && !principal.starts_with('-') && principal.bytes().all(plain)
}

/// Formats seconds since 1970 for `ssh-keygen -O verify-time`, in UTC.
fn verify_time(seconds: u64) -> String {
    key_options::expiry_time(seconds).unwrap_or_else(|| seconds.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_export_leaves_nothing_in_the_way_of_the_next() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let files = [("statement", b"a".to_vec()), ("record", b"b".to_vec())];
        fs::write(path("record"), "of somebody").unwrap();
        let told = write_all(folder.path(), &files).unwrap_err().to_string();
        assert!(told.contains("/record: "), "{told}");
        assert!(!path("statement").exists());
        assert_eq!(fs::read(path("record")).unwrap(), b"of somebody");
        fs::remove_file(path("record")).unwrap();
        write_all(folder.path(), &files).unwrap();
        assert_eq!(fs::read(path("statement")).unwrap(), b"a");
    }

    #[test]
    fn an_identity_has_no_character_special_to_shells_or_patterns() {
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
