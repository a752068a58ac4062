//! The local sockets of servers behind `identify`, which believe whoever reaches them.

use std::ffi::CString;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use nix::unistd::getgrouplist;
use usher_base::UserName;
use usher_local::roles::OFFERS;
use usher_policy::{Backend, Policy, ServedBy};

use super::Finding;
use crate::accounts;

/// Permissions to search a folder, and to write, which connecting to a socket takes (unix(7)).
const SEARCH: u32 = 0o1;
const WRITE: u32 = 0o2;

/// Whether the servers behind `identify` have their sockets, where the service's account reaches them and not
/// everybody else; none if no service has one.
pub fn servers(policy: &Policy) -> Option<Finding> {
    let mut faults = Vec::new();
    let mut are_there = false;
    for service in policy.services.values() {
        let ServedBy::Backend(Backend {
            account, socket, ..
        }) = &service.served_by
        else {
            continue;
        };
        are_there = true;
        let fault = someone(account)
            .map_or_else(Some, |someone| fault(Path::new(socket), account, &someone));
        faults.extend(fault.map(|fault| format!("{}: {fault}", service.name)));
    }
    let detail = match faults.as_slice() {
        [] => "each is there, for its account and not for everybody".to_owned(),
        faults => faults.join("; "),
    };
    let need = "services with `identify`, whose servers believe whoever reaches their socket";
    let finding = Finding {
        duty: Some(OFFERS),
        ..Finding::new("servers' sockets", need, (faults.is_empty(), detail))
    };
    are_there.then_some(finding)
}

/// The account whose permissions are checked.
struct Someone {
    uid: u32,
    groups: Vec<u32>,
}

/// The account of a service.
///
/// # Errors
/// The reason that it is not known.
fn someone(account: &UserName) -> Result<Someone, String> {
    let found = accounts::look_up(account.as_ref()).map_err(|error| error.to_string())?;
    let found = found.ok_or_else(|| format!("there is no account {account}; make it"))?;
    let groups = CString::new(found.name.as_str())
        .map_err(io::Error::other)
        .and_then(|name| Ok(getgrouplist(&name, found.gid)?))
        .map_err(|error| format!("cannot look up the groups of {account}: {error}"))?;
    Ok(Someone {
        uid: found.uid.as_raw(),
        groups: groups.into_iter().map(|group| group.as_raw()).collect(),
    })
}

impl Someone {
    /// Whether the mode gives the permission. Access control lists are not looked at.
    fn may(&self, metadata: &Metadata, permission: u32) -> bool {
        let shift = if metadata.uid() == self.uid {
            6
        } else if self.groups.contains(&metadata.gid()) {
            3
        } else {
            0
        };
        metadata.mode() >> shift & permission != 0
    }
}

fn everybody_may(metadata: &Metadata, permission: u32) -> bool {
    metadata.mode() & permission != 0
}

/// The fault of a server's socket, with the remedy.
fn fault(socket: &Path, account: &UserName, someone: &Someone) -> Option<String> {
    let shown = socket.display();
    match look(socket) {
        Ok((found, folders)) => fault_by_mode(socket, &found, &folders, account, someone),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Some(format!(
            "there is no {shown}; start the server, or correct the path in `identify`"
        )),
        Err(error) => Some(format!("cannot look at {shown}: {error}; run this as root")),
    }
}

fn fault_by_mode(
    socket: &Path,
    found: &Metadata,
    folders: &[(PathBuf, Metadata)],
    account: &UserName,
    someone: &Someone,
) -> Option<String> {
    let shown = socket.display();
    if !found.file_type().is_socket() {
        return Some(format!("{shown} is no socket; name the server's"));
    }
    let open = |(_, folder): &&(PathBuf, Metadata)| everybody_may(folder, WRITE);
    if let Some((folder, _)) = folders.iter().find(open) {
        return Some(format!(
            "anybody may have made {shown}, because everybody may write in {}; use a folder of the \
             server's own",
            folder.display()
        ));
    }
    let mut searched = folders.iter().map(|(_, folder)| folder);
    if everybody_may(found, WRITE) && searched.clone().all(|folder| everybody_may(folder, SEARCH)) {
        return Some(format!(
            "every local user reaches {shown} and may claim to be anybody; give it mode 0600, or its folder \
             0700, both with {account} as owner"
        ));
    }
    if someone.may(found, WRITE) && searched.all(|folder| someone.may(folder, SEARCH)) {
        return None;
    }
    Some(format!(
        "the account {account} does not reach {shown}; have it own the socket and its folder, or be in \
         their group"
    ))
}

/// The file at a path, and the folders above it, the nearest first.
fn look(path: &Path) -> io::Result<(Metadata, Vec<(PathBuf, Metadata)>)> {
    let path = fs::canonicalize(path)?;
    let folders = path.ancestors().skip(1);
    let folders = folders.map(|folder| Ok((folder.to_owned(), fs::metadata(folder)?)));
    Ok((fs::metadata(&path)?, folders.collect::<io::Result<_>>()?))
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn who_reaches_a_socket_is_told_by_modes() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("socket");
        let metadata = fs::metadata(folder.path()).unwrap();
        let owner = Someone {
            uid: metadata.uid(),
            groups: Vec::new(),
        };
        let member = Someone {
            uid: u32::MAX,
            groups: vec![metadata.gid()],
        };
        let other = Someone {
            uid: u32::MAX,
            groups: Vec::new(),
        };
        let account = "app".parse().unwrap();
        let missing = fault(&socket, &account, &owner).unwrap_or_default();
        assert!(missing.starts_with("there is no "), "{missing}");
        // Only the test's own folder is checked: the modes of those above depend on this machine.
        let tell = |someone: &Someone| {
            let (found, folders) = look(&socket).unwrap();
            fault_by_mode(&socket, &found, &folders[..1], &account, someone).unwrap_or_default()
        };
        fs::write(&socket, "").unwrap();
        assert!(tell(&owner).contains(" is no socket"));
        fs::remove_file(&socket).unwrap();
        let _listener = UnixListener::bind(&socket).unwrap();
        let set = |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode));
        for (mode, folders, someone, fault) in [
            (0o600, 0o755, &owner, ""),
            (0o666, 0o700, &owner, ""),
            (0o660, 0o750, &member, ""),
            (0o600, 0o755, &member, "the account app does not reach"),
            (0o660, 0o700, &member, "the account app does not reach"),
            (0o660, 0o755, &other, "the account app does not reach"),
            (0o666, 0o755, &owner, "every local user reaches"),
            (0o777, 0o711, &owner, "every local user reaches"),
            (0o600, 0o777, &owner, "anybody may have made"),
        ] {
            set(&socket, mode).unwrap();
            set(folder.path(), folders).unwrap();
            let told = tell(someone);
            assert!(
                told.starts_with(fault) && told.is_empty() == fault.is_empty(),
                "{mode:o} {folders:o}: {told}"
            );
        }
    }
}
