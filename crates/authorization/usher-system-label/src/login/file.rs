//! The file mac.login.

use std::path::Path;

use usher_label::LoginLabels;
use usher_language::{MAXIMUM_SOURCE_BYTES, Source};
use usher_system::roots_file::{open_folder, read_in, unreadable};

use super::LoginError;

/// The labels of users' processes: see mac.login(5). The keeper and sessions read it when a user begins.
///
/// Owner: root; only root may write it. Made by: the administrator. Backup: yes. Lost: users get no label
/// of their own.
pub const MAC_LOGIN: &str = "/etc/usher/mac.login";

/// Reads a mac.login; `None` if there is none. The path is absolute.
///
/// # Errors
///
/// Others than root can write the file or a folder on the way, it cannot be read, or it has a mistake: then
/// no line of it counts.
pub fn read_login_labels(path: &Path) -> Result<Option<LoginLabels>, LoginError> {
    let (Some(above), Some(name)) = (path.parent(), path.file_name().and_then(|one| one.to_str()))
    else {
        return Err(unreadable(path)(std::io::ErrorKind::InvalidInput).into());
    };
    let Some(folder) = open_folder(above)? else {
        return Ok(None);
    };
    // One byte too many: the parser refuses a text of this length.
    let Some(bytes) = read_in(&folder, name, path, MAXIMUM_SOURCE_BYTES + 1)? else {
        return Ok(None);
    };
    let source = Source::from_utf8(path.display().to_string(), bytes);
    let parsed = source
        .map_err(|mistake| vec![*mistake])
        .and_then(LoginLabels::parse);
    parsed.map(Some).map_err(LoginError::Mistakes)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, chown, symlink};
    use std::path::PathBuf;

    use tempfile::TempDir;

    use super::*;

    fn file() -> Option<(PathBuf, TempDir)> {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: only root's files count");
            return None;
        }
        let made = tempfile::tempdir_in("/run").unwrap();
        fs::set_permissions(made.path(), Permissions::from_mode(0o755)).unwrap();
        let path = made.path().join("mac.login");
        fs::write(&path, "user alice test/secret\n").unwrap();
        Some((path, made))
    }

    fn told(path: &Path) -> String {
        read_login_labels(path).unwrap_err().to_string()
    }

    #[test]
    fn a_mac_login_of_roots_is_read_and_none_is_no_fault() {
        let Some((path, made)) = file() else { return };
        assert_eq!(
            read_login_labels(&path).unwrap().unwrap().lines().count(),
            1
        );
        assert_eq!(read_login_labels(&made.path().join("other")).unwrap(), None);
        assert_eq!(
            read_login_labels(&made.path().join("none/mac.login")).unwrap(),
            None
        );
    }

    // Threat model: M63
    #[test]
    fn a_mac_login_that_others_can_write_is_refused() {
        let Some((path, made)) = file() else { return };
        fs::set_permissions(&path, Permissions::from_mode(0o664)).unwrap();
        assert!(told(&path).starts_with("others than root can write"));
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        chown(&path, Some(3900), None).unwrap();
        assert!(told(&path).contains("belongs to uid 3900"));
        chown(&path, Some(0), None).unwrap();
        fs::set_permissions(made.path(), Permissions::from_mode(0o777)).unwrap();
        assert!(told(&path).starts_with("others than root can write"));
        fs::set_permissions(made.path(), Permissions::from_mode(0o755)).unwrap();
        assert!(read_login_labels(&path).unwrap().is_some());
        let aside = path.with_file_name("aside");
        fs::rename(&path, &aside).unwrap();
        symlink(&aside, &path).unwrap();
        assert!(told(&path).contains("is a symbolic link"));
    }

    #[test]
    fn a_mac_login_with_a_mistake_names_place_and_remedy() {
        let Some((path, _made)) = file() else { return };
        fs::write(&path, "default -\nuser alice\n").unwrap();
        let expected = format!("{}:2:1: `user` has too few", path.display());
        let first = told(&path);
        assert!(first.starts_with(&expected), "{first}");
        assert!(first.contains("write `user NAME LABEL`"), "{first}");
        fs::write(&path, "x\ny\n").unwrap();
        assert!(told(&path).contains(", and 1 more"));
        fs::write(&path, b"user \xff -\n").unwrap();
        assert!(read_login_labels(&path).is_err());
    }
}
