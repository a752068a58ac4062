//! Collects the files of /etc/usher, or of a copy of it, into an [`Applied`].

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use base64ct::{Base64, Encoding};
use usher_base::UserName;

use crate::applied::{Applied, UserEntry};
use crate::copy::{ConfigurationCopy, open, policy_files, read_bytes, read_in, sorted};
use crate::error::ConfigurationError;
use crate::key_options::in_utc;
use crate::paths::within;
use crate::reading::optional;
use crate::{includes, keys, paths};

impl UserEntry {
    /// Reads a user's folder.
    fn read(folder: &Path, copy: Option<&ConfigurationCopy>) -> Result<Self, ConfigurationError> {
        let mut entry = Self {
            disabled: optional(read_in(&folder.join("disabled"), copy))?
                .map(|reason| reason.trim().to_owned()),
            ..Self::default()
        };
        for path in sorted(folder, copy)? {
            let name = path.file_name().and_then(|name| name.to_str());
            match name.and_then(|name| name.strip_prefix(keys::LIST)) {
                Some("") => entry.authorized_keys = in_utc(&read_in(&path, copy)?),
                Some(purpose) if purpose.starts_with('.') => {
                    let list = in_utc(&read_in(&path, copy)?);
                    let purpose = purpose[1..].to_owned();
                    entry.authorized_keys_for.insert(purpose, list);
                }
                _ => {}
            }
        }
        Ok(entry)
    }
}

impl Applied {
    /// Reads a folder like /etc/usher: policy files (`*.policy`, in the order of their names) and their
    /// includes, users, revoked keys, authorities. If the folder is a copy of a host's configuration,
    /// `copy` is that copy, and nothing outside it is read.
    ///
    /// # Errors
    /// Names the first file that cannot be read. The text is not checked here: see
    /// [`Applied::check`].
    pub fn collect(
        folder: &Path,
        copy: Option<&ConfigurationCopy>,
    ) -> Result<Self, ConfigurationError> {
        let mut applied = Self {
            user_authorities: optional(read_in(&within(folder, paths::USER_AUTHORITIES), copy))?,
            revoked_keys: optional(read_bytes(&within(folder, paths::REVOKED_KEYS), copy))?
                .map(|bytes| Base64::encode_string(&bytes)),
            copy: copy.map(|copy| copy.folder().to_owned()),
            ..Self::default()
        };
        let files = policy_files(&within(folder, paths::POLICY_DIRECTORY), copy)?;
        applied.take_policy(includes::read_included(
            &files,
            |path| open(path, copy),
            copy,
        )?);
        applied.users = Self::users_in(&within(folder, paths::USERS_DIRECTORY), copy)?;
        Ok(applied)
    }

    /// Reads a folder of users.
    ///
    /// # Errors
    /// As [`Applied::collect`].
    pub fn users_in(
        users: &Path,
        copy: Option<&ConfigurationCopy>,
    ) -> Result<BTreeMap<UserName, UserEntry>, ConfigurationError> {
        let mut found = BTreeMap::new();
        for path in sorted(users, copy)? {
            let name = path
                .file_name()
                .and_then(|name| name.to_str())
                .unwrap_or_default();
            let name: UserName = name
                .parse()
                .map_err(|_| ConfigurationError::NotAUser(path.clone()))?;
            found.insert(name, UserEntry::read(&path, copy)?);
        }
        Ok(found)
    }

    /// Reads these policy files, which may be pipes, and their includes. [`Applied::check`] reports files
    /// that are not UTF-8 or cannot be included.
    ///
    /// # Errors
    /// As [`includes::read_included`].
    pub fn read_policy(&mut self, files: &[PathBuf]) -> Result<(), ConfigurationError> {
        self.take_policy(includes::read_included(
            files,
            |path| File::open(path),
            None,
        )?);
        Ok(())
    }

    fn take_policy(&mut self, read: includes::Files) {
        self.sources = read.sources;
        self.unread = read.mistakes;
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn tree() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(folder.path().join("policy.d")).unwrap();
        std::fs::create_dir_all(folder.path().join("users/alice")).unwrap();
        folder
    }

    pub(crate) fn collect(folder: &tempfile::TempDir) -> Result<Applied, ConfigurationError> {
        Applied::collect(folder.path(), None)
    }

    #[test]
    fn policy_files_are_read_in_order_without_editors_leftovers() {
        let folder = tree();
        for name in ["20-b.policy", "10-a.policy", "10-a.policy~", ".x.swp"] {
            std::fs::write(folder.path().join("policy.d").join(name), "").unwrap();
        }
        let applied = collect(&folder).unwrap();
        let names: Vec<_> = applied
            .sources
            .iter()
            .map(|file| file.name.rsplit('/').next().unwrap())
            .collect();
        assert_eq!(names, ["10-a.policy", "20-b.policy"]);
    }

    #[test]
    fn a_folder_that_is_no_user_name_is_refused() {
        let folder = tree();
        assert!(collect(&folder).is_ok());
        std::fs::create_dir_all(folder.path().join("users/Not A User")).unwrap();
        assert!(matches!(
            collect(&folder),
            Err(ConfigurationError::NotAUser { .. })
        ));
    }
}
